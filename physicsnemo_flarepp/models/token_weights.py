r"""Token weights: the measure that the tokens of a sample stand for.

In the continuum a gather is an integral over the geometry and tokens are its quadrature points;
:math:`w_n`, the area or volume of token n, is its weight. With weights the result does not depend
on where a mesher put its cells, and splitting a token into several that share its weight changes
nothing.

Only ratios within a sample matter: before the first block the weights of a sample are scaled to
one total, over the tokens of all chunks and ranks. Mixers whose gathers are softmaxes do not see
the total. The Transolvers add 1e-5 *tokens* to the weight of each slice, so there the total says
what a token is: one of 10,000. It cannot be N, which splitting a token changes.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..mixers.base import TokenWeights
from ..ops import sum_over_group
from ..ops.attention import join_weights
from ..ops.kernels import accumulation_dtype

TOTAL_WEIGHT = 1e4


def weigh_tokens(
    token_mask: Bool[Tensor, "B N"] | None,
    token_weights: Float[Tensor, "B N"] | None,
    dtype: torch.dtype,
    group: str | None = None,
) -> TokenWeights | None:
    """Return what mixers take as the weights of tokens: a mask as it is, weights on their scale."""
    weights = join_weights(token_mask, token_weights)
    if weights is None or token_weights is None:
        return weights
    if weights.requires_grad:
        # A weight of 0 is padding, whose own output jumps to 0 there: no derivative, so none.
        weights = weights.masked_fill(weights == 0, 0.0)
    total = weights.sum(-1, dtype=torch.float64)
    # Where values are not read, a negative weight must still not pass for a number.
    total = total.masked_fill((weights < 0).any(-1), torch.nan)
    total = sum_over_group(total, group)
    if not torch.compiler.is_compiling():
        check_totals(total)
    return scale_weights(weights, total, dtype)


def scale_weights(
    weights: TokenWeights, total: Float[Tensor, " B"], dtype: torch.dtype
) -> Float[Tensor, "B N"]:
    """Scale some of the weights, of which those of a whole sample add up to ``total``.

    Positive weights stay positive, however small: 0 means padding.
    """
    dtype = accumulation_dtype(dtype)
    scaled = weights.double() / total[:, None] * TOTAL_WEIGHT
    scaled = scaled.to(dtype).clamp(min=torch.finfo(dtype).tiny)
    return scaled.masked_fill(weights == 0, 0.0)


def check_totals(total: Float[Tensor, " B"]) -> None:
    """Raise unless every sample has a positive, finite total.

    Read where it is: on CUDA the condition is asserted there, without a host sync.
    """
    good = (total > 0) & (total < torch.inf)
    if total.device.type != "cpu":
        torch._assert_async(good.all(), "token_weights are negative, NaN, infinite or all 0")
    elif not good.all():
        sample = int((~good).nonzero()[0])
        reason = f"add up to {total[sample].item()}; rescale them"
        if total[sample] == 0:
            reason = "are 0 for every token, or it has no token; drop the sample"
        raise ValueError(f"token_weights of sample {sample} {reason}")
