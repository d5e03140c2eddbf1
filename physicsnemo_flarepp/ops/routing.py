r"""Gathering tokens into latents and returning them: merge, encode, decode.

The only home of the log-sum-exp algebra. A partial gather over some of the tokens is a pair
:math:`(O, L)`, output and log-normaliser; pairs over disjoint tokens merge exactly.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from .attention import check_key_mask


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
    outs = outs if isinstance(outs, Tensor) else torch.stack(list(outs))
    lses = lses if isinstance(lses, Tensor) else torch.stack(list(lses))
    top = lses.detach().amax(0)
    top = top.masked_fill(top == -math.inf, 0.0)
    weights = torch.exp(lses - top)
    total = weights.sum(0)
    empty = total == 0
    total = total.masked_fill(empty, 1.0)
    out = (weights[..., None] * outs).sum(0) / total[..., None]
    return out.to(outs.dtype), (top + total.log()).masked_fill(empty, -math.inf)


def encode(
    q: Float[Tensor, "B H M D"],
    k: Float[Tensor, "B H N D"],
    v: Float[Tensor, "B H N D"],
    *,
    scale: float | None = None,
    key_mask: Bool[Tensor, "B N"] | None = None,
) -> Float[Tensor, "B H M D"]:
    r"""Gather N tokens into M latents: softmax over the tokens (paper, eq. encode).

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

    Returns
    -------
    torch.Tensor
        Latents of shape :math:`(B, H, M, D)`.

    Examples
    --------
    >>> k = v = torch.arange(6.0).reshape(1, 1, 3, 2)
    >>> encode(torch.zeros(1, 1, 1, 2), k, v)
    tensor([[[[2., 3.]]]])
    """
    if k.shape[2] == 0:  # the fused CPU kernel dies on an empty key set
        return q.new_zeros((*q.shape[:3], v.shape[3]))
    if key_mask is None:
        return F.scaled_dot_product_attention(q, k, v, scale=scale)
    if not torch.compiler.is_compiling():
        check_key_mask(key_mask, k)
    # A fully masked row is NaN in some kernels, forward or backward: let it see its keys, then
    # drop what it saw.
    empty = ~key_mask.any(-1, keepdim=True)
    mask = (key_mask | empty)[:, None, None, :]
    z = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
    return z.masked_fill(empty[:, :, None, None], 0.0)


def decode(
    k: Float[Tensor, "B H N D"],
    q: Float[Tensor, "B H M D"],
    z: Float[Tensor, "B H M D"],
    *,
    scale: float | None = None,
) -> Float[Tensor, "B H N D"]:
    r"""Return M latents to N tokens: softmax over the routes (paper, eq. decode).

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
    if k.shape[2] == 0:  # the fused CPU kernel dies on an empty query set
        return z.new_zeros((*k.shape[:3], z.shape[3]))
    return F.scaled_dot_product_attention(k, q, z, scale=scale)
