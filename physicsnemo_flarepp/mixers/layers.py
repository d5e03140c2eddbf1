"""Parts of mixers: norms, residual layers, Linears as they are, sums over tokens.

Adapters (LoRA), quantisation, parametrisations and hooks replace a layer or act when it is called,
so a layer's weights may be read only while it is nothing but its product.
"""

from typing import TypeGuard

import torch
from jaxtyping import Float
from physicsnemo.nn import get_activation
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from ..ops import rms_norm, unit_scale, without_autocast
from ..ops.attention import TokenWeights

EPSILON = {"layer": 1e-5, "rms": 1e-6}
# The published runs use the approximation everywhere in the backbone.
_GELUS = {"gelu": "tanh", "gelu_exact": "none"}


class RMSNorm(nn.RMSNorm):
    """torch's RMSNorm in the dtype of its input, under autocast too."""

    eps: float
    weight: nn.Parameter

    def forward(self, x: Float[Tensor, "*rows C"]) -> Float[Tensor, "*rows C"]:
        """Normalise and scale each row."""
        return rms_norm(x, self.weight, self.eps)


def make_norm(kind: str, width: int) -> nn.Module:
    """Build "layer" (LayerNorm, for fp32 runs) or "rms" (RMSNorm, for mixed precision)."""
    if kind not in EPSILON:
        raise ValueError(f"norm must be one of {sorted(EPSILON)}, got {kind!r}")
    cls = nn.LayerNorm if kind == "layer" else RMSNorm
    return cls(width, eps=EPSILON[kind])


def normalize_rows(kind: str, x: Float[Tensor, "B H N D"]) -> Float[Tensor, "B H N D"]:
    """Normalise the rows of each head as :func:`make_norm` does, without affine weights.

    Works in the projections' own layout, heads innermost, so nothing is copied.
    """
    rows = unit_scale(x.transpose(1, 2), EPSILON[kind], center=kind == "layer")
    return rows.transpose(1, 2)


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


def sum_tokens(
    shares: Float[Tensor, "B N H G"],
    value: Float[Tensor, "B N *width"],
    token_weights: TokenWeights | None,
) -> tuple[Float[Tensor, "B H G E"], Float[Tensor, "B H G"]]:
    r"""Return :math:`\sum_n w_n f_n` and :math:`\sum_n w_n` of each slice, in the shares' dtype.

    :math:`w_n` is the share of token n in the slice, times the weight of the token if it has one;
    values are of each head, :math:`(B, N, H, D)`, or of all, :math:`(B, N, C)`. The sum over many
    tokens overflows in half precision, so shares come in fp32 or fp64.
    """
    if token_weights is not None:
        shares = shares * token_weights[:, :, None, None]
    equation = "bnhg,bnhd->bhgd" if value.ndim == 4 else "bnhg,bnc->bhgc"
    with without_autocast(value):
        return torch.einsum(equation, shares, value.to(shares.dtype)), shares.sum(1)


def make_activation(act: str) -> nn.Module:
    """Build an activation: "gelu" (tanh), "gelu_exact", or one by PhysicsNeMo's name."""
    name = act.lower() if isinstance(act, str) else act
    if name in _GELUS:
        return nn.GELU(_GELUS[name])
    try:
        return get_activation(act)
    except (KeyError, AttributeError) as error:
        message = error.args[0] if isinstance(error, KeyError) else "expected a string"
        raise ValueError(f"act={act!r} is not an activation: {message}") from error


class ResidualLayer(nn.Module):
    r""":math:`x + \mathrm{act}(W x + b)`, of width ``dim``."""

    def __init__(self, dim: int, act: str) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, dim)
        self.act = make_activation(act)

    def forward(self, x: Float[Tensor, "*rows C"]) -> Float[Tensor, "*rows C"]:
        """Apply the layer row by row."""
        return x + self.act(self.linear(x))


class ResidualMLP(nn.Module):
    r"""``n_layers`` times :math:`x + \mathrm{act}(W x + b)`, then :math:`x + W x + b`.

    Keys, values and the feed-forward of FLARE's first paper are of this form, with four layers.
    """

    def __init__(self, dim: int, n_layers: int, act: str) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(ResidualLayer(dim, act) for _ in range(n_layers)))
        self.output = nn.Linear(dim, dim)

    def forward(self, x: Float[Tensor, "*rows C"]) -> Float[Tensor, "*rows C"]:
        """Apply the layers row by row."""
        x = self.layers(x)
        return x + self.output(x)
