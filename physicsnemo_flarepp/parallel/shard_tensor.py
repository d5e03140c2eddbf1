"""Models called with PhysicsNeMo's ShardTensors, sharded over the tokens.

The ShardTensors are opened, the model runs on their local tensors with its encoders merging over
the shards' own group, and the output is a ShardTensor with the sharding of the input. No handler of
``physicsnemo.domain_parallel`` is used or replaced.

Gradients follow PhysicsNeMo's convention for plain parameters that meet ShardTensors: they arrive
complete, already summed over the mesh of the input, so DDP over the data axis needs no scaling of
the loss, and :func:`~physicsnemo_flarepp.parallel.sync_gradients` must not be called.
"""

import math
from typing import Any, TypeGuard

import torch
from physicsnemo.domain_parallel import ShardTensor
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed.tensor import DTensor
from torch.func import functional_call

from ..mixers import Mixer
from .ranks import sum_in_buckets

TOKEN_AXIS = 1


def forward_shards(
    model: Any,
    fx: Tensor,
    embedding: Tensor | None,
    time: Tensor | None,
    token_mask: Tensor | None = None,
    token_weights: Tensor | None = None,
) -> ShardTensor:
    """Run a backbone on ShardTensors; return one in their layout, sharded as they are.

    At least one of ``fx`` and ``embedding`` is sharded over axis 1, the tokens (B, N, F) or the
    rows of a grid (B, *grid, F); the others have the same sharding or are replicated. The
    parameters are plain and equal on all ranks.
    """
    if model.unified_pos and embedding is not None:
        model.check_replaced(fx.shape[0], tuple(embedding.shape))
        embedding = None
    inputs = {"fx": fx, "embedding": embedding, "time": time}
    inputs |= {"token_mask": token_mask, "token_weights": token_weights}
    source = _find_source(inputs)
    mesh, placements = source.device_mesh, source.placements
    axis = next(i for i, placement in enumerate(placements) if placement.is_shard())
    name = mesh.get_group(axis).group_name
    parameters: dict[str, Tensor] = dict(model.named_parameters())
    if any(isinstance(p, DTensor) for p in parameters.values()):
        raise TypeError(
            "the parameters are DTensors (fully_shard or distribute_module), but ShardTensor "
            "inputs need plain ones; for FSDP2 pass local tensors, with enable_context_parallel"
        )
    shards = source._spec.sharding_shapes()[axis]
    row = _row_shape(model, source)
    sizes = [shape[TOKEN_AXIS] * row.numel() for shape in shards]
    here = mesh.get_local_rank(axis)
    local = {key: _to_local(key, value, sizes[here]) for key, value in inputs.items()}
    if model.unified_pos:
        positions = model.positions.split(sizes)[here].to(fx.dtype)
        local["embedding"] = positions.expand(fx.shape[0], -1, -1)
    plain = {k: v for k, v in local.items() if v is not None and not _is_sharded(inputs[k])}
    local |= _sum_gradients(name, plain)
    y = functional_call(_bind(model, name), _sum_gradients(name, parameters), kwargs=local)
    y = y.unflatten(1, (-1, *row)) if y.shape[1] else y.reshape(y.shape[0], 0, *row, y.shape[2])
    shapes = {axis: [torch.Size((*shape[:-1], y.shape[-1])) for shape in shards]}
    return ShardTensor.from_local(y, mesh, placements, sharding_shapes=shapes)


def _is_sharded(value: object) -> TypeGuard[ShardTensor]:
    return isinstance(value, ShardTensor) and any(p.is_shard() for p in value.placements)


