"""Tokens chunk by chunk: how many at a time, how they travel, where they wait, and the passes.

Block b needs ``n_gathers`` passes. Its first gather runs on each chunk right after the chunk was
updated by block b - 1 (or embedded), so an update costs no pass of its own, and a prediction of B
blocks reads the residual stream ``B * n_gathers`` times. With a context-parallel group each rank
runs over its own tokens, and the ranks merge once per gather.
"""

import mmap
import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import psutil
import torch
import torch.distributed as dist
from jaxtyping import Bool, Float
from torch import Tensor

from ..mixers.base import Gathered, Latents
from ..models import TokenModel
from ..models.layers import AnyBlock
from ..models.token_model import check_totals
from ..ops import all_reduce, group_size
from ..ops.kernels import accumulation_dtype

if TYPE_CHECKING:
    from .arrays import TokenInputs

Range = tuple[int, int]

# Numbers held per token at the worst moment, bounded from above: temporaries of hidden width, of
# the widest layer, and of the slice weights that the Transolver family forms.
_HIDDEN_TEMPORARIES = 16
_WIDEST_TEMPORARIES = 3
_SLICE_TEMPORARIES = 4
# A chunk may fill this much of the whole memory, the same in every process, and of what is free.
SHARE_OF_MEMORY = 0.25
_SHARE_OF_FREE_MEMORY = 0.5
# Beyond these, larger chunks only cost memory: a GPU is full, and on a CPU the temporaries of one
# chunk leave the caches.
_MOST_TOKENS = {"cuda": 2**18}
_MOST_TOKENS_ELSEWHERE = 2**12
_FEWEST_TOKENS = 2**8
# Chunks that may be under way at a time; the host waits for the one before, so that memory stays
# bounded however far it could run ahead of the device.
_IN_FLIGHT = 2

Tensors = TypeVar("Tensors", bound=tuple[Tensor | None, ...])


def storage_place(offload: str | os.PathLike | None) -> str | Path:
    """Return where hidden states wait: "cpu", "device" or an existing directory."""
    if offload in (None, "device", "cpu"):
        return offload or "device"
    if not Path(offload).is_dir():
        raise ValueError(
            f'offload must be "cpu", "device", None or an existing directory, got {offload!r}'
        )
    return Path(offload)


def token_ranges(n_tokens: int, chunk_size: int) -> list[Range]:
    """Cut ``n_tokens`` into consecutive ranges; without tokens there is one empty range."""
    starts = range(0, max(n_tokens, 1), chunk_size)
    return [(start, min(start + chunk_size, n_tokens)) for start in starts]


def resolve_chunk_size(
    chunk_size: int | str | None, model: TokenModel, batch: int, reserved: int = 0
) -> int:
    """Return the tokens per chunk: the caller's number, or what memory allows for "auto" or None.

    `reserved` are bytes of the device that are already spoken for.
    """
    if chunk_size is None or chunk_size == "auto":
        parameter = next(model.parameters())
        per_token = _numbers_per_token(model) * batch * parameter.element_size()
        return auto_chunk_size(parameter.device, per_token, reserved)
    if isinstance(chunk_size, bool) or not isinstance(chunk_size, int) or chunk_size < 1:
        raise ValueError(
            f'chunk_size must be a positive number of tokens or "auto", got {chunk_size!r}'
        )
    return chunk_size


def _numbers_per_token(model: TokenModel) -> int:
    block = model.blocks[0]
    slices = block.mixer.heads * (model.settings.get("slice_num") or block.mixer.head_dim)
    widest = max(getattr(m, "out_features", model.stream_width) for m in block.modules())
    numbers = _HIDDEN_TEMPORARIES * model.stream_width + _SLICE_TEMPORARIES * slices
    return numbers + _WIDEST_TEMPORARIES * widest


def auto_chunk_size(device: torch.device, bytes_per_token: int, reserved: int = 0) -> int:
    """Return the tokens that a quarter of a device holds, or half of what is free if that is less.

    A share of the whole memory does not change from call to call or process to process, and with
    it neither does the rounding of a result.
    """
    room = SHARE_OF_MEMORY * (total_memory(device) - reserved)
    room = min(room, _SHARE_OF_FREE_MEMORY * (free_memory(device) - reserved))
    return limit_chunk(room / bytes_per_token, device.type)


