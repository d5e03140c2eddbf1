"""Per-token projections and normalisations that keep and move less than autograd's own.

All are once differentiable, unless inside
:func:`~physicsnemo_flarepp.ops.plain_operators`.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from .kernels import use_plain, without_autocast


def split_linear(
    x: Float[Tensor, "*rows C"],
    weight: Float[Tensor, "W C"],
    bias: Float[Tensor, " W"],
    parts: int,
) -> tuple[Float[Tensor, "*rows P"], ...]:
    """Apply one Linear and give its output in equal parts, each a tensor of its own.

    Same values and gradients as ``F.linear(x, weight, bias).chunk(parts, -1)``, where ``parts``
    divides W. The backward pass accumulates the parts' gradients with matrix products instead of
    joining them first, which saves a copy as large as the whole output.
    """
    if use_plain():
        return F.linear(x, weight, bias).chunk(parts, -1)
    return _SplitLinear.apply(x, weight, bias, parts)


class _SplitLinear(Function):
    @staticmethod
    def forward(ctx, x, weight, bias, parts):
        # What is saved must be what was multiplied, so the casts of autocast are made by hand.
        dtype = _linear_dtype(x)
        ctx.dtypes = x.dtype, weight.dtype, bias.dtype
        x, weight, bias = x.to(dtype), weight.to(dtype), bias.to(dtype)
        ctx.save_for_backward(x, weight)
        with without_autocast(x):
            pairs = zip(weight.chunk(parts), bias.chunk(parts), strict=True)
            return tuple(F.linear(x, w, b) for w, b in pairs)

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads):
        x, weight = ctx.saved_tensors
        rows = x.reshape(-1, x.shape[-1])
        grads = [g.reshape(-1, g.shape[-1]) for g in grads]
        dx = dw = db = None
        dtype_x, dtype_w, dtype_b = ctx.dtypes
        with without_autocast(x):
            if ctx.needs_input_grad[0]:
                blocks = weight.chunk(len(grads))
                dx = grads[0] @ blocks[0]
                for g, w in zip(grads[1:], blocks[1:], strict=True):
                    dx.addmm_(g, w)
                dx = dx.view(x.shape).to(dtype_x)
            if ctx.needs_input_grad[1]:
                dw = torch.cat([g.T @ rows for g in grads]).to(dtype_w)
            if ctx.needs_input_grad[2]:
                db = torch.cat([g.sum(0) for g in grads]).to(dtype_b)
        return dx, dw, db, None


def _linear_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype in which ``F.linear`` would run on ``x`` under the present autocast."""
    if x.dtype != torch.float64 and torch.is_autocast_enabled(x.device.type):
        return torch.get_autocast_dtype(x.device.type)
    return x.dtype


def unit_scale(x: Float[Tensor, "*rows D"], eps: float, center: bool) -> Float[Tensor, "*rows D"]:
    """Normalise rows to unit mean square, after removing their mean if ``center``.

    What LayerNorm (``center``) and RMSNorm compute before their affine weights, in the dtype of
    ``x``. Unlike theirs, the backward pass needs only the result and one number per row, so the
    input is not kept alive. ``eps`` is added to the mean square.

    Examples
    --------
    >>> unit_scale(torch.tensor([[0.0, 2.0]]), 0.0, center=True)
    tensor([[-1., 1.]])
    """
    if use_plain():
        wide = x.to(torch.promote_types(x.dtype, torch.float32))  # squares overflow fp16
        wide = wide - wide.mean(-1, keepdim=True) if center else wide
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype)
    return _UnitScale.apply(x, eps, center)


