"""Turn signals into a stop request honoured between steps, on all ranks at once."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Self

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

# Sent by schedulers and torchrun, by Ctrl-C, and by `sbatch --signal=USR1@120` ahead of the limit.
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class StopRequest:
    """Inside its ``with``, SIGTERM, SIGINT and SIGUSR1 ask for a stop instead of killing.

    A second SIGINT raises KeyboardInterrupt, for a user who cannot wait. The earlier handlers
    come back at the end. Python delivers signals to the main thread only: in another thread
    nothing is installed and nothing is ever requested.

    Examples
    --------
    >>> import os
    >>> with StopRequest() as stop:
    ...     for step in range(10):
    ...         if step == 3:
    ...             os.kill(os.getpid(), signal.SIGTERM)
    ...         if stop.agree("cpu"):
    ...             break
    >>> step, stop.signal_name
    (3, 'SIGTERM')
    """

    def __init__(self):
        self._received: signal.Signals | None = None
        self._interrupted = False
        self._previous: dict[signal.Signals, object] = {}

    @property
    def requested(self) -> bool:
        """Whether this process got a signal."""
        return self._received is not None

    @property
    def signal_name(self) -> str | None:
        """Name of the first signal that this process got, as "SIGTERM"."""
        return None if self._received is None else self._received.name

    def agree(self, device: str | torch.device, group: ProcessGroup | None = None) -> bool:
        """Return whether any rank was asked to stop: the same answer on all, at the same step.

        The flag is reduced on `device`, the rank's GPU with NCCL, and read on the host.
        """
        if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size(group) == 1:
            return self.requested
        flag = torch.tensor(int(self.requested), dtype=torch.int32, device=device)
        dist.all_reduce(flag, dist.ReduceOp.MAX, group=group)
        return bool(flag.item())

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        while self._previous:
            number, handler = self._previous.popitem()
            # None stands for a handler that was not installed from Python and cannot be again.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            if self._interrupted:
                raise KeyboardInterrupt
            self._interrupted = True
        if self._received is None:
            self._received = signal.Signals(number)
