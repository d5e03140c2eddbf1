"""What a training step needs, and which kind of step fits a device.

Memory and operations of a step grow linearly with the tokens, so they are counted on two small
clouds: a mode of torch's dispatcher sees every operator and every tensor, whatever the mixer, its
options and the precision. The counts are the same on every machine. Only the plain step is timed;
the others take its time by their operations.
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
from torch.utils.flop_counter import flop_registry

from ..inference.prediction import unwrap
from ..inference.streams import SHARE_OF_MEMORY, limit_chunk, total_memory
from ..models import MixerBackbone
from ..ops import all_reduce
from ..ops.collectives import Group
from ..parallel import enable_context_parallel
from .config import PRECISIONS
from .losses import relative_l2_loss
from .streamed import streamed_step

_SMALL, _LARGE = 1024, 2048  # tokens of the clouds that are counted
_TIMED = 2048  # and of the one that is timed
# What may be filled: the rest is for what is not counted, and on the host for other programs.
_SHARE = {"cuda": 0.9, "cpu": 0.5}
# Of the weights: themselves, AdamW's two moments and the moving average.
_COPIES = 4
# On CUDA the backward kernels of attention allocate the gradient of the queries in fp32, its rows
# padded to these widths: the memory-efficient kernel of fp32 (GradQTempStorage in torch's
# kernel_backward.h), and flash attention (dq_accum of its mha_bwd).
_WORKSPACE_WIDTH = {"fp32": 64, "bf16": 32, "fp16": 32}
_ATTENTION_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


@dataclass(frozen=True)
class StepPlan:
    """A kind of training step, and what it needs."""

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
) -> list[StepPlan]:
    """Return what each kind of training step on whole clouds needs, and whether it fits."""
    model = unwrap(model)
    device = next(model.parameters()).device
    kind = device.type if memory is None else "cuda"
    memory = total_memory(device) if memory is None else memory
    host_memory = psutil.virtual_memory().total if host_memory is None else host_memory
    costs = StepCosts(model, batch, precision, kind)
    chunk = costs.chunk(memory) if chunk_size == "auto" else int(chunk_size)
    seconds = _seconds_per_token(model, batch, precision)

    def fits(device: int, host: int) -> bool:
        if kind == "cuda":
            return device <= _SHARE["cuda"] * memory and host <= _SHARE["cpu"] * host_memory
        return device + host <= _SHARE["cpu"] * memory

    def step(name: str, way: str, tokens: int = n_tokens) -> StepPlan:
        streams = way == "streamed"
        device = costs.peak(way, tokens, chunk if streams else None)
        host = costs.waiting(tokens) if streams else 0
        return StepPlan(name, device, host, tokens * seconds * costs.work(way), fits(device, host))

    return [
        step("plain", "plain"),
        step("recomputed blocks", "recomputed"),
        *(step(f"context over {r} ranks", "plain", -(-n_tokens // r)) for r in ranks),
        step(f"streamed, chunks of {chunk}", "streamed"),
    ]


class StepCosts:
    """Bytes and operations of training steps of a model, for any number of tokens.

    The model is copied. `kind` is the type of the device: on "cuda" kernels have workspaces. The
    ways to take a step are "plain", "recomputed" (blocks, in the backward pass) and "streamed".
    """

    def __init__(self, model: MixerBackbone, batch: int, precision: str, kind: str = "cpu") -> None:
        self.model = _cloud_model(model).cpu()
        self.batch, self.precision, self.kind = batch, precision, kind
        self._lines: dict[str, tuple[float, float, float]] = {}

    def peak(self, way: str, n_tokens: int, chunk: int | None = None) -> int:
        """Return the bytes at the peak of a step; of a streamed one without :meth:`waiting`."""
        fixed, slope, _ = self._line(way)
        at_once = n_tokens if chunk is None else min(chunk, n_tokens)
        return int(fixed + slope * at_once) + self.held(n_tokens)

    def held(self, n_tokens: int) -> int:
        """Return what is there between steps: weights, moments, average, inputs and targets."""
        model = self.model
        weights = sum(p.numel() * p.element_size() for p in model.parameters())
        width = model.functional_dim + (model.embedding_dim or 0) + model.out_dim
        return _COPIES * weights + 4 * width * self.batch * n_tokens

    def waiting(self, n_tokens: int) -> int:
        """Return the bytes of the hidden states of a streamed step, kept where `offload` says."""
        numbers = self.batch * n_tokens * self.model.stream_width * (len(self.model.blocks) + 1)
        return numbers * next(self.model.parameters()).element_size()

    def chunk(self, memory: float) -> int:
        """Return the tokens per chunk that a quarter of a memory allows, a power of two."""
        fixed, slope, _ = self._line("streamed")
        return limit_chunk((SHARE_OF_MEMORY * memory - fixed) / slope, self.kind)

    def work(self, way: str) -> float:
        """Return the operations per token, relative to a plain step."""
        return self._line(way)[2] / self._line("plain")[2]

    def _line(self, way: str) -> tuple[float, float, float]:
        """Return bytes without tokens, bytes per token and operations per token."""
        if way not in self._lines:
            small, large = self._count(way, _SMALL), self._count(way, _LARGE)
            slope, work = ((b - a) / (_LARGE - _SMALL) for a, b in zip(small, large, strict=True))
            self._lines[way] = large[0] - slope * _LARGE, slope, work
        return self._lines[way]

    def _count(self, way: str, n_tokens: int) -> tuple[float, float]:
        """Return bytes at the peak and operations of a step; a streamed one has two such chunks."""
        chunks = 2 if way == "streamed" else 1
        cloud, width = chunks * n_tokens, _WORKSPACE_WIDTH[self.precision]
        step = _make_step(self.model, self.batch, self.precision, way, cloud, n_tokens)
        with OperatorCounter(width if self.kind == "cuda" else 0) as seen:
            step()
        self.model.zero_grad(set_to_none=True)
        waiting = self.waiting(cloud) if way == "streamed" else 0
        return seen.peak - waiting, seen.operations / chunks


class StreamChoice:
    """Tokens per chunk with which a batch is streamed, None for a plain step.

    `stream` is the value of ``training.stream``. "auto" streams what does not fit the device, by
    its whole memory, not by what happens to be free: a run that resumes takes the same steps. The
    ranks of the context group choose together.
    """

    def __init__(
        self, stream: int | str, model: nn.Module, precision: str, group: Group | None = None
    ) -> None:
        self.stream, self.model = stream, unwrap(model)
        self.precision, self.group = precision, group
        self._costs: dict[int, StepCosts] = {}

    def __call__(self, batch: int, n_tokens: int) -> int | None:
        """Return the chunk for a batch of this many cases and tokens."""
        if self.stream != "auto":
            return int(self.stream)
        device = next(self.model.parameters()).device
        if batch not in self._costs:
            self._costs[batch] = StepCosts(self.model, batch, self.precision, device.type)
        costs, memory = self._costs[batch], total_memory(device)
        fits = costs.peak("plain", n_tokens) <= _SHARE[device.type] * memory
        if self.group is not None:
            fits = not all_reduce(torch.tensor(float(not fits), device=device), "max", self.group)
        return None if fits else costs.chunk(memory)


class OperatorCounter(TorchDispatchMode):
    """Counts bytes of the tensors that operators make, the most at a time, and their operations."""

    # With `width`, attention backwards has a workspace of fp32 rows of a multiple of that width.

    def __init__(self, width: int = 0) -> None:
        super().__init__()
        self.width = width
        self.now = self.peak = self.operations = 0
        self._seen: weakref.WeakSet = weakref.WeakSet()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        """Run the operator and count what it did."""
        kwargs = kwargs or {}
        for tensor in _tensors((args, kwargs)):  # those made before the counting
            self._seen.add(tensor.untyped_storage())
        result = function(*args, **kwargs)
        for tensor in _tensors(result):
            storage = tensor.untyped_storage()
            if storage not in self._seen:
                self._seen.add(storage)
                self._count(storage.nbytes())
                weakref.finalize(storage, self._count, -storage.nbytes())
        operator, workspace = function.overloadpacket, 0
        if operator in flop_registry:
            self.operations += flop_registry[operator](*args, **kwargs, out_val=result)
        if operator is _ATTENTION_BACKWARD and self.width:
            *rows, width = args[1].shape
            workspace = 4 * torch.Size(rows).numel() * -(-width // self.width) * self.width
        self.peak = max(self.peak, self.now + workspace)
        return result

    def _count(self, size: int) -> None:
        self.now += size


def _tensors(tree: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _cloud_model(model: MixerBackbone) -> MixerBackbone:
    """Return a copy for clouds of one rank: a grid is a cloud whose positions are given."""
    model = enable_context_parallel(copy.deepcopy(model), None)
    model.structured_shape, model.unified_pos = None, False
    return model


def _seconds_per_token(model: MixerBackbone, batch: int, precision: str) -> float:
    """Return the time of a plain step, the shortest of three: other programs add to it."""
    step = _make_step(_cloud_model(model), batch, precision, "plain", _TIMED, _TIMED)
    times = []
    for _ in range(3):
        start = time.perf_counter()
        step()
        if (device := next(model.parameters()).device).type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - start)
    return min(times) / _TIMED


def _make_step(
    model: MixerBackbone, batch: int, precision: str, way: str, n_tokens: int, chunk: int
) -> Callable[[], None]:
    generator = torch.Generator().manual_seed(0)
    parameter, half = next(model.parameters()), getattr(torch, PRECISIONS[precision])

    def rows(width: int) -> Tensor:
        values = torch.rand(batch, n_tokens, width, generator=generator, dtype=parameter.dtype)
        return values.to(parameter.device)

    embedding = None if model.embedding_dim is None else rows(model.embedding_dim)
    inputs = {"fx": rows(model.functional_dim), "embedding": embedding}
    if model.time_input:
        inputs["time"] = parameter.new_zeros(batch)
    target = rows(model.out_dim)
    autocast = torch.autocast(parameter.device.type, half, enabled=half != torch.float32)

    def plain() -> None:
        with autocast:
            prediction = model(**inputs)
        relative_l2_loss(prediction.float(), target).backward()

    def streamed() -> None:
        with autocast:
            streamed_step(model, **inputs, target=target, chunk_size=chunk)

    model.checkpoint_blocks = way == "recomputed"
    return streamed if way == "streamed" else plain