class _UnitScale(Function):
    @staticmethod
    def forward(ctx, x, eps, center):
        ctx.center = center
        with without_autocast(x):
            if center:
                unit, _, scale = torch.native_layer_norm(x, x.shape[-1:], None, None, eps)
            else:
                wide = x.to(torch.promote_types(x.dtype, torch.float32))
                square = torch.linalg.vecdot(wide, wide).unsqueeze(-1) / x.shape[-1]
                scale = torch.rsqrt(square + eps)
                unit = (wide * scale).to(x.dtype)
        ctx.save_for_backward(unit, scale)
        return unit

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        unit, scale = ctx.saved_tensors
        with without_autocast(unit):
            if ctx.center:
                # The result is its own normalised input: mean 0, scale 1.
                inner = torch.ops.aten.native_layer_norm_backward(
                    *(grad, unit, unit.shape[-1:], torch.zeros_like(scale), torch.ones_like(scale)),
                    *(None, None, [True, False, False]),
                )[0]
                return inner * scale.to(inner.dtype), None, None
            wide, grad = unit.to(scale.dtype), grad.to(scale.dtype)
            along = torch.linalg.vecdot(grad, wide).unsqueeze(-1) / unit.shape[-1]
            return ((grad - wide * along) * scale).to(unit.dtype), None, None


def rms_norm(
    x: Float[Tensor, "*rows D"], weight: Float[Tensor, " D"], eps: float
) -> Float[Tensor, "*rows D"]:
    """Normalise rows to unit mean square and scale their channels.

    ``F.rms_norm`` for inputs of another dtype than the weights, which is what autocast makes of
    them: in half precision the sum runs in fp32, weights are not rounded, and the result is, once.
    There torch leaves its fused kernel with a warning, or keeps the input in fp32 and returns fp32,
    by device and version; here the input is kept in its own dtype, and is that of the result.

    Examples
    --------
    >>> large = torch.tensor([[30_000.0, -30_000.0]], dtype=torch.float16)
    >>> rms_norm(large, torch.tensor([1.0, 2.0]), 1e-6)
    tensor([[ 1., -2.]], dtype=torch.float16)
    """
    if x.dtype != weight.dtype and not use_plain():
        return _RmsNorm.apply(x, weight, eps)
    dtype = torch.promote_types(x.dtype, weight.dtype)
    with without_autocast(x):
        return F.rms_norm(x.to(dtype), x.shape[-1:], weight.to(dtype), eps).to(x.dtype)


class _RmsNorm(Function):
    @staticmethod
    def forward(ctx, x, weight, eps):
        dtype = torch.promote_types(x.dtype, weight.dtype)
        with without_autocast(x):
            y, scale = torch.ops.aten._fused_rms_norm(
                x.to(dtype), x.shape[-1:], weight.to(dtype), eps
            )
        ctx.save_for_backward(x, weight, scale)
        return y.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        x, weight, scale = ctx.saved_tensors
        needs = ctx.needs_input_grad[:2]
        wide, grad, factor = (t.to(scale.dtype) for t in (x, grad, weight))
        with without_autocast(x):
            if x.device.type == "cuda":
                dx, dw = torch.ops.aten._fused_rms_norm_backward(
                    *(grad, wide, x.shape[-1:], scale, factor, list(needs))
                )
            else:  # torch has that kernel for GPUs only
                unit, inner = wide * scale, grad * factor
                along = torch.linalg.vecdot(inner, unit).unsqueeze(-1) / x.shape[-1]
                dx = (inner - unit * along) * scale
                dw = (grad * unit).reshape(-1, x.shape[-1]).sum(0)
        return dx.to(x.dtype) if needs[0] else None, dw.to(weight.dtype) if needs[1] else None, None


def rotate_rows(x: Float[Tensor, "B H N D"], base: float = 1e4) -> Float[Tensor, "B H N D"]:
    r"""Rotate row n by rotary positions: pair d turns by :math:`n\, b^{-2d/D}`.

    Pairs are channels d and d + D/2. The angles are computed in fp32, or fp64 for fp64 inputs.
    """
    half = x.shape[-1] // 2
    dtype = torch.promote_types(x.dtype, torch.float32)
    channel, row = (torch.arange(n, device=x.device, dtype=dtype) for n in (half, x.shape[2]))
    angle = row[:, None] * base ** (-channel / half)
    a, b = x.to(dtype).split(half, -1)
    cos, sin = angle.cos(), angle.sin()
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1).to(x.dtype)
