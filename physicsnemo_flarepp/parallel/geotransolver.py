"""PhysicsNeMo's GeoTransolver on token shards.

Its tokens meet in two places, the slices of every GALE layer and those of the geometry's tokenizer.
Both are sums over tokens, which are completed over the ranks here; the rest acts on a token or on
slices. The layers keep their weights and run their own code around that.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..ops import sum_over_group

_PATH = "physicsnemo.models.geotransolver.geotransolver.GeoTransolver"
# Of PhysicsNeMo's slices: the range of the temperature, and what is added to the weight of each.
_TEMPERATURES = (0.5, 5.0)
_EPSILON = 1e-2


def find_geotransolvers(model: nn.Module) -> list[Any]:
    """Return the GeoTransolvers in a model."""
    return [
        part
        for part in model.modules()
        if f"{type(part).__module__}.{type(part).__qualname__}" == _PATH
    ]


def shard_geotransolver(model: Any, group_name: str | None) -> None:
    """Let a GeoTransolver gather over a group, or None over its own tokens again."""
    given = model._args["__args__"]
    required = {
        "attention_type": ("GALE", "its layers gather otherwise"),
        "structured_shape": (None, "it runs convolutions over the grid"),
        "include_local_features": (False, "its ball queries look for neighbours on other ranks"),
        "plus": (False, "it draws noise at every call"),
        "use_te": (False, "Transformer Engine has no sums over ranks"),
    }
    for name, (value, reason) in required.items():
        if group_name is not None and given.get(name, value) != value:
            raise ValueError(
                f"GeoTransolver with {name}={given[name]!r} cannot be sharded over tokens: "
                f"{reason}; expected {name}={value!r}"
            )
    places = [(block.Attn, "_compute_slices_from_projections") for block in model.blocks]
    if model.context_builder.geometry_tokenizer is not None:
        places.append((model.context_builder.geometry_tokenizer, "_compute_slices"))
    for layer, method in places:
        layer.__dict__.pop(method, None)
        if group_name is not None:
            layer.__dict__[method] = partial(_gather_slices, layer, group_name)


def _gather_slices(
    layer: Any, group_name: str, scores: Tensor, values: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the weights (B, N, H, S) of this rank's tokens and the slices (B, H, S, D) of all."""
    temperature = layer.temperature.clamp(*_TEMPERATURES).to(scores.dtype)
    weights = (scores / temperature).softmax(-1).to(scores.dtype)
    total = sum_over_group(weights.sum(1), group_name) + _EPSILON
    shares = torch.einsum("bnhs,bnhd->bhsd", weights / total[:, None], values)
    return weights, sum_over_group(shares, group_name)
