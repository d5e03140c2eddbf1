r"""Scaled dot-product attention that also returns its log-normaliser.

The fused kernels of torch compute the log-normaliser and drop it at the public interface. It is
what makes partial gathers mergeable (:mod:`physicsnemo_flarepp.ops.merging`), so the kernels are
called directly (:mod:`physicsnemo_flarepp.ops.kernels`). Weights of keys are one additive
:math:`\log w` in all of them, and a mask is the weights 0 and 1. Both directions are registered as
custom operators with fake kernels, so that ``torch.compile`` and ``torch.export`` see one opaque
node and no graph break. Inside it, where sizes are numbers, the longer axis is split into as many
parts as fill the device (:mod:`physicsnemo_flarepp.ops.splits`).
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from .checks import check_attention, check_results
from .kernels import (
    ALIGNMENT,
    BACKWARD,
    FORWARD,
    accumulation_dtype,
    column_unit,
    heads_innermost,
    select_backend,
    use_plain,
)
from .merging import merge_partials
from .splits import (
    add_shares,
    call_in_parts,
    check_splits,
    choose_splits,
    count_slots,
    join_tokens,
    slots_at_most,
)

# What tokens count for in a gather: a measure of at least 0, or a mask, which is 0 and 1.
TokenWeights = Float[Tensor, "B N"] | Bool[Tensor, "B N"]


def attention_with_lse(
    q: Float[Tensor, "B H M D"],
    k: Float[Tensor, "B H N D"],
    v: Float[Tensor, "B H N E"],
    *,
    scale: float | None = None,
    key_mask: Bool[Tensor, "B N"] | None = None,
    key_weights: TokenWeights | None = None,
    splits: int | None = None,
) -> tuple[Float[Tensor, "B H M E"], Float[Tensor, "B H M"]]:
    r"""Softmax attention and the logarithm of its normaliser.

    .. math::

        L_m = \log \sum_n w_n \exp(s\, q_m \cdot k_n), \qquad
        O_m = \sum_n w_n \exp(s\, q_m \cdot k_n - L_m)\, v_n

    the softmax against the measure that puts :math:`w_n` on key n, 1 by default. Both results are
    differentiable, also with respect to the weights; a key of weight 0 is removed, and its weight
    has the gradient 0. A row without any key (an empty key set, or a sample whose weights are all
    0) gives :math:`O = 0` and :math:`L = -\infty`, with zero gradients.

    The weights enter as they are, so :math:`L` of key sets weighted alike can be compared and
    merged; a factor on all weights of a sample adds its logarithm to :math:`L` and leaves
    :math:`O` alone.

    Parameters
    ----------
    q, k, v : torch.Tensor
        Queries :math:`(B, H, M, D)`, keys and values :math:`(B, H, N, D)` of one dtype and device.
    scale : float, optional
        The factor :math:`s`. Default :math:`D^{-1/2}`.
    key_mask : torch.Tensor, optional
        Boolean, shape :math:`(B, N)`; False removes a key: the weights 0 and 1.
    key_weights : torch.Tensor, optional
        Shape :math:`(B, N)`, of any floating dtype, finite and at least 0; or boolean as
        ``key_mask``. On the host bad values raise; other devices are not waited for, and NaN or
        negative weights give NaN.
    splits : int, optional
        Parts into which the longer of the axes M and N is split, for more parallel work; by
        default what fills the device. The result is the same up to rounding.

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
        check_attention(q, k, v, scale, key_mask, key_weights)
        check_splits(splits)
    weights = join_weights(key_mask, key_weights)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if use_plain():
        return _attend(q, k, v, weights, scale, "math")
    return _attention(q, k, v, weights, scale, splits)