def _find_source(inputs: dict[str, Tensor | None]) -> ShardTensor:
    """Find the input whose sharding the output takes, and check that all agree with it."""
    sharded = {key: value for key, value in inputs.items() if _is_sharded(value)}
    if not {"fx", "embedding"} & set(sharded):
        kinds = {key: type(value).__name__ for key, value in inputs.items() if value is not None}
        raise TypeError(
            f"expected fx or embedding as a ShardTensor sharded over axis {TOKEN_AXIS}, got "
            f"{kinds}; call .to_local() on replicated ShardTensors and on DTensors"
        )
    source = sharded["embedding" if "embedding" in sharded else "fx"]
    for key, value in sharded.items():
        shards = [placement for placement in value.placements if placement.is_shard()]
        others = [placement for placement in value.placements if not placement.is_shard()]
        if [p.dim for p in shards] != [TOKEN_AXIS] or not all(p.is_replicate() for p in others):
            raise ValueError(
                f"{key} must be sharded over axis {TOKEN_AXIS}, the tokens, along one axis of its "
                f"mesh and replicated along the others, got placements {value.placements}"
            )
        if value.device_mesh != source.device_mesh or value.placements != source.placements:
            raise ValueError(
                f"{key} is sharded as {value.placements} on {value.device_mesh}, other inputs as "
                f"{source.placements} on {source.device_mesh}; redistribute it"
            )
    return source


def _row_shape(model: Any, source: ShardTensor) -> torch.Size:
    """Return the axes of a grid after the one that is sharded; none for tokens (B, N, F)."""
    row = torch.Size(source.shape[TOKEN_AXIS + 1 : -1])
    grid = tuple(model.structured_shape or ())
    n_tokens = source.shape[TOKEN_AXIS] * row.numel()
    fits = tuple(source.shape[1:-1]) == grid if row else not grid or n_tokens == math.prod(grid)
    if not fits:
        raise ValueError(
            f"a ShardTensor of shape {tuple(source.shape)} is not on the grid structured_shape="
            f"{grid or None} of the model; expected (B, N, F) or (B, *grid, F)"
        )
    return row


def _to_local(key: str, value: Tensor | None, n_tokens: int) -> Tensor | None:
    if not isinstance(value, ShardTensor):
        return value
    if any(placement.is_partial() for placement in value.placements):
        raise ValueError(f"{key} has a pending reduction, {value.placements}; redistribute it")
    local = value.to_local()
    if _is_sharded(value) and local.ndim > 3:
        local = local.flatten(TOKEN_AXIS, -2)
    if _is_sharded(value) and local.shape[TOKEN_AXIS] != n_tokens:
        raise ValueError(
            f"{key} has {local.shape[TOKEN_AXIS]} tokens on this rank, other inputs have "
            f"{n_tokens}; shard them alike"
        )
    return local


def _bind(module: nn.Module, group_name: str) -> nn.Module:
    """Copy the tree of modules, sharing all tensors, with its mixers bound to a group.

    A copy, because the model itself must still serve plain tensors, and because checkpointed
    blocks run again in the backward pass, when a temporary setting would be gone.
    """
    bound: Any = object.__new__(type(module))
    bound.__dict__ = module.__dict__.copy()
    bound._modules = {
        name: None if child is None else _bind(child, group_name)
        for name, child in module._modules.items()
    }
    bound._parameters = module._parameters.copy()  # functional_call writes into it
    if isinstance(bound, Mixer):
        bound.context_group = group_name
    if hasattr(bound, "sums_shared_gradients"):
        bound.sums_shared_gradients = False
        bound.unified_pos = False  # this rank's positions are given
    return bound


def _sum_gradients(group_name: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Pass replicated tensors on, so that their gradients arrive summed over the group."""
    learned = {key: v for key, v in tensors.items() if v.requires_grad}
    if not learned or not torch.is_grad_enabled():
        return tensors
    passed = _SumGradients.apply(group_name, *learned.values())
    return {**tensors, **dict(zip(learned, passed, strict=True))}


class _SumGradients(torch.autograd.Function):
    """Identity whose gradients are summed over a group, all of them in one bucket."""

    @staticmethod
    def forward(ctx, name: str, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.name = name
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx, *gradients: Tensor):
        return None, *sum_in_buckets(gradients, ctx.name)
