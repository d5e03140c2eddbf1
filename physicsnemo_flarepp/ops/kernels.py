"""The fused kernels of torch that give attention with its log-normaliser, and the unfused one.

:func:`select_backend` is the only place that knows which kernel serves which input. All of them
take weights as ``log_weights`` :math:`(B, N)` in fp32 or fp64, -inf for a removed key, or None.

Fused operators save memory and time, and have first derivatives only: second ones and forward mode
raise outside of :func:`plain_operators`.
"""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

_HALF = (torch.float16, torch.bfloat16)
# The CUDA memory-efficient kernel stores its log-normaliser in rows padded to this multiple.
_EFFICIENT_LSE_ALIGNMENT = 32
ALIGNMENT = 8  # of the channels of a head in the CUDA kernels
_WIDEST_HEAD = 256  # of the CUDA kernels
# log w of a removed key where it must stay finite: exact in half precision, and exp of it is 0.
_REMOVED = -(2.0**15)
# Read in forward passes only: the backward pass may run in a thread that does not see it.
_plain: ContextVar[bool] = ContextVar("plain_operators", default=False)


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which normalisers live and partial results are merged."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def is_plain() -> bool:
    """Return whether operators are built from differentiable operations of torch at present."""
    return _plain.get()


def use_plain() -> bool:
    """Return :func:`is_plain`; raise under transforms that fused operators do not have."""
    if is_plain():
        return True
    if not torch.compiler.is_compiling() and (
        torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0
    ):
        raise RuntimeError(
            "the fused operators have no transforms of torch.func (grad, vmap, jvp) and no forward "
            "mode; run the forward pass inside `with physicsnemo_flarepp.ops.plain_operators():`"
        )
    return False


@contextmanager
def plain_operators() -> Iterator[None]:
    """Build every operator from operations that torch differentiates again and in forward mode.

    For ``torch.func``, Hessians and losses with derivatives of the prediction, as in
    physics-informed training. Same values and gradients up to rounding. Attention scores are then
    stored, M numbers per token and head, and steps are slower. Derivatives over the ranks of a
    context group stay first ones.

    The forward pass must run inside; the backward pass may run anywhere. The choice holds for
    models of this package, and for PhysicsNeMo's through
    :func:`~physicsnemo_flarepp.models.view_physicsnemo`, in the calling thread only.

    Examples
    --------
    >>> import torch
    >>> from physicsnemo_flarepp import FlarePP
    >>> model = FlarePP(functional_dim=2, out_dim=1, n_layers=1, n_hidden=16, n_head=2)
    >>> x = torch.rand(1, 50, 2, requires_grad=True)
    >>> with plain_operators():
    ...     u = model(x)
    >>> (du,) = torch.autograd.grad(u.sum(), x, create_graph=True)
    >>> du.square().sum().backward()  # a loss on derivatives
    """
    token = _plain.set(True)
    try:
        yield
    finally:
        _plain.reset(token)


def without_autocast(x: Tensor) -> AbstractContextManager:
    """Return a context in which operations on the device of ``x`` keep the dtypes given."""
    kind = x.device.type
    if not torch.amp.is_autocast_available(kind):
        return nullcontext()
    return torch.autocast(kind, enabled=False)


def select_backend(q: Tensor, k: Tensor, v: Tensor, key_weights: Tensor | None) -> str:
    """Name the kernel that serves these inputs: "cpu", "flash", "efficient" or "math"."""
    if v.shape[-1] != q.shape[-1]:
        return "math"
    capability = cuda_capability(q.device)
    if capability is None:
        return "cpu" if q.device.type == "cpu" else "math"
    in_columns = key_weights is not None and q.dtype in _HALF
    width = q.shape[-1] + in_columns * ALIGNMENT
    if q.dtype == torch.float64 or width % ALIGNMENT or width > _WIDEST_HEAD:
        return "math"
    if capability < (8, 0):  # no flash kernel there, and no bfloat16 in the other
        return "math" if q.dtype == torch.bfloat16 else "efficient"
    return "flash" if q.dtype in _HALF else "efficient"


