r"""The relative L2 error, whole or over token shards."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..ops import global_sum
from ..ops.attention import accumulation_dtype
from ..ops.collectives import Group


def relative_l2(
    prediction: Float[Tensor, "B *tokens O"],
    target: Float[Tensor, "B *tokens O"],
    *,
    token_mask: Bool[Tensor, "B N"] | None = None,
    group: Group | None = None,
) -> Float[Tensor, " B"]:
    r"""Relative L2 error of each sample, :math:`\lVert p - y \rVert / \lVert y \rVert`.

    The norms run over all tokens and channels of a sample, in fp32 (fp64 for fp64 inputs). With a
    group they run over the tokens of all its ranks, at the cost of one collective of 2 B numbers;
    the result is the same on all ranks, and differentiating it there gives each rank the gradient
    with respect to its own tokens.

    Parameters
    ----------
    prediction, target : torch.Tensor
        Shape :math:`(B, N, O)` or :math:`(B, *\mathrm{grid}, O)`; with a group, the rank's tokens.
    token_mask : torch.Tensor, optional
        Boolean :math:`(B, N)`; tokens with False do not count, whatever they hold.
    group : ProcessGroup or str, optional
        The context group that shares the samples.

    Returns
    -------
    torch.Tensor
        Errors of shape :math:`(B)`, with zero gradient where the error is 0; a target that is 0
        everywhere gives infinity.

    Examples
    --------
    >>> target = torch.tensor([[[3.0], [4.0]]])
    >>> relative_l2(target + torch.tensor([[[0.0], [1.0]]]), target)
    tensor([0.2000])
    """
    if prediction.shape != target.shape:
        raise ValueError(
            "prediction and target must have one shape, got "
            f"{tuple(prediction.shape)} and {tuple(target.shape)}"
        )
    dtype = accumulation_dtype(torch.promote_types(prediction.dtype, target.dtype))
    error, target = prediction.to(dtype) - target.to(dtype), target.to(dtype)
    error, target = error.flatten(1, -2), target.flatten(1, -2)
    if token_mask is not None:
        error = error.masked_fill(~token_mask[..., None], 0.0)
        target = target.masked_fill(~token_mask[..., None], 0.0)
    squares = torch.stack((error.square().sum((1, 2)), target.square().sum((1, 2))))
    error, target = global_sum(squares, group)
    # sqrt has an infinite slope at 0; below the clamp the gradient is 0.
    return error.clamp_min(torch.finfo(dtype).tiny).sqrt() / target.sqrt()


def relative_l2_loss(
    prediction: Float[Tensor, "B *tokens O"],
    target: Float[Tensor, "B *tokens O"],
    *,
    token_mask: Bool[Tensor, "B N"] | None = None,
    group: Group | None = None,
) -> Float[Tensor, ""]:
    """Mean over the samples of :func:`relative_l2`, the loss and the metric of the paper.

    Parameters
    ----------
    prediction, target, token_mask, group
        As in :func:`relative_l2`.

    Returns
    -------
    torch.Tensor
        A scalar. Over a data x context mesh its mean over "data" is the loss of the whole batch.

    Examples
    --------
    >>> target = torch.ones(2, 5, 1)
    >>> relative_l2_loss(2 * target, target)
    tensor(1.)
    """
    return relative_l2(prediction, target, token_mask=token_mask, group=group).mean()
