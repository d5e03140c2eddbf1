r"""Averages over tokens as mergeable pairs, for the mixers that work on slices.

A slice is :math:`\sum_n w_n f_n / (\sum_n w_n + \epsilon)`. Without the :math:`\epsilon` it is a
weighted mean, which merges over parts of the tokens like an attention output does, with
:math:`L = \log \sum_n w_n`; the :math:`\epsilon` is applied once, to the merged pair.
:math:`w_n` is the share of token n in the slice, times the weight of the token if it has one.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from ..ops import sum_over_group, without_autocast
from .base import TokenWeights


def weighted_sum(
    weights: Float[Tensor, "B N H G"], value: Float[Tensor, "B N *width"], equation: str
) -> Float[Tensor, "B H G E"]:
    """Contract weights with values over the tokens in the dtype of the weights, fp32 or better.

    In half precision the sum over many tokens overflows, and weights divided by it beforehand
    fall below the smallest numbers.

    Examples
    --------
    >>> value = torch.full((1, 100_000, 1), 8.0, dtype=torch.float16)
    >>> weighted_sum(torch.full((1, 100_000, 1, 1), 1e-5), value, "bnhg,bnc->bhgc").item()
    8.0
    """
    with without_autocast(value):
        return torch.einsum(equation, weights, value.to(weights.dtype)).to(value.dtype)


def average_over_group(
    weights: Float[Tensor, "B N H G"],
    value: Float[Tensor, "B N *width"],
    token_weights: TokenWeights | None,
    equation: str,
    epsilon: float,
    group: str | None,
) -> Float[Tensor, "B H G E"]:
    r"""Return the slices :math:`\sum_n w_n f_n / (\sum_n w_n + \epsilon)`, differentiably.

    Parameters
    ----------
    weights, value, token_weights, equation
        As in :func:`average_tokens`.
    epsilon : float
        Added to the weight of each slice.
    group : str or None
        Name of the context group whose ranks hold the other tokens, if there is one.

    Examples
    --------
    >>> weights, value = torch.full((1, 4, 1, 1), 0.5), torch.arange(4.0).reshape(1, 4, 1)
    >>> average_over_group(weights, value, None, "bnhg,bnc->bhgc", 1.0, None).item()
    1.0
    """
    if token_weights is not None:
        weights = weights * token_weights[:, :, None, None]
    total = sum_over_group(weights.sum(1, keepdim=True), group)
    return sum_over_group(weighted_sum(weights / (total + epsilon), value, equation), group)


def average_tokens(
    weights: Float[Tensor, "B N H G"],
    value: Float[Tensor, "B N *width"],
    token_weights: TokenWeights | None,
    equation: str,
) -> tuple[Float[Tensor, "B H G E"], Float[Tensor, "B H G"]]:
    r"""Weighted mean of the tokens in each slice and the logarithm of its weight.

    Parameters
    ----------
    weights : torch.Tensor
        Share of each token in each slice, shape :math:`(B, N, H, G)`, fp32 or fp64.
    value : torch.Tensor
        What is averaged, :math:`(B, N, H, D)` or :math:`(B, N, C)`.
    token_weights : torch.Tensor or None
        What each token counts for, :math:`(B, N)`, or a mask.
    equation : str
        How ``torch.einsum`` contracts weights with values over the tokens.

    Returns
    -------
    tuple[torch.Tensor, torch.Tensor]
        Mean of shape :math:`(B, H, G, E)` in the dtype of ``value`` and log-weight of shape
        :math:`(B, H, G)` in the dtype of ``weights``; 0 and :math:`-\infty` without tokens.

    Examples
    --------
    >>> weights, value = torch.full((1, 4, 1, 1), 0.5), torch.arange(4.0).reshape(1, 4, 1)
    >>> mean, log_weight = average_tokens(weights, value, None, "bnhg,bnc->bhgc")
    >>> mean.item(), round(log_weight.exp().item(), 3)
    (1.5, 2.0)
    """
    if token_weights is not None:
        weights = weights * token_weights[:, :, None, None]
    total = weights.sum(1)
    empty = total == 0
    total = total.masked_fill(empty, 1.0)  # log and division by 0 have no gradient
    mean = weighted_sum(weights / total[:, None], value, equation)
    return mean, total.log().masked_fill(empty, -math.inf)


def damp_average(
    mean: Float[Tensor, "B H G E"], log_weight: Float[Tensor, "B H G"], epsilon: float
) -> Float[Tensor, "B H G E"]:
    r"""Scale a weighted mean by :math:`W / (W + \epsilon)`, with W the weight behind it.

    Examples
    --------
    >>> damp_average(torch.ones(1, 1, 1, 1), torch.zeros(1, 1, 1), 1.0).item()
    0.5
    """
    return mean * torch.sigmoid(log_weight - math.log(epsilon))[..., None].to(mean.dtype)
