r"""Scaled dot-product attention that also returns its log-normaliser.

The fused kernels of torch compute the log-normaliser and drop it at the public interface. It is
what makes partial gathers mergeable (:mod:`physicsnemo_flarepp.ops.routing`), so the kernels are
called directly here. :func:`select_backend` is the only place that knows which kernel serves which
input. Both directions are registered as custom operators with fake kernels, so that
``torch.compile`` and ``torch.export`` see one opaque node and no graph break.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from .checks import check_attention, check_results

_HALF = (torch.float16, torch.bfloat16)
# The CUDA memory-efficient kernel stores its log-normaliser in rows padded to this multiple.
_EFFICIENT_LSE_ALIGNMENT = 32
_ALIGNMENT = 8


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Give the dtype in which normalisers live and partial results are merged.

    Examples
    --------
    >>> accumulation_dtype(torch.bfloat16), accumulation_dtype(torch.float64)
    (torch.float32, torch.float64)
    """
    return torch.float64 if dtype == torch.float64 else torch.float32


def select_backend(q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> str:
    """Name the kernel that serves these inputs: "cpu", "flash", "efficient" or "math".

    Parameters
    ----------
    q, k, v : torch.Tensor
        Queries :math:`(B, H, M, D)`, keys and values :math:`(B, H, N, D)`.
    key_mask : torch.Tensor or None
        :math:`(B, N)`, True where a key is real.

    Returns
    -------
    str
        "math", the unfused reference, serves what no fused kernel does: other devices, fp64 on
        CUDA, bfloat16 on GPUs older than Ampere, head sizes off the kernels' alignment, and values
        wider or narrower than the keys.
    """
    if v.shape[-1] != q.shape[-1]:
        return "math"
    if q.device.type == "cpu":
        return "cpu"
    if q.device.type == "cuda" and q.dtype != torch.float64:
        if q.shape[-1] % _ALIGNMENT or q.shape[-1] > 256:
            return "math"
        if _older_than_ampere(q.device):  # no flash kernel there, and no bfloat16 in the other
            return "math" if q.dtype == torch.bfloat16 else "efficient"
        # The flash kernel takes no mask; the memory-efficient one serves every dtype with one.
        return "flash" if q.dtype in _HALF and key_mask is None else "efficient"
    return "math"


def _older_than_ampere(device: torch.device) -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability(device) < (8, 0)


def attention_with_lse(
    q: Float[Tensor, "B H M D"],
    k: Float[Tensor, "B H N D"],
    v: Float[Tensor, "B H N E"],
    *,
    scale: float | None = None,
    key_mask: Bool[Tensor, "B N"] | None = None,
) -> tuple[Float[Tensor, "B H M E"], Float[Tensor, "B H M"]]:
    r"""Softmax attention and the logarithm of its normaliser.

    .. math::

        L_m = \log \sum_n \exp(s\, q_m \cdot k_n), \qquad
        O_m = \sum_n \exp(s\, q_m \cdot k_n - L_m)\, v_n

    Both results are differentiable. A row without any key (an empty key set, or a sample whose
    mask is False everywhere) gives :math:`O = 0` and :math:`L = -\infty`, with zero gradients.

    Parameters
    ----------
    q : torch.Tensor
        Queries of shape :math:`(B, H, M, D)`.
    k, v : torch.Tensor
        Keys and values of shape :math:`(B, H, N, D)`, of the dtype and device of ``q``.
    scale : float, optional
        The factor :math:`s`. Default :math:`D^{-1/2}`.
    key_mask : torch.Tensor, optional
        Boolean, shape :math:`(B, N)`; False removes a key.

    Returns
    -------
    tuple[torch.Tensor, torch.Tensor]
        Output of shape :math:`(B, H, M, D)` in the dtype of ``q`` and the natural-log normaliser
        of shape :math:`(B, H, M)`, contiguous, in fp32 (fp64 for fp64 inputs).

    Examples
    --------
    >>> q, k, v = torch.zeros(1, 1, 1, 4), torch.zeros(1, 1, 3, 4), torch.ones(1, 1, 3, 4)
    >>> out, lse = attention_with_lse(q, k, v)
    >>> out[0, 0, 0].tolist(), round(lse.exp().item(), 3)
    ([1.0, 1.0, 1.0, 1.0], 3.0)
    """
    if not torch.compiler.is_compiling():
        check_attention(q, k, v, scale, key_mask)
    return _attention(q, k, v, key_mask, q.shape[-1] ** -0.5 if scale is None else scale)


def attention_backward(
    grad_out: Float[Tensor, "B H M E"],
    q: Float[Tensor, "B H M D"],
    k: Float[Tensor, "B H N D"],
    v: Float[Tensor, "B H N E"],
    out: Float[Tensor, "B H M E"],
    lse: Float[Tensor, "B H M"],
    *,
    scale: float,
    key_mask: Bool[Tensor, "B N"] | None = None,
) -> tuple[Float[Tensor, "B H M D"], Float[Tensor, "B H N D"], Float[Tensor, "B H N E"]]:
    r"""Gradients of attention with respect to ``q``, ``k`` and ``v``.

    ``out`` and ``lse`` may come from a larger key set of which ``k``, ``v`` are one shard: the
    kernel rebuilds :math:`P = \exp(S - L)` from ``lse`` and subtracts
    :math:`\langle \bar{O}, O\rangle`, so with the *global* pair it differentiates the globally
    normalised attention (paper, appendix A "Backward pass"). The gradient of ``q`` is then the
    shard's share of a sum.

    Parameters
    ----------
    grad_out : torch.Tensor
        Gradient of the loss with respect to ``out``, shape :math:`(B, H, M, D)`.
    q, k, v, scale, key_mask
        As in :func:`attention_with_lse`.
    out, lse : torch.Tensor
        What the forward pass returned, or the merged pair of all shards.

    Returns
    -------
    tuple[torch.Tensor, torch.Tensor, torch.Tensor]
        Gradients shaped like ``q``, ``k`` and ``v``; those of ``k`` and ``v`` are stored with the
        heads innermost, the layout in which projections want them.
    """
    if not torch.compiler.is_compiling():
        check_attention(q, k, v, scale, key_mask)
        check_results(q, v, grad_out, out, lse)
    return _attention_backward(grad_out, q, k, v, out, lse, key_mask, scale)


@torch.library.custom_op("flarepp::attention", mutates_args=())
def _attention(
    q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    # The CPU kernel dies with SIGFPE on an empty axis, so no kernel is asked.
    if q.numel() == 0 or k.numel() == 0:
        return _empty_result(q, v)
    forward = _FORWARD[select_backend(q, k, v, key_mask)]
    out, lse = forward(q, k, v, key_mask, scale)
    if key_mask is not None:
        # Kernels differ on fully masked rows (zeros, lse = 0, or NaN): define them here.
        empty = ~key_mask.any(-1)[:, None, None]
        out = out.masked_fill(empty[..., None], 0.0)
        lse = lse.masked_fill(empty, -math.inf)
    return out.contiguous(), lse.contiguous()


@_attention.register_fake
def _(q, k, v, key_mask, scale):
    return (
        q.new_empty((*q.shape[:3], v.shape[3])),
        q.new_empty(q.shape[:3], dtype=accumulation_dtype(q.dtype)),
    )


def _empty_result(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    out = q.new_zeros((*q.shape[:3], v.shape[3]))
    return out, q.new_full(q.shape[:3], -math.inf, dtype=accumulation_dtype(q.dtype))


@torch.library.custom_op("flarepp::attention_backward", mutates_args=())
def _attention_backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    key_mask: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    if q.numel() == 0 or k.numel() == 0:
        return torch.zeros(q.shape, dtype=q.dtype, device=q.device), *map(_zeros_head_inner, (k, v))
    # exp(S - inf) = 0 where exp(S + inf) would be NaN: rows that saw no key have no gradient.
    lse = lse.masked_fill(lse == -math.inf, math.inf)
    backward = _BACKWARD[select_backend(q, k, v, key_mask)]
    dq, dk, dv = backward(grad_out, q, k, v, out, lse, key_mask, scale)
    return dq.contiguous(), _head_inner(dk), _head_inner(dv)


@_attention_backward.register_fake
def _(grad_out, q, k, v, out, lse, key_mask, scale):
    return q.new_empty(q.shape), _zeros_head_inner(k), _zeros_head_inner(v)


def _head_inner(x: Tensor) -> Tensor:
    """Store a (B, H, N, D) tensor with N before H; free when the kernel wrote it that way."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def _zeros_head_inner(x: Tensor) -> Tensor:
    b, h, n, d = x.shape
    return x.new_zeros((b, n, h, d)).transpose(1, 2)


def _save_for_backward(ctx, inputs, output) -> None:
    q, k, v, key_mask, ctx.scale = inputs
    ctx.save_for_backward(q, k, v, key_mask, *output)
    ctx.set_materialize_grads(False)


def _autograd_backward(ctx, grad_out: Tensor | None, grad_lse: Tensor | None):
    q, k, v, key_mask, out, lse = ctx.saved_tensors
    if grad_out is None and grad_lse is None:
        return None, None, None, None, None
    if grad_out is None:
        grad_out = torch.zeros_like(out)
    if grad_lse is None:
        grads = _attention_backward(grad_out, q, k, v, out, lse, key_mask, ctx.scale)
        return *grads, None, None
    # dS = P * (dO v - <dO, O> + dL). Columns of zeros appended to q, k, v leave S and P alone;
    # with dO = 1 and O = -dL in the first of them the kernel's own <dO, O> picks up the term.
    pad = (0, _ALIGNMENT)
    grad_out, out = F.pad(grad_out, pad), F.pad(out, pad)
    grad_out[..., -_ALIGNMENT] = 1.0
    out[..., -_ALIGNMENT] = -grad_lse.masked_fill(lse == -math.inf, 0.0).to(out.dtype)
    q, k, v = F.pad(q, pad), F.pad(k, pad), F.pad(v, pad)
    grads = _attention_backward(grad_out, q, k, v, out, lse, key_mask, ctx.scale)
    return *(g[..., :-_ALIGNMENT] for g in grads), None, None


_attention.register_autograd(_autograd_backward, setup_context=_save_for_backward)


def _bias(q: Tensor, k: Tensor, key_mask: Tensor | None) -> Tensor | None:
    """Turn the mask into an additive row that broadcasts over heads and queries."""
    if key_mask is None:
        return None
    n = k.shape[2]
    # The memory-efficient kernel reads rows at aligned addresses; the slice keeps the padding.
    bias = q.new_zeros((q.shape[0], 1, 1, n + -n % (2 * _ALIGNMENT)))[..., :n]
    bias.masked_fill_(~key_mask[:, None, None, :], -math.inf)
    return bias


def _cpu_forward(q, k, v, key_mask, scale):
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, False, attn_mask=_bias(q, k, key_mask), scale=scale
    )


def _cpu_backward(grad_out, q, k, v, out, lse, key_mask, scale):
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad_out, q, k, v, out, lse, 0.0, False, attn_mask=_bias(q, k, key_mask), scale=scale
    )


def _flash_forward(q, k, v, key_mask, scale):
    return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, scale=scale)[:2]


def _flash_backward(grad_out, q, k, v, out, lse, key_mask, scale):
    unread = torch.empty(0, dtype=torch.uint64, device=q.device)  # dropout state; dropout is 0
    return torch.ops.aten._scaled_dot_product_flash_attention_backward(
        *(grad_out, q, k, v, out, lse, None, None, q.shape[2], k.shape[2]),
        *(0.0, False, unread, unread),
        scale=scale,
    )


def _efficient_forward(q, k, v, key_mask, scale):
    bias = _bias(q, k, key_mask)
    if bias is not None:
        bias = bias.expand(*q.shape[:3], k.shape[2])
    out, lse = torch.ops.aten._scaled_dot_product_efficient_attention(
        q, k, v, bias, True, scale=scale
    )[:2]
    return out, lse[..., : q.shape[2]]


def _efficient_backward(grad_out, q, k, v, out, lse, key_mask, scale):
    bias = _bias(q, k, key_mask)
    if bias is not None:
        bias = bias.expand(*q.shape[:3], k.shape[2])
    # Padding rows of +inf have zero probability, as the forward kernel writes them.
    lse = F.pad(lse, (0, -q.shape[2] % _EFFICIENT_LSE_ALIGNMENT), value=math.inf)
    unread = torch.empty((), dtype=torch.int64, device=q.device)  # dropout state; dropout is 0
    return torch.ops.aten._scaled_dot_product_efficient_attention_backward(
        *(grad_out, q, k, v, bias, out, lse, unread, unread, 0.0, [True, True, True, False]),
        scale=scale,
    )[:3]


def _scores(q, k, key_mask, scale):
    dtype = accumulation_dtype(q.dtype)
    scores = scale * (q.to(dtype) @ k.to(dtype).transpose(-1, -2))
    return (
        scores if key_mask is None else scores.masked_fill(~key_mask[:, None, None, :], -math.inf)
    )


def _math_forward(q, k, v, key_mask, scale):
    scores = _scores(q, k, key_mask, scale)
    lse = torch.logsumexp(scores, -1)
    shift = lse.masked_fill(lse == -math.inf, math.inf)
    out = torch.exp(scores - shift[..., None]) @ v.to(scores.dtype)
    return out.to(q.dtype), lse


def _math_backward(grad_out, q, k, v, out, lse, key_mask, scale):
    scores = _scores(q, k, key_mask, scale)
    dtype = scores.dtype
    p = torch.exp(scores - lse[..., None])
    grad_out = grad_out.to(dtype)
    inner = (grad_out * out.to(dtype)).sum(-1, keepdim=True)
    ds = scale * p * (grad_out @ v.to(dtype).transpose(-1, -2) - inner)
    grads = ds @ k.to(dtype), ds.transpose(-1, -2) @ q.to(dtype), p.transpose(-1, -2) @ grad_out
    return tuple(g.to(q.dtype) for g in grads)


_FORWARD = {
    "cpu": _cpu_forward,
    "flash": _flash_forward,
    "efficient": _efficient_forward,
    "math": _math_forward,
}
_BACKWARD = {
    "cpu": _cpu_backward,
    "flash": _flash_backward,
    "efficient": _efficient_backward,
    "math": _math_backward,
}