def limit_chunk(tokens: float, kind: str) -> int:
    """Return a power of two at or below, from 256 tokens up to what serves a device."""
    tokens = min(_MOST_TOKENS.get(kind, _MOST_TOKENS_ELSEWHERE), max(_FEWEST_TOKENS, int(tokens)))
    return 2 ** (tokens.bit_length() - 1)


def total_memory(device: torch.device) -> int:
    """Return the bytes of a CUDA device, or of the machine for any other."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return psutil.virtual_memory().total


def free_memory(device: torch.device) -> int:
    """Return the bytes free on a CUDA device, torch's cached blocks included, or on the machine."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    return psutil.virtual_memory().available


class Transfers:
    """Double-buffered loads and stores on side streams of a CUDA device.

    On any other device the same calls load, compute and store one after the other.
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

        ``load`` gives tensors on the device; copies may be asynchronous.
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

        def fetch(index: int) -> tuple[Tensors, torch.cuda.Event]:
            with torch.cuda.stream(self._inward):
                return load(index), self._inward.record_event()

        coming = fetch(0)
        for index in range(count):
            tensors, arrived = coming
            if len(computed) == _IN_FLIGHT:
                computed.popleft().synchronize()
            if index + 1 < count:
                coming = fetch(index + 1)
            main.wait_event(arrived)
            for tensor in tensors:
                if tensor is not None:
                    tensor.record_stream(main)
            yield index, tensors
            computed.append(main.record_event())

    def store(self, target: Tensor, value: Tensor) -> torch.cuda.Event | None:
        """Copy ``value`` into ``target``; give the event that marks the end, None if it is over."""
        if not self.is_cuda:
            target.copy_(value)
            return None
        self._outward.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._outward):
            target.copy_(value, non_blocking=True)
            # Else torch would hand out the memory of either while the copy runs.
            for tensor in (value, target):
                if tensor.is_cuda:
                    tensor.record_stream(self._outward)
            done = self._outward.record_event()
        self._stored.append(done)
        if len(self._stored) > _IN_FLIGHT:
            self._stored.popleft().synchronize()
        return done


class ResidualStream:
    """Hidden states (B, rows, C) of every chunk, kept on the host, on the device or on disk.

    Each chunk is one contiguous block, so that a copy is one transfer. Blocks are made at the
    first write, in the dtype that is written: under autocast that of the plain forward. With
    `dtype` they are stored in that, and read in what was written. Host memory is page-locked if the
    device is a CUDA one; files have no name.
    """

    def __init__(
        self,
        ranges: list[Range],
        transfers: Transfers,
        place: str | Path = "cpu",
        dtype: torch.dtype | None = None,
    ) -> None:
        self.ranges, self.transfers, self.place, self.dtype = ranges, transfers, place, dtype
        self._written_dtype: torch.dtype | None = None
        self._blocks: list[Tensor] = []

    def reserve(self, like: Float[Tensor, "B _rows C"]) -> None:
        """Make room for all chunks, of the batch, width and dtype of one, if there is none yet."""
        if not self._blocks:
            # All at once: blocks made between the temporaries of chunks would fragment the heap.
            batch, _, width = like.shape
            shapes = [torch.Size((batch, stop - start, width)) for start, stop in self.ranges]
            self._blocks = self._new_blocks(shapes, self.dtype or like.dtype)

    def write(self, index: int, x: Float[Tensor, "B rows C"]) -> None:
        """Keep the hidden state of one chunk."""
        self.reserve(x)
        dtype = self.dtype or x.dtype
        if self._blocks[index].dtype != dtype:
            # Some mixers widen the dtype under autocast in their first block.
            self._blocks[index : index + 1] = self._new_blocks([x.shape], dtype)
        self._written_dtype = x.dtype
        self.transfers.store(self._blocks[index], x)

    def read(self, index: int) -> Float[Tensor, "B rows C"]:
        """Return the hidden state of one chunk on the device; do not change it in place."""
        block = self._blocks[index].to(self.transfers.device, non_blocking=True)
        return block.to(self._written_dtype)

    def release(self) -> None:
        """Free the memory; the stream can be written anew."""
        self._blocks = []

    def _new_blocks(self, shapes: list[torch.Size], dtype: torch.dtype) -> list[Tensor]:
        if self.place == "cpu" and self.transfers.is_cuda:
            # Page-locked block by block: torch rounds each request up to a power of two.
            return [torch.empty(shape, dtype=dtype, pin_memory=True) for shape in shapes]
        sizes = [shape.numel() for shape in shapes]
        total = sum(sizes)
        if isinstance(self.place, Path) and total > 0:
            # One file: a process may map some 65,000.
            whole = map_unnamed_file(self.place, total, dtype)
        else:
            device = self.transfers.device if self.place == "device" else "cpu"
            whole = torch.empty(total, dtype=dtype, device=device)
        return [part.view(shape) for part, shape in zip(whole.split(sizes), shapes, strict=True)]


def map_unnamed_file(directory: Path, size: int, dtype: torch.dtype) -> Tensor:
    """Return a tensor in a file that ends with it."""
    # Without a name, so that no end of the process leaves the file behind. Its pages are claimed
    # first: a disk that is full would kill the process at a later write to the mapping.
    length = size * dtype.itemsize
    with tempfile.TemporaryFile(dir=directory) as file:
        try:
            os.posix_fallocate(file.fileno(), 0, length)
        except OSError as error:
            raise OSError(
                error.errno,
                f"the directory {directory} has no room for {length:,} bytes more "
                f"({error.strerror}); offload to another one, or store them in bfloat16",
            ) from error
        return torch.frombuffer(mmap.mmap(file.fileno(), length), dtype=dtype)


@contextmanager
def fail_together(group: str | None, device: torch.device) -> Iterator[None]:
    """Let an error on one rank stop all ranks of a group, instead of leaving them waiting."""
    error = None
    try:
        yield
    except Exception as caught:
        error = caught
    if group is not None and group_size(group) > 1:
        mine = 0 if error is None else dist.get_rank() + 1
        failed = int(all_reduce(torch.tensor([float(mine)], device=device), "max", group))
        if error is None and failed:
            raise RuntimeError(
                f"rank {failed - 1} of the context group failed on its inputs; see its error"
            )
    if error is not None:
        raise error


class TokenPasses:
    """Runs a model over its tokens chunk by chunk, and calls ``advance`` after each one.

    The streams keep the hidden states that enter each block, where `offload` says: the same one for
    all blocks, or with several that of each, and further ones that get their memory with these.
    """

    advance: Callable[[], None]

    def __init__(
        self,
        inputs: "TokenInputs",
        chunk_size: int | str,
        offload: str | os.PathLike | None,
        stream_dtype: torch.dtype | None = None,
        n_streams: int = 1,
    ) -> None:
        if stream_dtype is not None and not stream_dtype.is_floating_point:
            raise ValueError(f"stream_dtype must be a floating dtype, got {stream_dtype}")
        self.inputs, self.model, self.place = inputs, inputs.model, storage_place(offload)
        reserved, blocks = 0, self.model.blocks
        if self.place == "device":
            numbers = n_streams * inputs.batch * inputs.n_tokens * self.model.stream_width
            reserved = numbers * (stream_dtype or inputs.dtype).itemsize
        chunk_size = resolve_chunk_size(chunk_size, self.model, inputs.batch, reserved)
        self.ranges = token_ranges(inputs.n_tokens, chunk_size)
        self.transfers = Transfers(inputs.device)
        kept = (self.ranges, self.transfers, self.place, stream_dtype)
        streams = [ResidualStream(*kept) for _ in range(n_streams)]
        self.streams = streams if n_streams > 1 else streams * len(blocks)
        # Chunks that are visited until all latents are known.
        self.visits = sum(block.mixer.n_gathers for block in blocks) * len(self.ranges)
        self.advance = lambda: None

    def gather(self) -> tuple[Latents, ...]:
        """Return the latents of every block; leaves the input of the last block in its stream."""
        return tuple(latents for _, latents, _ in self.blocks())

    def blocks(self) -> Iterator[tuple[int, Latents, tuple[Gathered, ...]]]:
        """Yield number, latents and merged gathers of each block.

        While a block is yielded, :meth:`stored` gives the hidden states that enter it.
        """
        if self.inputs.token_weights is not None:
            self._measure()
        latents: list[Latents] = []
        for number, block in enumerate(self.model.blocks):
            mixer = block.mixer
            finished: Latents = ()
            gathered: tuple[Gathered, ...] = ()
            while len(finished) < mixer.n_gathers:
                gathered += (self._gather_all(block, finished, number, latents),)
                finished += (mixer.finish(gathered[-1], finished),)
            latents.append(finished)
            yield number, finished, gathered

    def _measure(self) -> None:
        """Find what the weights of each sample add up to, over all chunks and ranks."""
        group = self.model.context_group
        with fail_together(group, self.inputs.device):
            total = self.inputs.add_up_weights(self.ranges)
        if group is not None and group_size(group) > 1:
            total = all_reduce(total, "sum", group)
        check_totals(total.cpu())
        self.inputs.total_weight = total

    def _gather_all(
        self, block: AnyBlock, finished: Latents, number: int, latents: list[Latents]
    ) -> Gathered:
        """Return the next gather of a block, over the tokens of all chunks and ranks."""
        mixer, parts, dtype = block.mixer, [], torch.float32
        first = number == 0 and not finished
        states = self.stored(number) if finished else self._entering(number, latents)
        # Only the first pass reads the caller's rows and makes room for the hidden states, so only
        # there can a rank fail alone.
        with fail_together(mixer.context_group if first else None, self.inputs.device):
            for _, x, weights in states:
                partial = mixer.gather(block.norm_mixer(x), finished, weights)
                dtype = accumulation_dtype(partial[0].dtype)
                # In fp64: thousands of merges of M rows then cost neither time nor digits.
                parts.append((partial[0].double(), partial[1].double()))
                parts = [mixer.merge(parts)] if len(parts) > 1 else parts
                self.advance()
        gathered = mixer.merge_ranks((parts[0][0].to(dtype), parts[0][1].to(dtype)))
        if first:
            _check_every_sample_has_tokens(gathered[1] == mixer.weight_of_nothing)
        return gathered

    def read_out(self, latents: tuple[Latents, ...]) -> Iterator[tuple[Range, Tensor]]:
        """Yield the outputs of each chunk after :meth:`gather`."""
        for index, x, weights in self._entering(len(self.model.blocks), latents):
            yield self.ranges[index], self.model.read_out(x, weights)
            self.advance()

    def _entering(
        self, number: int, latents: Sequence[Latents]
    ) -> Iterator[tuple[int, Tensor, Tensor | None]]:
        """Yield the hidden states before block ``number`` and keep those that are used again."""
        states = self._embedded() if number == 0 else self.stored(number - 1)
        for index, x, weights in states:
            if number > 0:
                x = self.model.blocks[number - 1].update(x, latents[number - 1])
            else:
                for stream in self.streams:
                    stream.reserve(x)
            if number < len(self.model.blocks):
                self.streams[number].write(index, x)
            yield index, x, weights

    def _embedded(self) -> Iterator[tuple[int, Tensor, Tensor | None]]:
        count, load = len(self.ranges), self.inputs.load
        chunks = self.transfers.prefetch(lambda index: load(*self.ranges[index]), count)
        for index, (fx, embedding, weights) in chunks:
            yield index, self.model.embed(fx, embedding, self.inputs.time, weights), weights

    def stored(self, number: int) -> Iterator[tuple[int, Tensor, Tensor | None]]:
        """Yield index, hidden states that enter a block, and weights of each chunk."""
        stream = self.streams[number]

        def load(index: int) -> tuple[Tensor, Tensor | None]:
            return stream.read(index), self.inputs.load_weights(*self.ranges[index])

        for index, (x, weights) in self.transfers.prefetch(load, len(self.ranges)):
            yield index, x, weights


def _check_every_sample_has_tokens(nothing: Bool[Tensor, "B H M"]) -> None:
    empty = nothing.flatten(1).all(1)
    if empty.any():
        samples = empty.nonzero().flatten().tolist()
        raise ValueError(
            f"sample(s) {samples} have no token: N is 0, or token_mask is False everywhere; "
            "drop these samples"
        )