def attention_of_part(
    q: Float[Tensor, "B H M D"],
    k: Float[Tensor, "B H N D"],
    v: Float[Tensor, "B H N E"],
    whole: tuple[Float[Tensor, "B H M E"], Float[Tensor, "B H M"]],
    *,
    scale: float | None = None,
    key_weights: TokenWeights | None = None,
) -> tuple[Float[Tensor, "B H M E"], Float[Tensor, "B H M"]]:
    """Return the known attention over a key set, to be differentiated with respect to a part of it.

    Gradients of the result reach ``q``, ``k``, ``v`` and the weights as they would in the attention
    over all keys: one fused backward pass, and no forward pass.
    """
    if not torch.compiler.is_compiling():
        check_attention(q, k, v, scale, key_weights=key_weights)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return _PartOfKnown.apply(q, k, v, key_weights, scale, None, *whole)


class _PartOfKnown(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, q, k, v, weights, scale: float, splits: int | None, out, lse
    ) -> tuple[Tensor, Tensor]:
        ctx.scale, ctx.splits = scale, splits
        ctx.save_for_backward(q, k, v, weights, out.to(q.dtype), lse)
        ctx.set_materialize_grads(False)
        return out.view_as(out), lse.view_as(lse)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out: Tensor | None, grad_lse: Tensor | None):
        if grad_out is not None:
            grad_out = grad_out.to(ctx.saved_tensors[0].dtype)
        return *_autograd_backward(ctx, grad_out, grad_lse), None, None


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
    key_weights: TokenWeights | None = None,
    splits: int | None = None,
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
    q, k, v, scale, key_mask, key_weights, splits
        As in :func:`attention_with_lse`.
    out, lse : torch.Tensor
        What the forward pass returned, or the merged pair of all shards.

    Returns
    -------
    tuple[torch.Tensor, torch.Tensor, torch.Tensor]
        Gradients shaped like ``q``, ``k`` and ``v``, stored with the heads innermost, the layout in
        which projections want them.
    """
    if not torch.compiler.is_compiling():
        check_attention(q, k, v, scale, key_mask, key_weights)
        check_results(q, v, grad_out, out, lse)
        check_splits(splits)
    weights = join_weights(key_mask, key_weights)
    return _attention_backward(grad_out, q, k, v, out, lse, weights, scale, splits)


def join_weights(
    mask: Bool[Tensor, "B N"] | None, weights: TokenWeights | None
) -> TokenWeights | None:
    """Return the weights, 0 where the mask is False; a mask alone is weights itself."""
    if weights is None or mask is None:
        return mask if weights is None else weights
    return weights.masked_fill(~mask, 0)


def may_split(q: Tensor, k: Tensor, v: Tensor, splits: int | None) -> bool:
    """Return whether a call on unweighted keys splits its tokens here, forward or backward.

    While a graph is compiled the number of tokens is a symbol: the operator decides when it runs,
    and is used wherever some number would be split. An exported graph runs anywhere and consists of
    torch's own operators.
    """
    if torch.compiler.is_exporting() or splits == 1:
        return False
    if splits is not None or torch.compiler.is_compiling():
        fused = q.device.type == "cpu" or q.shape[-1] % ALIGNMENT == 0
        starved = splits is not None or 2 * q.shape[0] * q.shape[1] <= slots_at_most(q.device)
        unbounded = q.device.type == "cuda" and q.dtype == torch.float32  # see MOST_KEYS
        return fused and (starved or unbounded)
    learned = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    backend = select_backend(q, k, v, None)
    directions = (False, True) if learned else (False,)
    return any(_splits(q, k, backend, backward, None) > 1 for backward in directions)


def _splits(q: Tensor, k: Tensor, backend: str, backward: bool, wanted: int | None) -> int:
    sizes = (*q.shape[:3], k.shape[2])
    return choose_splits(backend, backward, sizes, count_slots(q.device), wanted)


@torch.library.custom_op("flarepp::attention", mutates_args=())
def _attention(
    q: Tensor, k: Tensor, v: Tensor, weights: Tensor | None, scale: float, splits: int | None
) -> tuple[Tensor, Tensor]:
    # The CPU kernel dies with SIGFPE on an empty axis, so no kernel is asked.
    if q.numel() == 0 or k.numel() == 0:
        out, lse = _empty_result(q, v)
        return heads_innermost(out), lse
    q, k, v = map(_channel_inner, (q, k, v))
    backend = select_backend(q, k, v, weights)
    n_parts = _splits(q, k, backend, False, splits)

    def attend(q, k, v, weights):
        return _attend(q, k, v, weights, scale, backend)

    if n_parts == 1:
        out, lse = attend(q, k, v, weights)
    elif k.shape[2] >= q.shape[2]:
        parts = call_in_parts(attend, (q, k, v, weights), (None, 2, 2, 1), n_parts)
        out, lse = merge_partials(
            *(torch.cat(each, 1).movedim(1, 0) for each in zip(*parts, strict=True))
        )
    else:
        parts = call_in_parts(attend, (q, k, v, weights), (2, None, None, None), n_parts)
        out, lse = (join_tokens(each) for each in zip(*parts, strict=True))
    return heads_innermost(out), lse.contiguous()


@_attention.register_fake
def _(q, k, v, weights, scale, splits):
    b, h, m, _ = q.shape
    return (
        q.new_empty((b, m, h, v.shape[3])).transpose(1, 2),
        q.new_empty((b, h, m), dtype=accumulation_dtype(q.dtype)),
    )


def _attend(
    q: Tensor, k: Tensor, v: Tensor, weights: Tensor | None, scale: float, backend: str
) -> tuple[Tensor, Tensor]:
    if q.numel() == 0 or k.numel() == 0:
        return _empty_result(q, v)
    log_weights = _log_weights(weights, q.dtype)
    if log_weights is None:
        return FORWARD[backend](q, k, v, None, scale)
    # Kernels differ on rows without any key (zeros, lse = 0, or NaN), and derivatives are NaN
    # there: let such rows see their keys, then drop what they saw.
    empty = (log_weights == -math.inf).all(-1)
    out, lse = FORWARD[backend](q, k, v, log_weights.masked_fill(empty[:, None], 0.0), scale)
    empty = empty[:, None, None]
    return out.masked_fill(empty[..., None], 0.0), lse.masked_fill(empty, -math.inf)


def _log_weights(weights: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Return what is added to the scores of each key, in fp32 or fp64; -inf removes it."""
    if weights is None:
        return None
    dtype = accumulation_dtype(dtype)
    wide = weights.to(torch.promote_types(weights.dtype, dtype))
    if not weights.requires_grad:  # as in our own operators; what follows is for plain ones
        return wide.log().to(dtype)
    removed = weights == 0  # where the derivative of the logarithm is infinite
    return wide.masked_fill(removed, 1.0).log().masked_fill(removed, -math.inf).to(dtype)


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
    weights: Tensor | None,
    scale: float,
    splits: int | None,
) -> tuple[Tensor, Tensor, Tensor]:
    if q.numel() == 0 or k.numel() == 0:
        return _zeros_head_inner(q), _zeros_head_inner(k), _zeros_head_inner(v)
    grad_out, q, k, v, out = map(_channel_inner, (grad_out, q, k, v, out))
    backend = select_backend(q, k, v, weights)
    n_parts = _splits(q, k, backend, True, splits)
    # exp(S - inf) = 0 where exp(S + inf) would be NaN: rows that saw no key have no gradient.
    lse = lse.masked_fill(lse == -math.inf, math.inf)

    def differentiate(grad_out, q, k, v, out, lse, weights):
        log_weights = _log_weights(weights, q.dtype)
        return BACKWARD[backend](grad_out, q, k, v, out, lse, log_weights, scale)

    arguments = (grad_out, q, k, v, out, lse, weights)
    if n_parts == 1:
        dq, dk, dv = differentiate(*arguments)
    elif k.shape[2] >= q.shape[2]:
        parts = call_in_parts(differentiate, arguments, (None, None, 2, 2, None, None, 1), n_parts)
        dqs, dks, dvs = zip(*parts, strict=True)
        dq, dk, dv = add_shares(dqs), join_tokens(dks), join_tokens(dvs)
    else:
        parts = call_in_parts(differentiate, arguments, (2, 2, None, None, 2, 2, None), n_parts)
        dqs, dks, dvs = zip(*parts, strict=True)
        dq, dk, dv = join_tokens(dqs), add_shares(dks), add_shares(dvs)
    return heads_innermost(dq), heads_innermost(dk), heads_innermost(dv)


