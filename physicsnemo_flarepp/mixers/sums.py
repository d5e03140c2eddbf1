"""Weighted sums over tokens, for the mixers that work on slices."""

import torch
from jaxtyping import Float
from torch import Tensor

from ..ops import without_autocast
from ..ops.attention import TokenWeights


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
