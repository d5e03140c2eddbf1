r"""Gathering tokens into latents and returning them: merge, encode, decode.

The only home of the log-sum-exp algebra. A partial gather over some of the tokens is a pair
:math:`(O, L)`, output and log-normaliser; pairs over disjoint tokens merge exactly, whether the
tokens are split over chunks (:func:`merge_partials`) or over ranks (:func:`merge_over_group`).
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from .attention import TokenWeights, attention_backward, attention_with_lse
from .checks import check_attention, check_pair
from .collectives import Group, all_gather, all_reduce, group_name, group_size

# Up to this many gathered bytes per rank one all-gather is preferred to max + sum: it saves the
# latency of a collective and moves more bytes. The limit is an estimate, 20 us at 25 GB/s between
# nodes; it has not been tuned on a GPU cluster.
GATHER_LIMIT = 2**19


def merge_partials(
    outs: Sequence[Float[Tensor, "*rows D"]] | Float[Tensor, "R *rows D"],
    lses: Sequence[Float[Tensor, "*rows"]] | Float[Tensor, "R *rows"],
) -> tuple[Float[Tensor, "*rows D"], Float[Tensor, "*rows"]]:
    r"""Merge partial gathers over disjoint token sets into the gather over their union.

    .. math::

        L = \log \sum_r \exp L_r, \qquad O = \sum_r \exp(L_r - L)\, O_r

    A partial that saw no token has :math:`L_r = -\infty` and drops out; where all did, the result
    is :math:`O = 0`, :math:`L = -\infty`, with zero gradients.

    Parameters
    ----------
    outs : sequence of torch.Tensor or torch.Tensor
        R partial outputs of shape :math:`(\ldots, D)`.
    lses : sequence of torch.Tensor or torch.Tensor
        R log-normalisers of shape :math:`(\ldots)`; the merge runs in their dtype.

    Returns
    -------
    tuple[torch.Tensor, torch.Tensor]
        Output in the dtype of ``outs`` and its log-normaliser.

    Examples
    --------
    >>> out, lse = merge_partials(torch.tensor([[1.0], [3.0]]), torch.zeros(2))
    >>> out.tolist(), round(lse.exp().item(), 3)
    ([2.0], 2.0)
    """
    if len(outs) == 0 or len(outs) != len(lses):
        raise ValueError(
            f"outs and lses must hold the same parts, at least one: got {len(outs)} and {len(lses)}"
        )
    outs = outs if isinstance(outs, Tensor) else torch.stack(list(outs))
    lses = lses if isinstance(lses, Tensor) else torch.stack(list(lses))
    if not torch.compiler.is_compiling():
        check_pair(outs, lses)
    top = _finite_top(lses.detach().amax(0))
    weights = torch.exp(lses - top)
    return _normalise((weights[..., None] * outs).sum(0), weights.sum(0), top, outs.dtype)


def merge_over_group(
    out: Float[Tensor, "*rows D"], lse: Float[Tensor, "*rows"], group: Group | None
) -> tuple[Float[Tensor, "*rows D"], Float[Tensor, "*rows"]]:
    r"""Merge each rank's partial gather into the gather over the tokens of all ranks.

    The same merge as :func:`merge_partials`, with ranks for parts. It is not differentiable by
    itself; :func:`encode` with a group is.

    The packed payload is :math:`(O_r, L_r)`, :math:`D + 1` numbers per row whatever the number of
    tokens. It travels in one of two ways, the same on all ranks because all see the same shapes:

    - gathered once and merged locally, for two ranks (gathering never moves more bytes there) and
      while the gathered payload stays below ``GATHER_LIMIT``;
    - else an all-reduce maximum of :math:`L_r` and one all-reduce sum of the packed
      :math:`(a_r O_r, a_r)`, :math:`a_r = \exp(L_r - \max_s L_s)`: about two payloads per rank
      however many ranks there are (paper, "Stable reductions").

    Parameters
    ----------
    out : torch.Tensor
        This rank's output, shape :math:`(\ldots, D)`, of one shape on all ranks.
    lse : torch.Tensor
        Its log-normaliser in fp32 or fp64, shape :math:`(\ldots)`; :math:`-\infty` where the rank
        saw no token.
    group : ProcessGroup, str or None
        The context group or its name; None or one rank returns the pair.

    Returns
    -------
    tuple[torch.Tensor, torch.Tensor]
        Merged output in the dtype of ``out`` and its log-normaliser, equal on all ranks. The merge
        runs in the dtype of ``lse``.

    Examples
    --------
    >>> merge_over_group(torch.ones(1, 2), torch.zeros(1), None)
    (tensor([[1., 1.]]), tensor([0.]))
    """
    if not torch.compiler.is_compiling():
        check_pair(out, lse)
    size = group_size(group)
    if group is None or size == 1:
        return out, lse
    payload = torch.cat((out.to(lse.dtype), lse[..., None]), -1)
    if size == 2 or size * payload.numel() * payload.element_size() <= GATHER_LIMIT:
        parts = all_gather(payload, group)
        merged, lse = merge_partials(parts[..., :-1], parts[..., -1])
        return merged.to(out.dtype), lse
    top = _finite_top(all_reduce(lse, "max", group))
    weight = torch.exp(lse - top)[..., None]
    sums = all_reduce(torch.cat((weight * out, weight), -1), "sum", group)
    return _normalise(sums[..., :-1], sums[..., -1], top, out.dtype)


def _finite_top(top: Tensor) -> Tensor:
    """Keep exp(L - top) defined where no part saw a token."""
    return top.masked_fill(top == -math.inf, 0.0)


def _normalise(
    weighted: Tensor, total: Tensor, top: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Turn sums of weighted outputs and of weights into an output and its log-normaliser."""
    empty = total == 0
    total = total.masked_fill(empty, 1.0)
    out = weighted / total[..., None]
    return out.to(dtype), (top + total.log()).masked_fill(empty, -math.inf)


