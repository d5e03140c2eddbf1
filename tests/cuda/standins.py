"""CPU stand-ins for torch's four CUDA attention operators that read memory as the kernels do.

No GPU is needed: the operators are registered for CPU tensors, and :func:`emulate` makes the
package choose kernels and parts as on a card of a given compute capability. What kernels take from
strides is taken from strides; what they compute from sizes alone is read from the storage at that
address, and an address outside of it is an error. Sources: ``mem_eff_attention/kernel_backward.h``
and ``kernel_forward.h`` (installed with torch), ``attention_backward.cu``, ``flash_api.cpp`` and
``flash_bwd_kernel.h``.
"""

import math
from collections import Counter

import torch
import torch.nn.functional as F

from physicsnemo_flarepp.ops import attention, kernels, splits

HALF = (torch.float16, torch.bfloat16)
CARDS = {"sm_75": ((7, 5), 40), "sm_80": ((8, 0), 108), "sm_90": ((9, 0), 132)}
calls: Counter = Counter()  # how often each operator ran
_card = "sm_80"
_library = None


class Misread(AssertionError):
    """What the kernel would read is not what the caller meant, or is not there."""


def require(condition, message):
    if not condition:
        raise Misread(message)


def read(tensor, *axes):
    """Read the storage at the addresses that (size, stride) pairs span from a tensor's start."""
    flat = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
    last = tensor.storage_offset() + sum((size - 1) * stride for size, stride in axes)
    require(last < flat.numel(), f"reads element {last} of a storage of {flat.numel()}")
    sizes, strides = zip(*axes, strict=True)
    return flat.as_strided(sizes, strides, tensor.storage_offset())


def check_rows(name, tensor, dtype):
    """Vector loads of 16 bytes: every row starts at a multiple of them."""
    elements = 16 // tensor.element_size()
    require(tensor.dtype == dtype, f"{name} is {tensor.dtype}, not {dtype}")
    require(tensor.stride(-1) == 1, f"{name} has channels {tensor.stride(-1)} apart")
    require(tensor.storage_offset() % elements == 0, f"{name} starts at an unaligned address")
    for axis in range(tensor.dim() - 1):
        aligned = tensor.shape[axis] == 1 or tensor.stride(axis) % elements == 0
        require(aligned, f"{name} has stride {tensor.stride(axis)} along axis {axis}")


def check_inputs(q, k, v, dtypes, dropout, causal):
    require(q.dtype in dtypes, f"{_card} has no kernel for {q.dtype}")
    for name, tensor in (("query", q), ("key", k), ("value", v)):
        check_rows(name, tensor, q.dtype)
        require(tensor.shape[-1] % 8 == 0 and tensor.shape[-1] <= 256, f"head of {name}")
        require(tensor.numel() > 0, f"{name} is empty")
    require(dropout == 0.0 and not causal, "dropout and causal masks are not used")


def scores_of(q, k, scale, bias=None):
    scores = scale * (q.float() @ k.float().mT)
    return scores if bias is None else scores + bias.float()


def heads_inner(x):
    return x.transpose(1, 2).contiguous().transpose(1, 2)


@torch.autocast("cpu", enabled=False)
def attend(q, k, v, scale, bias=None):
    scores = scores_of(q, k, scale, bias)
    lse = scores.logsumexp(-1)
    out = torch.exp(scores - lse[..., None]) @ v.float()
    return heads_inner(out.to(q.dtype)), lse


@torch.autocast("cpu", enabled=False)
def differentiate(grad, q, k, v, delta, lse, scale, bias=None):
    p = torch.exp(scores_of(q, k, scale, bias) - lse[..., None])
    ds = scale * p * (grad.float() @ v.float().mT - delta[..., None])
    grads = ds @ k.float(), ds.mT @ q.float(), p.mT @ grad.float()
    return tuple(heads_inner(g.to(q.dtype)) for g in grads)


def flash_forward(query, key, value, dropout_p=0.0, is_causal=False, debug=False, *, scale=None):
    calls["flash forward"] += 1
    require(CARDS[_card][0] >= (8, 0), f"{_card} has no flash kernel")
    check_inputs(query, key, value, HALF, dropout_p, is_causal)
    out, lse = attend(query, key, value, scale)
    none = query.new_empty(0)
    return out, lse, none, none, query.shape[2], key.shape[2], none, none, none


