"""What a training step needs, and which way of taking it fits a device.

The memory of a step grows linearly with the tokens, so it is counted on two small clouds: a mode of
torch's dispatcher sees every tensor come and go, whatever the mixer, its options and the precision.
The counts are the same on every machine.
"""

import copy
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..inference.prediction import unwrap
from ..models import MixerBackbone
from ..ops import all_reduce
from ..ops.collectives import Group
from ..parallel import enable_context_parallel
from .config import PRECISIONS
from .losses import relative_l2_loss
from .streamed import streamed_step

_SMALL, _LARGE = 1024, 2048  # tokens of the clouds that are counted
_TIMED = 2048  # and of those that are timed
# What may be filled: the rest is for what is not counted, and on the host for other programs.
_SHARE = {"cuda": 0.9, "cpu": 0.5}
_SHARE_OF_CHUNK = 0.25
_MOST_CHUNK = {"cuda": 2**18, "cpu": 2**12}
_FEWEST_CHUNK = 2**8
# Of the weights: themselves, AdamW's two moments and the moving average.
_COPIES = 4


@dataclass(frozen=True)
class Way:
    """A way to take a training step, and what it needs.

    Parameters
    ----------
    name : str
        "plain", "recomputed blocks", "context over R ranks" or "streamed, chunks of c".
    device, host : int
        Bytes at the peak of a step on the device of each rank, weights and moments included, and
        bytes of hidden states that wait on its host. On a CPU both are one memory.
    seconds : float
        Time of a step, as measured on this machine; collectives not counted.
    fits : bool
        Whether both fit.
    """

    name: str
    device: int
    host: int
    seconds: float
    fits: bool