def encode(
    q: Float[Tensor, "B H M D"],
    k: Float[Tensor, "B H N D"],
    v: Float[Tensor, "B H N D"],
    *,
    scale: float | None = None,
    key_mask: Bool[Tensor, "B N"] | None = None,
    key_weights: TokenWeights | None = None,
    group: Group | None = None,
) -> Float[Tensor, "B H M D"]:
    r"""Gather N tokens into M latents: softmax over the tokens.

    With weights it is the quadrature of an integral over what the tokens were drawn from,
    :math:`z = \int e^{s q \cdot k} v\, d\mu / \int e^{s q \cdot k} d\mu`: a token that is split
    into several which share its weight changes nothing.

    Parameters
    ----------
    q : torch.Tensor
        Routing queries of shape :math:`(B, H, M, D)`; an expanded view is fine.
    k, v : torch.Tensor
        Keys and values of the tokens, shape :math:`(B, H, N, D)`.
    scale : float, optional
        Factor on the scores. Default :math:`D^{-1/2}`.
    key_mask : torch.Tensor, optional
        Boolean :math:`(B, N)`, True for real tokens. A sample without real tokens gives zeros.
    key_weights : torch.Tensor, optional
        Measure :math:`(B, N)` that each token stands for, finite and at least 0; 0 masks a token.
        Only ratios within a sample matter. No gradient flows to it. A boolean one is a mask.
    group : ProcessGroup or str, optional
        The context group (or its name) whose ranks own disjoint tokens of the same samples, any
        number each, 0 included. ``q`` is the same on all ranks, and so is the result: the gather
        over the tokens of all of them. See :func:`merge_over_group` for what travels. In the
        backward pass the partial gradients of the latents are summed once; ``k`` and ``v`` get
        exact gradients, ``q`` this rank's summand of its gradient (paper, appendix A).

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
    if group is not None and group_size(group) > 1:
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        return _EncodeOverGroup.apply(q, k, v, key_mask, key_weights, scale, group_name(group))
    if key_mask is not None or key_weights is not None:
        weighting = {"key_mask": key_mask, "key_weights": key_weights}
        return attention_with_lse(q, k, v, scale=scale, **weighting)[0]
    if not torch.compiler.is_compiling():
        check_attention(q, k, v, scale)
    if k.shape[2] == 0 or q.shape[2] == 0:  # the fused CPU kernel dies on empty axes
        return q.new_zeros((*q.shape[:3], v.shape[3]))
    return F.scaled_dot_product_attention(q, k, v, scale=scale)


def decode(
    k: Float[Tensor, "B H N D"],
    q: Float[Tensor, "B H M D"],
    z: Float[Tensor, "B H M D"],
    *,
    scale: float | None = None,
) -> Float[Tensor, "B H N D"]:
    r"""Return M latents to N tokens: softmax over the routes.

    Parameters
    ----------
    k : torch.Tensor
        Keys of the tokens, shape :math:`(B, H, N, D)`: the queries of this call.
    q, z : torch.Tensor
        Routing queries and latents, shape :math:`(B, H, M, D)`.
    scale : float, optional
        Factor on the scores. Default :math:`D^{-1/2}`.

    Returns
    -------
    torch.Tensor
        Shape :math:`(B, H, N, D)`. Each row depends on its own key only.

    Examples
    --------
    >>> z = torch.tensor([[[[1.0, 1.0], [3.0, 3.0]]]])
    >>> decode(torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 2, 2), z)
    tensor([[[[2., 2.]]]])
    """
    if not torch.compiler.is_compiling():
        check_attention(k, q, z, scale, names=("k", "q", "z"))
    if k.shape[2] == 0 or q.shape[2] == 0:
        # The fused CPU kernel dies on empty axes. This empty result stays connected to q and z: a
        # rank without tokens must take part in the backward collectives of encode.
        return (k @ q.transpose(-1, -2)) @ z
    return F.scaled_dot_product_attention(k, q, z, scale=scale)


class _EncodeOverGroup(torch.autograd.Function):
    """Attention over the keys of all ranks of a group (paper, appendix A)."""

    @staticmethod
    def forward(ctx, q, k, v, key_mask, key_weights, scale: float, name: str) -> Tensor:
        weighting = {"key_mask": key_mask, "key_weights": key_weights}
        out, lse = attention_with_lse(q, k, v, scale=scale, **weighting)
        out, lse = merge_over_group(out, lse, name)
        ctx.save_for_backward(q, k, v, key_mask, key_weights, out, lse)
        ctx.scale, ctx.name = scale, name
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out: Tensor):
        q, k, v, key_mask, key_weights, out, lse = ctx.saved_tensors
        # Every rank decodes the same latents for its own tokens: their gradients add up. With the
        # global pair the kernel differentiates the globally normalised attention.
        grad_out = all_reduce(grad_out, "sum", ctx.name)
        weighting = {"key_mask": key_mask, "key_weights": key_weights}
        grads = attention_backward(grad_out, q, k, v, out, lse, scale=ctx.scale, **weighting)
        return *grads, None, None, None, None