def cuda_capability(device: torch.device) -> tuple[int, int] | None:
    """Return the compute capability of a CUDA device (Ampere's if there is no driver), or None."""
    if device.type != "cuda":
        return None
    return torch.cuda.get_device_capability(device) if torch.cuda.is_available() else (8, 0)


def _cpu_bias(log_weights: Tensor | None) -> Tensor | None:
    # The kernel adds fp32 to the scores of half inputs, so nothing of the weights is lost.
    return None if log_weights is None else log_weights[:, None, None, :]


def _cpu_forward(q, k, v, log_weights, scale):
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, False, attn_mask=_cpu_bias(log_weights), scale=scale
    )


def _cpu_backward(grad_out, q, k, v, out, lse, log_weights, scale):
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        *(grad_out, q, k, v, out, lse, 0.0, False),
        attn_mask=_cpu_bias(log_weights),
        scale=scale,
    )


def column_unit(scale: float) -> float:
    """Return a power of two near 1 / scale, exact in half precision, to stand in a column of q."""
    return 2.0 ** min(15, max(-14, -round(math.log2(scale))))


def _append_columns(
    q: Tensor, k: Tensor, v: Tensor, log_weights: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Carry the weights in two columns of q and k, for kernels that take no bias or a half one.

    The columns of k are the high and the low part of :math:`\log w / (s c)`, which keep 16 of its
    bits in bfloat16 and 22 in float16; those of q hold c, a power of two near :math:`1/s` and
    exact. The kernel sums in fp32. The columns that follow are zeros up to the alignment; v gets
    as many.
    """
    unit = column_unit(scale)
    target = (log_weights / (scale * unit)).clamp(min=_REMOVED)
    high = target.to(k.dtype)
    columns = torch.stack((high, (target - high).to(k.dtype)), -1)[:, None]
    rest = k.new_zeros((1, 1, 1, ALIGNMENT - 2))
    k = torch.cat((k, columns.expand(-1, k.shape[1], -1, -1), rest.expand(*k.shape[:3], -1)), -1)
    ones = F.pad(q.new_full((1, 1, 1, 2), unit), (0, ALIGNMENT - 2))
    q = torch.cat((q, ones.expand(*q.shape[:3], -1)), -1)
    return q, k, F.pad(v, (0, ALIGNMENT))


def _forward_with_columns(forward, q, k, v, log_weights, scale):
    """Run a forward kernel without bias on weights carried in columns."""
    out, lse = forward(*_append_columns(q, k, v, log_weights, scale), None, scale)
    return out[..., : v.shape[-1]], lse


def _backward_with_columns(backward, grad_out, q, k, v, out, lse, log_weights, scale):
    """Run a backward kernel without bias on weights carried in columns."""
    padded = _append_columns(q, k, v, log_weights, scale)
    grad_out, out = (F.pad(t, (0, ALIGNMENT)) for t in (grad_out, out))
    grads = backward(grad_out, *padded, out, lse, None, scale)
    return tuple(grad[..., :-ALIGNMENT] for grad in grads)


# A CUDA kernel reads memory, not tensors. What it takes from sizes instead of strides, and the 16
# bytes of its vector loads, are established here, whatever views came before.


def _in_aligned_rows(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Copy what vector loads of 16 bytes cannot read: rows or a start off that alignment."""
    return tuple(
        x if _is_aligned(x) else x.clone(memory_format=torch.contiguous_format) for x in tensors
    )


def _is_aligned(x: Tensor) -> bool:
    step = 16 // x.element_size()
    offsets = (x.storage_offset(), *x.stride()[:-1])
    return x.stride(-1) == 1 and all(offset % step == 0 for offset in offsets)


def heads_innermost(x: Tensor) -> Tensor:
    """Store a (B, H, N, D) tensor with N before H; free when the kernel wrote it that way."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def _flash_forward(q, k, v, log_weights, scale):
    if log_weights is not None:
        return _forward_with_columns(_flash_forward, q, k, v, log_weights, scale)
    q, k, v = _in_aligned_rows(q, k, v)
    return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, scale=scale)[:2]


def _flash_backward(grad_out, q, k, v, out, lse, log_weights, scale):
    if log_weights is not None:
        return _backward_with_columns(
            _flash_backward, grad_out, q, k, v, out, lse, log_weights, scale
        )
    q, k, v = _in_aligned_rows(q, k, v)
    unread = torch.empty(0, dtype=torch.uint64, device=q.device)  # dropout state; dropout is 0
    return torch.ops.aten._scaled_dot_product_flash_attention_backward(
        # torch makes grad_out and out contiguous; lse is read as a dense (B, H, M).
        *(grad_out, q, k, v, out, lse.contiguous(), None, None, q.shape[2], k.shape[2]),
        *(0.0, False, unread, unread),
        scale=scale,
    )


def _efficient_bias(q: Tensor, k: Tensor, log_weights: Tensor | None) -> Tensor | None:
    """Return fp32 log-weights in the layout that the memory-efficient kernel reads."""
    if log_weights is None:
        return None
    # It reads rows at aligned addresses; the slice keeps the padding.
    n = k.shape[2]
    bias = F.pad(log_weights, (0, -n % (2 * ALIGNMENT)))[:, None, None, :n]
    return bias.expand(*q.shape[:3], n)


def _efficient_forward(q, k, v, log_weights, scale):
    if log_weights is not None and q.dtype in _HALF:  # its bias would be half too
        return _forward_with_columns(_efficient_forward, q, k, v, log_weights, scale)
    q, k, v = _in_aligned_rows(q, k, v)
    out, lse = torch.ops.aten._scaled_dot_product_efficient_attention(
        q, k, v, _efficient_bias(q, k, log_weights), True, scale=scale
    )[:2]
    return out, lse[..., : q.shape[2]]


def _efficient_backward(grad_out, q, k, v, out, lse, log_weights, scale):
    if log_weights is not None and q.dtype in _HALF:
        return _backward_with_columns(
            _efficient_backward, grad_out, q, k, v, out, lse, log_weights, scale
        )
    bias = _efficient_bias(q, k, log_weights)
    grad_out, q, k, v = _in_aligned_rows(grad_out, q, k, v)
    # In half precision the kernel walks `out` in rows of all heads, whatever its strides.
    out = heads_innermost(out)
    # Padding rows of +inf have zero probability, as the forward kernel writes them.
    lse = F.pad(lse, (0, -q.shape[2] % _EFFICIENT_LSE_ALIGNMENT), value=math.inf).contiguous()
    unread = torch.empty((), dtype=torch.int64, device=q.device)  # dropout state; dropout is 0
    return torch.ops.aten._scaled_dot_product_efficient_attention_backward(
        *(grad_out, q, k, v, bias, out, lse, unread, unread, 0.0, [True, True, True, False]),
        scale=scale,
    )[:3]


def _scores(q, k, log_weights, scale):
    dtype = accumulation_dtype(q.dtype)
    scores = scale * (q.to(dtype) @ k.to(dtype).transpose(-1, -2))
    return scores if log_weights is None else scores + log_weights[:, None, None, :]


def _math_forward(q, k, v, log_weights, scale):
    with without_autocast(q):  # which would round the scores to half precision
        scores = _scores(q, k, log_weights, scale)
        lse = torch.logsumexp(scores, -1)
        shift = lse.masked_fill(lse == -math.inf, math.inf)
        out = torch.exp(scores - shift[..., None]) @ v.to(scores.dtype)
    return out.to(q.dtype), lse


def _math_backward(grad_out, q, k, v, out, lse, log_weights, scale):
    with without_autocast(q):
        scores = _scores(q, k, log_weights, scale)
        dtype = scores.dtype
        p = torch.exp(scores - lse[..., None])
        grad_out = grad_out.to(dtype)
        inner = (grad_out * out.to(dtype)).sum(-1, keepdim=True)
        ds = scale * p * (grad_out @ v.to(dtype).mT - inner)
        grads = ds @ k.to(dtype), ds.mT @ q.to(dtype), p.mT @ grad_out
    return tuple(g.to(q.dtype) for g in grads)


FORWARD = {
    "cpu": _cpu_forward,
    "flash": _flash_forward,
    "efficient": _efficient_forward,
    "math": _math_forward,
}
BACKWARD = {
    "cpu": _cpu_backward,
    "flash": _flash_backward,
    "efficient": _efficient_backward,
    "math": _math_backward,
}
