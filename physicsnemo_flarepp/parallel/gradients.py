"""Summing the partial gradients of replicated parameters."""

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.distributed import DeviceMesh

from ..ops import all_reduce, group_size
from ..ops.collectives import Group
from ..ops.kernels import accumulation_dtype
from .ranks import AXES, check_axes, flatten_mesh

BUCKET_BYTES = 2**26


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


def _buckets(tensors: Iterable[Tensor]) -> Iterator[list[int]]:
    """Group positions of tensors that share device and dtype, up to the size of a bucket."""
    kinds: dict[tuple, list[int]] = {}
    tensors = list(tensors)
    for i, tensor in enumerate(tensors):
        kinds.setdefault((tensor.device, accumulation_dtype(tensor.dtype)), []).append(i)
    for (_, dtype), positions in kinds.items():
        bucket: list[int] = []
        size = 0
        for i in positions:
            grown = size + tensors[i].numel() * dtype.itemsize
            if bucket and grown > BUCKET_BYTES:
                yield bucket
                bucket, grown = [], tensors[i].numel() * dtype.itemsize
            bucket.append(i)
            size = grown
        yield bucket
