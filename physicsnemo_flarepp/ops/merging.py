r"""Merging partial gathers: the only home of the log-sum-exp algebra.

A partial gather over some of the tokens is a pair :math:`(O, L)`, output and log-normaliser; pairs
over disjoint tokens merge exactly, whether the tokens are split over parts of one kernel call, over
chunks (:func:`merge_partials`) or over ranks (:func:`merge_over_group`).
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from .checks import check_pair
from .collectives import Group, all_gather, all_reduce, group_size

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