def plan(
    model: nn.Module,
    n_tokens: int,
    *,
    batch: int = 1,
    precision: str = "fp32",
    memory: float | None = None,
    host_memory: float | None = None,
    ranks: Sequence[int] = (2, 4, 8),
    chunk_size: int | str = "auto",
) -> list[Way]:
    """Return what each way to train on whole clouds needs, and whether it fits.

    Parameters
    ----------
    model : MixerBackbone
        On the device on which it is timed.
    n_tokens : int
        Tokens N of a case.
    batch : int, optional
        Cases per batch of a rank.
    precision : str, optional
        A value of ``training.precision``.
    memory, host_memory : float, optional
        Bytes of the device and of its host; default: those of this machine. With `memory` the
        device is taken to be a GPU.
    ranks : sequence of int, optional
        Sizes of context groups.
    chunk_size : int or "auto", optional
        Tokens per chunk of the streamed step.

    Examples
    --------
    >>> model = MixerBackbone(3, 1, n_layers=1, n_hidden=16, n_head=2)
    >>> [way.name for way in plan(model, 10**7, ranks=(16,), memory=4e9) if way.fits]
    ['context over 16 ranks', 'streamed, chunks of 262144']
    """
    model = unwrap(model)
    parameter = next(model.parameters())
    kind = parameter.device.type if memory is None else "cuda"
    memory = total_memory(parameter.device) if memory is None else memory
    host_memory = psutil.virtual_memory().total if host_memory is None else host_memory
    counts = StepMemory(model, batch, precision)
    chunk = counts.chunk(memory, kind) if chunk_size == "auto" else int(chunk_size)
    step = _Steps(model, batch, precision)
    plain, recomputed = step.seconds("plain"), step.seconds("recomputed")
    shards = [(f"context over {r} ranks", -(-n_tokens // r)) for r in ranks]
    ways = [("plain", counts.plain(n_tokens), 0, n_tokens * plain)]
    ways += [("recomputed blocks", counts.recomputed(n_tokens), 0, n_tokens * recomputed)]
    ways += [(name, counts.plain(tokens), 0, tokens * plain) for name, tokens in shards]
    streamed = n_tokens * step.seconds("streamed")
    working, waiting = counts.streamed(n_tokens, chunk), counts.waiting(n_tokens)
    ways += [(f"streamed, chunks of {chunk}", working, waiting, streamed)]

    def fits(device: int, host: int) -> bool:
        if kind == "cuda":
            return device <= _SHARE["cuda"] * memory and host <= _SHARE["cpu"] * host_memory
        return device + host <= _SHARE["cpu"] * memory

    return [Way(*way, fits(*way[1:3])) for way in ways]


class StepMemory:
    """Bytes that training steps of a model need on the device, for any number of tokens.

    Parameters
    ----------
    model : MixerBackbone
        It is copied, and stays as it is.
    batch : int
        Cases per batch.
    precision : str
        A value of ``training.precision``.
    """

    def __init__(self, model: MixerBackbone, batch: int, precision: str) -> None:
        self.steps = _Steps(model, batch, precision, counted=True)
        self._lines: dict[str, tuple[float, float]] = {}

    def plain(self, n_tokens: int) -> int:
        """Return the bytes at the peak of a plain step."""
        return self._line("plain", n_tokens) + self.held(n_tokens)

    def recomputed(self, n_tokens: int) -> int:
        """Return those of a step that computes each block again in the backward pass."""
        return self._line("recomputed", n_tokens) + self.held(n_tokens)

    def streamed(self, n_tokens: int, chunk: int) -> int:
        """Return those of a streamed step without :meth:`waiting`, which are those of a chunk."""
        return self._line("streamed", min(chunk, n_tokens)) + self.held(n_tokens)

    def waiting(self, n_tokens: int) -> int:
        """Return the bytes of the hidden states of a streamed step, which wait where it is told."""
        return self.steps.waiting(n_tokens)

    def chunk(self, memory: float, kind: str) -> int:
        """Return the tokens per chunk that a quarter of a memory allows, a power of two."""
        fixed, slope = self._coefficients("streamed")
        tokens = int((_SHARE_OF_CHUNK * memory - fixed) / slope)
        tokens = min(_MOST_CHUNK[kind], max(_FEWEST_CHUNK, tokens))
        return 2 ** (tokens.bit_length() - 1)

    def _line(self, way: str, n_tokens: int) -> int:
        fixed, slope = self._coefficients(way)
        return int(fixed + slope * n_tokens)

    def _coefficients(self, way: str) -> tuple[float, float]:
        if way not in self._lines:
            small, large = (self.steps.count(way, n_tokens) for n_tokens in (_SMALL, _LARGE))
            slope = (large - small) / (_LARGE - _SMALL)
            self._lines[way] = large - slope * _LARGE, slope
        return self._lines[way]

    def held(self, n_tokens: int) -> int:
        """Return what is there between steps: weights, moments, average, inputs and targets."""
        model = self.steps.model
        weights = sum(p.numel() * p.element_size() for p in model.parameters())
        width = model.functional_dim + (model.embedding_dim or 0) + model.out_dim
        return _COPIES * weights + 4 * width * self.steps.batch * n_tokens


class StreamChoice:
    """Tokens per chunk with which a batch is streamed, None for a plain step.

    Parameters
    ----------
    stream : int or "auto"
        Value of ``training.stream``. "auto" streams what does not fit the device, by its whole
        memory, not by what happens to be free: a run that goes on takes the same steps.
    model : torch.nn.Module
        The bare model.
    precision : str
        A value of ``training.precision``.
    group : ProcessGroup, optional
        The context group, whose ranks choose together.

    Examples
    --------
    >>> model = MixerBackbone(3, 1, n_layers=1, n_hidden=32, n_head=4)
    >>> StreamChoice(500, model, "fp32")(1, 10**7), StreamChoice("auto", model, "fp32")(1, 1000)
    (500, None)
    """

    def __init__(
        self, stream: int | str, model: nn.Module, precision: str, group: Group | None = None
    ) -> None:
        self.stream = stream
        self.model = unwrap(model)
        self.precision = precision
        self.group = group
        self._counts: dict[int, StepMemory] = {}

    def __call__(self, batch: int, n_tokens: int) -> int | None:
        """Return the chunk for a batch of this many cases and tokens."""
        if self.stream != "auto":
            return int(self.stream)
        device = next(self.model.parameters()).device
        if batch not in self._counts:
            self._counts[batch] = StepMemory(self.model, batch, self.precision)
        counts, memory = self._counts[batch], total_memory(device)
        fits = counts.plain(n_tokens) <= _SHARE[device.type] * memory
        if self.group is not None:
            fits = not all_reduce(torch.tensor(float(not fits), device=device), "max", self.group)
        return None if fits else counts.chunk(memory, device.type)


def total_memory(device: torch.device) -> int:
    """Return the bytes of a CUDA device, or of the machine for any other.

    Examples
    --------
    >>> total_memory(torch.device("cpu")) == psutil.virtual_memory().total
    True
    """
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return psutil.virtual_memory().total


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of the tensors that operators make, and the most there were at a time.

    Examples
    --------
    >>> with LiveBytes() as live:
    ...     x = torch.zeros(1000).add(1).mul(2)
    >>> live.now, live.peak
    (4000, 8000)
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._seen: weakref.WeakSet = weakref.WeakSet()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        """Run the operator and count what it made."""
        for tensor in _tensors((args, kwargs)):  # those made before the counting
            self._seen.add(tensor.untyped_storage())
        result = function(*args, **(kwargs or {}))
        for tensor in _tensors(result):
            storage = tensor.untyped_storage()
            if storage not in self._seen:
                self._seen.add(storage)
                self.now += storage.nbytes()
                weakref.finalize(storage, self._forget, storage.nbytes())
        self.peak = max(self.peak, self.now)
        return result

    def _forget(self, size: int) -> None:
        self.now -= size


def _tensors(tree: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


class _Steps:
    """Steps of a copy of a model on random clouds: on the host to be counted, else to be timed."""

    def __init__(
        self, model: MixerBackbone, batch: int, precision: str, counted: bool = False
    ) -> None:
        self.batch = batch
        self.model = copy.deepcopy(model)
        if counted:
            self.model = self.model.cpu()
        enable_context_parallel(self.model, None)
        # A grid is a cloud whose positions are given.
        self.model.structured_shape, self.model.unified_pos = None, False
        self.device = next(self.model.parameters()).device
        self.half = getattr(torch, PRECISIONS[precision])

    def waiting(self, n_tokens: int) -> int:
        """Return the bytes of the hidden states of a streamed step."""
        numbers = self.batch * n_tokens * self.model.stream_width * (len(self.model.blocks) + 1)
        return numbers * next(self.model.parameters()).element_size()

    def count(self, way: str, n_tokens: int) -> int:
        """Return the bytes at the peak of a step, of a streamed one those of a chunk this long."""
        cloud = 2 * n_tokens if way == "streamed" else n_tokens
        step = self._prepare(way, cloud, n_tokens)
        with LiveBytes() as live:
            step()
        self.model.zero_grad(set_to_none=True)
        return live.peak - (self.waiting(cloud) if way == "streamed" else 0)

    def seconds(self, way: str) -> float:
        """Return the time of a step per token, the shortest of three: other programs add to it."""
        step = self._prepare(way, _TIMED, _TIMED // 2)
        times = []
        for _ in range(3):
            start = time.perf_counter()
            step()
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            times.append(time.perf_counter() - start)
        self.model.zero_grad(set_to_none=True)
        return min(times) / _TIMED

    def _prepare(self, way: str, n_tokens: int, chunk: int) -> Callable[[], None]:
        model, generator = self.model, torch.Generator().manual_seed(0)
        dtype = next(model.parameters()).dtype

        def rows(width: int) -> Tensor:
            values = torch.rand(self.batch, n_tokens, width, generator=generator, dtype=dtype)
            return values.to(self.device)

        embedding = None if model.embedding_dim is None else rows(model.embedding_dim)
        inputs = {"fx": rows(model.functional_dim), "embedding": embedding}
        if model.time_input:
            inputs["time"] = torch.zeros(self.batch, dtype=dtype, device=self.device)
        target = rows(model.out_dim)
        autocast = torch.autocast(self.device.type, self.half, enabled=self.half != torch.float32)

        def plain() -> None:
            with autocast:
                prediction = model(**inputs)
            relative_l2_loss(prediction.float(), target).backward()

        def streamed() -> None:
            with autocast:
                streamed_step(model, **inputs, target=target, chunk_size=chunk)

        model.checkpoint_blocks = way == "recomputed"
        return streamed if way == "streamed" else plain
