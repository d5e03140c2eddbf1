"""Gathering tokens into latents and returning them: encode and decode."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from .attention import TokenWeights, all_gradients, attention_with_lse, join_weights, may_split
from .checks import check_attention
from .collectives import Group, all_reduce, group_name, group_size
from .kernels import is_plain
from .merging import merge_over_group
from .splits import check_splits


def encode(
    q: Float[Tensor, "B H M D"],
    k: Float[Tensor, "B H N D"],
    v: Float[Tensor, "B H N D"],
    *,
    scale: float | None = None,
    key_mask: Bool[Tensor, "B N"] | None = None,
    key_weights: TokenWeights | None = None,
    group: Group | None = None,
    splits: int | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "B H M D"]:
    r"""Gather N tokens into M latents: softmax over the tokens.

    With weights it is the quadrature of an integral over what the tokens were drawn from,
    :math:`z = \int e^{s q \cdot k} v\, d\mu / \int e^{s q \cdot k} d\mu`: a token that is split
    into several which share its weight changes nothing.

    Parameters
    ----------
    q : torch.Tensor
        Routing queries of shape :math:`(B, H, M, D)`; an expanded view is fine.
    k, v, scale, key_mask, key_weights, splits
        As in :func:`attention_with_lse`. Only ratios of weights within a sample matter. A sample
        without real tokens gives zeros.
    group : ProcessGroup or str, optional
        The context group (or its name) whose ranks own disjoint tokens of the same samples, any
        number each, 0 included. ``q`` is the same on all ranks, and so is the result: the gather
        over the tokens of all of them. See :func:`merge_over_group` for what travels. In the
        backward pass the partial gradients of the latents are summed once; ``k``, ``v`` and
        the weights get exact gradients, ``q`` this rank's summand of its gradient (paper,
        appendix A).
    dropout : float, optional
        Probability with which each softmax weight is dropped, on one rank only.

    Returns
    -------
    torch.Tensor
        Latents of shape :math:`(B, H, M, D)`.

    Examples
    --------
    >>> k = v = torch.arange(6.0).reshape(1, 1, 3, 2)
    >>> encode(torch.zeros(1, 1, 1, 2), k, v)
    tensor([[[[2., 3.]]]])
    >>> encode(torch.zeros(1, 1, 1, 2), k, v, key_weights=torch.tensor([[3.0, 0.0, 1.0]]))
    tensor([[[[1., 2.]]]])
    """
    if dropout > 0:
        weights = join_weights(key_mask, key_weights)
        return _attend_with_dropout(q, k, v, scale, weights, dropout, group)
    if group is not None and group_size(group) > 1:
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        name = group_name(group)
        return _EncodeOverGroup.apply(q, k, v, key_mask, key_weights, scale, name, splits)
    if key_mask is not None or key_weights is not None:
        weighting = {"key_mask": key_mask, "key_weights": key_weights}
        return attention_with_lse(q, k, v, scale=scale, splits=splits, **weighting)[0]
    if not torch.compiler.is_compiling():
        check_attention(q, k, v, scale)
        check_splits(splits)
    if k.shape[2] == 0 or q.shape[2] == 0:  # the fused CPU kernel dies on empty axes
        return q.new_zeros((*q.shape[:3], v.shape[3]))
    return _attend(q, k, v, scale, splits)


def decode(
    k: Float[Tensor, "B H N D"],
    q: Float[Tensor, "B H M D"],
    z: Float[Tensor, "B H M D"],
    *,
    scale: float | None = None,
    splits: int | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "B H N D"]:
    """Return M latents to N tokens: softmax over the routes.

    Parameters
    ----------
    k : torch.Tensor
        Keys of the tokens, shape :math:`(B, H, N, D)`: the queries of this call.
    q, z : torch.Tensor
        Routing queries and latents, shape :math:`(B, H, M, D)`.
    scale, splits, dropout : optional
        As in :func:`encode`; dropout is possible on shards, too.

    Returns
    -------
    torch.Tensor
        Shape :math:`(B, H, N, D)`. Each row depends on its own key only.
    """
    if not torch.compiler.is_compiling():
        check_attention(k, q, z, scale, names=("k", "q", "z"))
        check_splits(splits)
    if k.shape[2] == 0 or q.shape[2] == 0:
        # The fused CPU kernel dies on empty axes. This empty result stays connected to q and z: a
        # rank without tokens must take part in the backward collectives of encode.
        return (k @ q.transpose(-1, -2)) @ z
    if dropout > 0:
        return F.scaled_dot_product_attention(k, q, z, dropout_p=dropout, scale=scale)
    return _attend(k, q, z, scale, splits)


def _attend(q: Tensor, k: Tensor, v: Tensor, scale: float | None, splits: int | None) -> Tensor:
    """Attend with torch's own operator, or with ours where tokens are split or it must be plain."""
    if not (is_plain() or may_split(q, k, v, splits)):
        return F.scaled_dot_product_attention(q, k, v, scale=scale)
    kind = q.device.type
    if q.dtype == torch.float32 and torch.is_autocast_enabled(kind):  # as torch's own does
        q, k, v = (t.to(torch.get_autocast_dtype(kind)) for t in (q, k, v))
    return attention_with_lse(q, k, v, scale=scale, splits=splits)[0]


def _attend_with_dropout(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None,
    weights: TokenWeights | None,
    dropout: float,
    group: Group | None,
) -> Tensor:
    """Attend with torch's own operator, which drops weights but gives no log-normaliser."""
    if group is not None and group_size(group) > 1:
        raise ValueError(
            f"attention dropout is {dropout}, but gathers of {group_size(group)} ranks merge "
            "exactly only without it; set it to 0, or parallel.context to 1"
        )
    mask = None
    if weights is not None:
        scores = weights if weights.dtype == torch.bool else weights.log().to(q.dtype)
        mask = scores[:, None, None]
    return F.scaled_dot_product_attention(q, k, v, mask, dropout_p=dropout, scale=scale)


class _EncodeOverGroup(torch.autograd.Function):
    """Attention over the keys of all ranks of a group (paper, appendix A)."""

    @staticmethod
    def forward(ctx, q, k, v, key_mask, key_weights, scale: float, name: str, splits) -> Tensor:
        weighting = {"key_mask": key_mask, "key_weights": key_weights}
        out, lse = attention_with_lse(q, k, v, scale=scale, splits=splits, **weighting)
        out, lse = merge_over_group(out, lse, name)
        ctx.save_for_backward(q, k, v, join_weights(key_mask, key_weights), out, lse)
        ctx.scale, ctx.name, ctx.splits = scale, name, splits
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out: Tensor):
        # Every rank decodes the same latents for its own tokens: their gradients add up. With the
        # global pair the kernel differentiates the globally normalised attention.
        grad_out = all_reduce(grad_out, "sum", ctx.name)
        q, k, v, weights, out, lse = ctx.saved_tensors
        known = (q, k, v, weights, out, lse, ctx.scale, ctx.splits)
        *grads, of_weights = all_gradients(grad_out, None, *known, ctx.needs_input_grad[4])
        return *grads, None, of_weights, None, None, None
