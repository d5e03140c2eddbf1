"""Copies between host and device that run beside the computation."""

from collections import deque
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

# Chunks that may be under way at a time; the host waits for the one before, so that memory stays
# bounded however far it could run ahead of the device.
_IN_FLIGHT = 2

Tensors = tuple[Tensor | None, ...]


class Transfers:
    """Double-buffered loads and stores on side streams of a CUDA device.

    On any other device the same calls load, compute and store one after the other.

    Parameters
    ----------
    device : torch.device
        Where the computation runs.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.is_cuda = device.type == "cuda"
        self._stored: deque[torch.cuda.Event] = deque()
        if self.is_cuda:
            self._inward = torch.cuda.Stream(device)
            self._outward = torch.cuda.Stream(device)

    def prefetch(self, load: Callable[[int], Tensors], count: int) -> Iterator[tuple[int, Tensors]]:
        """Yield ``(index, load(index))`` in order; load the next one while one is worked on.

        Parameters
        ----------
        load : callable
            Gives the tensors of a chunk, all on the device; copies may be asynchronous.
        count : int
            Number of chunks.
        """
        if not self.is_cuda:
            for index in range(count):
                yield index, load(index)
            return
        main = torch.cuda.current_stream(self.device)
        # What this pass reads, the previous pass wrote.
        self._inward.wait_stream(self._outward)
        self._inward.wait_stream(main)
        computed: deque[torch.cuda.Event] = deque()
        coming = self._fetch(load, 0)
        for index in range(count):
            tensors, arrived = coming
            if len(computed) == _IN_FLIGHT:
                computed.popleft().synchronize()
            if index + 1 < count:
                coming = self._fetch(load, index + 1)
            main.wait_event(arrived)
            for tensor in tensors:
                if tensor is not None:
                    tensor.record_stream(main)
            yield index, tensors
            computed.append(main.record_event())

    def _fetch(
        self, load: Callable[[int], Tensors], index: int
    ) -> tuple[Tensors, torch.cuda.Event]:
        with torch.cuda.stream(self._inward):
            return load(index), self._inward.record_event()

    def store(self, target: Tensor, value: Tensor) -> torch.cuda.Event | None:
        """Copy ``value`` into ``target``; give the event that marks the end, None if it is over."""
        if not self.is_cuda:
            target.copy_(value)
            return None
        self._outward.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._outward):
            target.copy_(value, non_blocking=True)
            value.record_stream(self._outward)
            done = self._outward.record_event()
        self._stored.append(done)
        if len(self._stored) > _IN_FLIGHT:
            self._stored.popleft().synchronize()
        return done
