"""Errors of predictions: the only relative L2 and the only R² of the package."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .checks import check_weights
from .collectives import Group, global_sum
from .kernels import accumulation_dtype


def relative_l2(
    prediction: Float[Tensor, "B *tokens O"],
    target: Float[Tensor, "B *tokens O"],
    *,
    token_mask: Bool[Tensor, "B N"] | None = None,
    token_weights: Float[Tensor, "B N"] | None = None,
    group: Group | None = None,
) -> Float[Tensor, " B"]:
    r"""Return the relative L2 error of each sample, :math:`\lVert p - y \rVert / \lVert y \rVert`.

    The norms run over all tokens and channels of a sample, in fp32 (fp64 for fp64 inputs). With a
    group they run over the tokens of all its ranks, at the cost of one collective of 2 B numbers;
    the result is the same on all ranks, and differentiating it there gives each rank the gradient
    with respect to its own tokens. The gradient is zero where the error is 0. If the target is 0
    everywhere, the error is infinite, or 0 if the prediction is 0 too.

    Parameters
    ----------
    prediction, target : torch.Tensor
        Shape :math:`(B, N, O)` or :math:`(B, *\mathrm{grid}, O)`; with a group, the rank's tokens.
    token_mask : torch.Tensor, optional
        Boolean :math:`(B, N)`; tokens with False do not count, whatever they hold.
    token_weights : torch.Tensor, optional
        Non-negative :math:`(B, N)`, the area or volume of each token: the norms become integrals
        instead of sums over tokens. Only ratios within a sample matter; 0 does not count.
    group : ProcessGroup or str, optional
        The context group that shares the samples.

    Examples
    --------
    >>> target = torch.tensor([[[3.0], [4.0]]])
    >>> relative_l2(target + torch.tensor([[[0.0], [1.0]]]), target)
    tensor([0.2000])
    """
    widths = (prediction.shape[-1],)
    counted = {"token_mask": token_mask, "token_weights": token_weights}
    return field_errors(prediction, target, widths, **counted, group=group)[:, 0]


def field_errors(
    prediction: Float[Tensor, "B *tokens O"],
    target: Float[Tensor, "B *tokens O"],
    widths: Sequence[int],
    *,
    token_mask: Bool[Tensor, "B N"] | None = None,
    token_weights: Float[Tensor, "B N"] | None = None,
    group: Group | None = None,
) -> Float[Tensor, "B F"]:
    r"""Return the relative L2 error of each field of each sample.

    Parameters
    ----------
    prediction, target, token_mask, token_weights, group
        As in :func:`relative_l2`; the fields cost no further collective.
    widths : sequence of int
        Channels of the F fields, in order: (1, 3) for a pressure and a wall shear stress.

    Returns
    -------
    torch.Tensor
        Errors of shape :math:`(B, F)`.

    Examples
    --------
    >>> target = torch.ones(1, 2, 4)
    >>> field_errors(target * torch.tensor([2.0, 1.5, 1.5, 1.5]), target, (1, 3))
    tensor([[1.0000, 0.5000]])
    """
    counted = {"token_mask": token_mask, "token_weights": token_weights}
    squares = error_squares(prediction, target, widths, **counted)
    dtype = accumulation_dtype(torch.promote_types(prediction.dtype, target.dtype))
    return errors_of_squares(global_sum(squares, group)).to(dtype)


def error_squares(
    prediction: Float[Tensor, "B *tokens O"],
    target: Float[Tensor, "B *tokens O"],
    widths: Sequence[int],
    *,
    token_mask: Bool[Tensor, "B N"] | None = None,
    token_weights: Float[Tensor, "B N"] | None = None,
) -> Float[Tensor, "2 B F"]:
    """Return the squared errors and squared targets of each field, summed over the tokens given."""
    if prediction.shape != target.shape:
        raise ValueError(
            "prediction and target must have one shape, got "
            f"{tuple(prediction.shape)} and {tuple(target.shape)}"
        )
    if sum(widths) != prediction.shape[-1]:
        raise ValueError(
            f"widths {tuple(widths)} have {sum(widths)} channels, prediction and target "
            f"{prediction.shape[-1]}"
        )
    dtype = accumulation_dtype(torch.promote_types(prediction.dtype, target.dtype))
    error, target = prediction.to(dtype) - target.to(dtype), target.to(dtype)
    error, target = error.flatten(1, -2), target.flatten(1, -2)
    if token_weights is not None:
        batch, n_tokens, _ = error.shape
        check_weights("token_weights", token_weights, (batch, n_tokens), token_mask)
        counts = token_weights > 0
        token_mask = counts if token_mask is None else token_mask & counts
    if token_mask is not None:
        error = error.masked_fill(~token_mask[..., None], 0.0)
        target = target.masked_fill(~token_mask[..., None], 0.0)
    error, target = error.square(), target.square()
    if token_weights is not None:
        # In fp64 the scale of the weights cannot take the products out of range.
        weights = token_weights.detach().double()[..., None]
        error, target = error * weights, target * weights
    squares = torch.stack((error.sum(1), target.sum(1)))
    return torch.stack([part.sum(-1) for part in squares.split(tuple(widths), dim=-1)], -1)


def errors_of_squares(squares: Float[Tensor, "2 B F"]) -> Float[Tensor, "B F"]:
    """Return the relative errors from the :func:`error_squares` of all tokens."""
    error, target = squares
    # sqrt has an infinite slope at 0, and 0 / 0 is not a number: both are kept off the tape.
    exact = error == 0
    ratio = error.masked_fill(exact, 1.0).sqrt() / target.masked_fill(exact, 1.0).sqrt()
    return ratio.masked_fill(exact, 0.0)


def r_squared(prediction: Float[Tensor, " n"], target: Float[Tensor, " n"]) -> float:
    """Return the coefficient of determination, NaN for fewer than 2 or equal targets."""
    spread = (target - target.mean()).square().sum().item()
    if len(target) < 2 or spread == 0:
        return float("nan")
    return 1 - (prediction - target).square().sum().item() / spread