def flash_backward(
    grad_out, query, key, value, out, logsumexp, cum_q, cum_k, max_q, max_k, dropout_p, is_causal,
    seed, offset, *, scale=None,
):  # fmt: skip
    calls["flash backward"] += 1
    check_inputs(query, key, value, HALF, dropout_p, is_causal)
    require((max_q, max_k) == (query.shape[2], key.shape[2]), "lengths")
    b, h, m, d = query.shape
    # The operator makes these two contiguous, and nothing else.
    grad_out, out = (heads_inner(t) for t in (grad_out, out))
    require(logsumexp.dtype == torch.float32, f"logsumexp is {logsumexp.dtype}")
    lse = read(logsumexp, (b, h * m), (h, m), (m, 1))
    delta = (grad_out.float() * out.float()).sum(-1)
    return differentiate(grad_out, query, key, value, delta, lse, scale)


def check_bias(bias, q, k):
    if bias is not None:
        require(bias.shape == (*q.shape[:3], k.shape[2]), f"bias of shape {tuple(bias.shape)}")
        check_rows("bias", bias, q.dtype)


def efficient_dtypes():
    return (torch.float32, torch.float16, *HALF[1:] * (CARDS[_card][0] >= (8, 0)))


def efficient_forward(
    query, key, value, attn_bias, compute_log_sumexp, dropout_p=0.0, is_causal=False, *, scale=None
):
    calls["efficient forward"] += 1
    check_inputs(query, key, value, efficient_dtypes(), dropout_p, is_causal)
    check_bias(attn_bias, query, key)
    out, lse = attend(query, key, value, scale, attn_bias)
    lse = F.pad(lse, (0, -lse.shape[-1] % 32), value=math.inf)
    none = query.new_empty((), dtype=torch.int64)
    return out, lse, none, none


def efficient_backward(
    grad_out_, query, key, value, attn_bias, out, logsumexp, seed, offset, dropout_p,
    grad_input_mask, is_causal=False, *, scale=None,
):  # fmt: skip
    calls["efficient backward"] += 1
    check_inputs(query, key, value, efficient_dtypes(), dropout_p, is_causal)
    check_bias(attn_bias, query, key)
    check_rows("grad_out", grad_out_, query.dtype)
    check_rows("out", out, query.dtype)
    b, h, m, _ = query.shape
    require(-(-key.shape[2] // 64) < 2**15, "the count of key splits, an int16, wraps around")
    # lse: strides of samples and heads in multiples of 8, rows padded to 32 with +inf.
    rows = -(-m // 32) * 32
    require(logsumexp.shape == (b, h, rows), f"logsumexp of shape {tuple(logsumexp.shape)}")
    require(logsumexp.dtype == torch.float32, f"logsumexp is {logsumexp.dtype}")
    for axis, size in enumerate((b, h)):
        require(size == 1 or logsumexp.stride(axis) % 8 == 0, "LSE is not correctly aligned")
    lse = read(logsumexp, (b, logsumexp.stride(0)), (h, logsumexp.stride(1)), (rows, 1))
    require((lse[..., m:] == math.inf).all(), "padding of logsumexp is not +inf")
    if query.dtype in HALF:  # the kernel computes delta, with rows of all heads side by side
        width = value.shape[3]
        axes = ((b, out.stride(0)), (h, out.stride(1)), (m, h * width), (width, 1))
        seen = read(out, *axes)
    else:  # ATen does
        seen = out
    delta = (grad_out_.float() * seen.float()).sum(-1)
    grads = differentiate(grad_out_, query, key, value, delta, lse[..., :m], scale, attn_bias)
    return *grads, query.new_empty(0)


def _register():
    global _library
    if _library is None:
        _library = torch.library.Library("aten", "IMPL")
        for kind, forward, backward in (
            ("flash", flash_forward, flash_backward),
            ("efficient", efficient_forward, efficient_backward),
        ):
            name = f"_scaled_dot_product_{kind}_attention"
            _library.impl(name, forward, "CPU")
            _library.impl(f"{name}_backward", backward, "CPU")


def emulate(monkeypatch, card):
    """Choose kernels and parts for CPU tensors as for those of a card; count the calls anew."""
    global _card
    _register()
    capability, multiprocessors = CARDS[card]
    _card = card
    monkeypatch.setattr(kernels, "cuda_capability", lambda device: capability)
    for module in (attention, splits):
        monkeypatch.setattr(module, "count_slots", lambda device: 2 * multiprocessors)
    calls.clear()
    return calls