@_attention_backward.register_fake
def _(grad_out, q, k, v, out, lse, weights, scale, splits):
    return _zeros_head_inner(q), _zeros_head_inner(k), _zeros_head_inner(v)


def _channel_inner(x: Tensor) -> Tensor:
    """Store the channels of a row side by side, as kernels expect; the CPU's do not look."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _zeros_head_inner(x: Tensor) -> Tensor:
    b, h, n, d = x.shape
    return x.new_zeros((b, n, h, d)).transpose(1, 2)


def _save_for_backward(ctx, inputs, output) -> None:
    q, k, v, weights, ctx.scale, ctx.splits = inputs
    ctx.save_for_backward(q, k, v, weights, *output)
    ctx.set_materialize_grads(False)


def _autograd_backward(ctx, grad_out: Tensor | None, grad_lse: Tensor | None):
    if grad_out is None and grad_lse is None:
        return None, None, None, None, None, None
    q, k, v, weights, out, lse = ctx.saved_tensors
    if grad_out is None:
        grad_out = torch.zeros_like(out)
    known = (q, k, v, weights, out, lse, ctx.scale, ctx.splits)
    return *all_gradients(grad_out, grad_lse, *known, ctx.needs_input_grad[3]), None, None


def all_gradients(
    grad_out: Tensor,
    grad_lse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    weights: Tensor | None,
    out: Tensor,
    lse: Tensor,
    scale: float,
    splits: int | None,
    of_weights: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return the gradients of q, k, v and, if asked for, of the weights, in one backward pass."""
    known = (weights, scale, splits)
    if grad_lse is None and not of_weights:
        return *_attention_backward(grad_out, q, k, v, out, lse, *known), None
    # dS = P * (dO v - <dO, O> + dL). Columns of zeros appended to q, k, v leave S and P alone;
    # with <dO, O> = -dL in the first of them the kernel's own sum picks up the term. In half
    # precision dL needs a unit, so that it is in range, and a second column for what was rounded.
    pad = (0, ALIGNMENT)
    grad_out, out = F.pad(grad_out, pad), F.pad(out, pad)
    if grad_lse is not None:
        grad_lse = grad_lse.masked_fill(lse == -math.inf, 0.0)
        size = grad_lse.abs()
        unit = torch.ones_like(size).masked_fill(size > 2.0**14, 2.0**15)
        unit = unit.masked_fill(size < 2.0**-8, 2.0**-14)
        share = grad_lse / unit
        rounded = share.to(out.dtype)
        for column, part in (
            (-ALIGNMENT, rounded),
            (1 - ALIGNMENT, (share - rounded).to(out.dtype)),
        ):
            grad_out[..., column] = unit.to(grad_out.dtype)
            out[..., column] = -part
    q, k, v = F.pad(q, pad), F.pad(k, pad), F.pad(v, pad)
    if weights is None or not of_weights:
        grads = _attention_backward(grad_out, q, k, v, out, lse, *known)
        return *(g[..., :-ALIGNMENT] for g in grads), None
    # log w adds to S, so its gradient is the sum of dS over queries and heads. With a constant c
    # for q in that column, where k is 0, the kernel's own gradient of k is s c sum_m dS.
    constant = column_unit(scale)
    q[..., -ALIGNMENT] = constant
    grads = _attention_backward(grad_out, q, k, v, out, lse, *known)
    column = grads[1][..., -ALIGNMENT]
    summed = column.sum(1, dtype=accumulation_dtype(column.dtype)) / (scale * constant)
    grad_weights = (summed / weights).masked_fill(weights == 0, 0.0).to(weights.dtype)
    return *(g[..., :-ALIGNMENT] for g in grads), grad_weights


_attention.register_autograd(_autograd_backward, setup_context=_save_for_backward)
