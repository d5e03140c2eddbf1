"""Linear layers as they are: split products for plain ones, calls for those with adapters or hooks.

Adapters (LoRA), quantisation, parametrisations and hooks replace a layer or act when it is called,
so a layer's weights may be read only while it is nothing but its product.
"""

from typing import TypeGuard

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from ..ops import split_linear, without_autocast


def is_bare(layer: nn.Module) -> TypeGuard[nn.Linear]:
    """Return whether calling a layer is its product alone: a Linear that nothing hooks into."""
    hooks = (
        layer._forward_hooks
        or layer._forward_pre_hooks
        or layer._backward_hooks
        or layer._backward_pre_hooks
        or _has_any_global_hook()
    )
    return type(layer) is nn.Linear and not hooks and "forward" not in layer.__dict__


def apply_in_parts(
    layer: nn.Module,
    x: Float[Tensor, "*rows C"],
    parts: int,
    start: int = 0,
    stop: int | None = None,
) -> tuple[Float[Tensor, "*rows P"], ...]:
    """Return parts ``start:stop`` of ``layer(x).chunk(parts, -1)``, if possible at their cost.

    Of a list of layers, each makes one part.
    """
    stop = parts if stop is None else stop
    if isinstance(layer, nn.ModuleList):
        return tuple(part(x) for part in layer[start:stop])
    if not is_bare(layer):
        return layer(x).chunk(parts, -1)[start:stop]
    weight: Tensor = layer.weight
    bias: Tensor = layer.bias
    if (start, stop) != (0, parts):
        width = len(bias) // parts
        rows = slice(start * width, stop * width)
        weight, bias = weight[rows], bias[rows]
    return split_linear(x, weight, bias, stop - start)


def affine_map(layer: nn.Module, width: int) -> tuple[Float[Tensor, "W C"], Float[Tensor, " W"]]:
    """Return weight and bias of an affine layer; with an adapter, by what it does to the axes.

    For products of weights, where a layer never sees the tokens.
    """
    if is_bare(layer):
        return layer.weight, layer.bias
    like = next(layer.parameters(), torch.empty(0))  # a quantised layer has none
    axes = torch.eye(width + 1, width, dtype=like.dtype, device=like.device)
    with without_autocast(axes):
        rows = layer(axes)
    return (rows[:-1] - rows[-1]).T, rows[-1]
