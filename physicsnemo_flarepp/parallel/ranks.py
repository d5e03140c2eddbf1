"""Where a process stands among all: the mesh of ranks, its tokens, sums, and the first rank's work.

Samples are spread over the axis "data" of the mesh, the tokens of a sample over "context".
"""

import pickle
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from physicsnemo.distributed import DistributedManager
from torch import Tensor, nn
from torch.distributed import DeviceMesh, ProcessGroup

from ..ops import all_gather, all_reduce, group_size
from ..ops.collectives import Group
from ..ops.kernels import accumulation_dtype

AXES = ("data", "context")
T = TypeVar("T")
_PATIENCE = 60.0  # seconds between two lines about the wait
# Seconds that the first rank gives the others to read an error, and a result.
_FAREWELL, _HANDOVER = 10.0, 120.0
BUCKET_BYTES = 2**26


def make_mesh(context_size: int) -> DeviceMesh:
    """Arrange all ranks as (data, context), consecutive ranks sharing one token sequence.

    Neighbouring ranks usually sit in one node, where links are fastest, and the context axis
    communicates in every layer while the data axis does so once per step.

    Parameters
    ----------
    context_size : int
        Ranks R that share the tokens of a sample. Must divide the number of ranks.

    Returns
    -------
    torch.distributed.DeviceMesh
        Of shape (world / R, R) with axes "data" and "context"; ``mesh["context"].get_group()`` is
        what :func:`~physicsnemo_flarepp.parallel.enable_context_parallel` takes.
    """
    world = DistributedManager().world_size
    if context_size < 1 or world % context_size:
        divisors = [size for size in range(1, world + 1) if world % size == 0]
        raise ValueError(
            f"context_size must divide the number of ranks, got context_size={context_size} with "
            f"{world} ranks; choose one of {divisors}"
        )
    return DistributedManager().initialize_mesh((world // context_size, context_size), AXES)


def flatten_mesh(mesh: DeviceMesh) -> DeviceMesh:
    """Join the "data" and "context" axes into one, as FSDP2 and the gradient sum need them.

    The mesh is from :func:`make_mesh`, or part of a larger mesh.
    """
    check_axes(mesh)
    return mesh[AXES]._flatten("data_context")


def check_axes(mesh: DeviceMesh) -> None:
    """Raise unless the mesh has the axes "data" and "context"."""
    names = mesh.mesh_dim_names or ()
    if not set(AXES) <= set(names):
        raise ValueError(
            f'mesh must have the axes "data" and "context", got {names}; see make_mesh'
        )


@dataclass(frozen=True)
class Ranks:
    """Rank and size of the job, its mesh ("data", "context"), and the device of this process."""

    rank: int
    size: int
    mesh: DeviceMesh
    device: torch.device

    @property
    def is_first(self) -> bool:
        """Whether this process is the one that writes."""
        return self.rank == 0

    @property
    def context_group(self) -> ProcessGroup | None:
        """The ranks that share a sample, None if it is whole."""
        return self.mesh["context"].get_group() if self.mesh["context"].size() > 1 else None

    @property
    def data_group(self) -> ProcessGroup:
        """The ranks that hold the same part of different samples."""
        return self.mesh["data"].get_group()


def on_first_rank(function: Callable[[], T], doing: str) -> T:
    """Return on all ranks what `function` returns on the first; raise on all what it raises.

    The others wait at the store of the process group, not in a collective: that would fail after
    NCCL's ten minutes, and keep a GPU busy until then. After a minute they say what the first one
    is `doing`, such as "generating the built-in set darcy". Results travel as pickles.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return function()
    store = dist.distributed_c10d._get_default_store()
    rank = dist.get_rank()
    # All ranks make the same calls in the same order, so each call has the same number on all.
    key = f"flarepp/first_rank/{store.add(f'flarepp/first_rank_calls/{rank}', 1)}"
    if rank != 0:
        _wait(store, key, rank, doing)
        result, error = pickle.loads(store.get(key))
        store.add(f"{key}/read", 1)
        if error is not None:
            raise error
        return result
    try:
        result = function()
    except Exception as error:
        _tell(store, key, None, _portable(error), _FAREWELL)
        raise
    _tell(store, key, result, None, _HANDOVER)
    return result


def _tell(
    store: dist.Store, key: str, result: object, error: Exception | None, seconds: float
) -> None:
    """Hand over, and let the others read it: the store ends with this process."""
    store.set(key, cast(Any, pickle.dumps((result, error))))  # torch's stubs know text only
    deadline = time.monotonic() + seconds
    while store.add(f"{key}/read", 0) < dist.get_world_size() - 1 and time.monotonic() <= deadline:
        time.sleep(0.01)


def _wait(store: dist.Store, key: str, rank: int, doing: str) -> None:
    """Ask until the key is there. A first rank that died takes the store along, which raises."""
    start = told = time.monotonic()
    pause = 0.01
    # Asked for, since a wait of the store that times out prints two warnings of its own.
    while not store.check([key]):
        time.sleep(pause)
        pause = min(1.0, 1.5 * pause)
        if rank == 1 and time.monotonic() - told > _PATIENCE:
            told = time.monotonic()
            waited = timedelta(seconds=round(told - start))
            print(f"waiting for the first rank, {doing}: {waited}", file=sys.stderr, flush=True)


def _portable(error: Exception) -> Exception:
    """Return an error that survives a pickle: itself, or its text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def sync_gradients(model: nn.Module, mesh: DeviceMesh) -> None:
    """Replace every gradient by its mean over "data" and its sum over "context".

    Call it after the last ``backward`` of a step and before clipping. With a loss that is a mean
    over the rank's samples and global over their tokens
    (:func:`~physicsnemo_flarepp.training.losses.relative_l2_loss`), the result is the gradient of
    the mean over all samples, on every rank and for every shape of the mesh. Use it *instead of*
    DDP or FSDP2; those average over all ranks, so with them multiply the loss by the size of the
    context group.

    Parameters
    ----------
    model : torch.nn.Module
        With equal parameters on all ranks. Parameters without a gradient count as zero and get
        one; those with ``requires_grad=False`` are left alone.
    mesh : torch.distributed.DeviceMesh
        With axes "data" and "context".
    """
    check_axes(mesh)
    if mesh[AXES].size() == 1:
        return
    group = flatten_mesh(mesh).get_group()
    parameters = [p for p in model.parameters() if p.requires_grad]
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    summed = sum_in_buckets(gradients, group, scale=1.0 / mesh["data"].size())
    for parameter, gradient in zip(parameters, summed, strict=True):
        parameter.grad = gradient


def sum_in_buckets(tensors: Sequence[Tensor], group: Group, scale: float = 1.0) -> list[Tensor]:
    """Sum each tensor over the group, in flat fp32 or fp64 buckets of at most 64 MiB.

    The factor is applied before the sum, which then overflows no sooner than the mean.
    """
    if group_size(group) == 1:
        return [tensor * scale for tensor in tensors]
    sums: list[Tensor] = [torch.empty(0)] * len(tensors)
    for bucket in _buckets(tensors):
        dtype = accumulation_dtype(tensors[bucket[0]].dtype)
        flat = torch.cat([tensors[i].flatten().to(dtype) for i in bucket])
        flat = all_reduce(flat * scale, "sum", group)
        parts = flat.split([tensors[i].numel() for i in bucket])
        for i, part in zip(bucket, parts, strict=True):
            sums[i] = part.view(tensors[i].shape).to(tensors[i].dtype)
    return sums


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[int]]:
    """Group positions of tensors that share device and dtype, up to the size of a bucket."""
    kinds: dict[tuple, list[int]] = {}
    for i, tensor in enumerate(tensors):
        kinds.setdefault((tensor.device, accumulation_dtype(tensor.dtype)), []).append(i)
    for (_, dtype), positions in kinds.items():
        bucket: list[int] = []
        room = BUCKET_BYTES
        for i in positions:
            size = tensors[i].numel() * dtype.itemsize
            if bucket and size > room:
                yield bucket
                bucket, room = [], BUCKET_BYTES
            bucket.append(i)
            room -= size
        yield bucket


def shard_bounds(n_tokens: int, group: ProcessGroup) -> tuple[int, int]:
    """Return the range of tokens that this rank owns, for reading it alone from a file.

    First token and one past the last, of the `n_tokens` of a sample over the context group. Shards
    differ by at most one token; the first ranks get the longer ones.
    """
    return split_bounds(n_tokens, dist.get_world_size(group), dist.get_rank(group))


def split_bounds(n_tokens: int, ranks: int, rank: int) -> tuple[int, int]:
    """Return the bounds of part ``rank`` of ``n_tokens`` split over ``ranks``."""
    size, longer = divmod(n_tokens, ranks)
    start = rank * size + min(rank, longer)
    return start, start + size + (rank < longer)


def shard_tokens(x: Tensor, group: ProcessGroup, dim: int = 1) -> Tensor:
    """Return this rank's part of the token axis `dim` of a tensor that every rank holds whole.

    A view, for data that is read whole anyway; :func:`shard_bounds` avoids reading it.
    """
    start, stop = shard_bounds(x.shape[dim], group)
    return x.narrow(dim, start, stop - start)


def gather_tokens(x: Tensor, group: ProcessGroup, dim: int = 1) -> Tensor:
    """Bring the tokens of all ranks together on every rank, for writing or plotting.

    The only function here whose traffic grows with the number of tokens. It is not
    differentiable: losses are computed on shards, with ``group``. Axis `dim` may differ between
    ranks and be empty; the result is in rank order.
    """
    if torch.is_grad_enabled() and x.requires_grad:
        raise ValueError(
            "gather_tokens is not differentiable but x requires a gradient; call it on x.detach(), "
            "and compute losses on the shards, e.g. relative_l2(..., group=group)"
        )
    if dist.get_world_size(group) == 1:
        return x
    sizes = all_gather(torch.tensor(x.shape[dim], device=x.device), group).tolist()
    # Padding to the longest shard lets one collective serve every backend.
    padded = x.new_zeros((max(sizes), *x.movedim(dim, 0).shape[1:]))
    padded[: x.shape[dim]] = x.movedim(dim, 0)
    parts = all_gather(padded, group)
    whole = torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])
    return whole.movedim(0, dim)
