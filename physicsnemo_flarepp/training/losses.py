r"""The relative L2 error, whole or over token shards, by field, and of finite differences."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
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
    widths = (prediction.shape[-1],)
    errors = field_errors(prediction, target, widths, token_mask=token_mask, group=group)
    return errors[:, 0]


def field_errors(
    prediction: Float[Tensor, "B *tokens O"],
    target: Float[Tensor, "B *tokens O"],
    widths: Sequence[int],
    *,
    token_mask: Bool[Tensor, "B N"] | None = None,
    group: Group | None = None,
) -> Float[Tensor, "B F"]:
    r"""Relative L2 error of each field of each sample.

    Parameters
    ----------
    prediction, target, token_mask, group
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
    if token_mask is not None:
        error = error.masked_fill(~token_mask[..., None], 0.0)
        target = target.masked_fill(~token_mask[..., None], 0.0)
    squares = torch.stack((error.square().sum(1), target.square().sum(1)))
    squares = torch.stack([part.sum(-1) for part in squares.split(tuple(widths), dim=-1)], -1)
    error, target = global_sum(squares, group)
    # sqrt has an infinite slope at 0; below the clamp the gradient is 0.
    return error.clamp_min(torch.finfo(dtype).tiny).sqrt() / target.sqrt()


def derivative_loss(
    prediction: Float[Tensor, "B N O"],
    target: Float[Tensor, "B N O"],
    grid: tuple[int, int],
    widths: Sequence[int],
) -> Float[Tensor, ""]:
    """Relative L2 loss of the central differences along both axes of a grid, added up.

    For fields that are 0 on the boundary of the grid, as Darcy's: the predicted boundary is set to
    0, both fields are continued by 0, and the differences are taken at all points. The spacing
    cancels in the relative error, so none is asked for.

    Parameters
    ----------
    prediction, target : torch.Tensor
        Whole samples, tokens in row-major order of the grid.
    grid : tuple[int, int]
        Its rows and columns, at least 3 each.
    widths : sequence of int
        Channels of the fields.

    Examples
    --------
    >>> target = torch.zeros(1, 12, 1)
    >>> target[0, 5] = 1.0
    >>> derivative_loss(1.5 * target, target, (3, 4), (1,))
    tensor(1.)
    >>> derivative_loss(target + torch.eye(12)[:1, :, None], target, (3, 4), (1,)) < 1e-15
    tensor(True)
    """
    rows, columns = grid
    prediction, target = (value.unflatten(1, grid) for value in (prediction, target))
    prediction = F.pad(prediction[:, 1:-1, 1:-1], (0, 0, 2, 2, 2, 2))
    target = F.pad(target, (0, 0, 1, 1, 1, 1))

    def differences(values: Tensor) -> tuple[Tensor, Tensor]:
        return (
            values[:, 2:, 1 : columns + 1] - values[:, :-2, 1 : columns + 1],
            values[:, 1 : rows + 1, 2:] - values[:, 1 : rows + 1, :-2],
        )

    pairs = zip(differences(prediction), differences(target), strict=True)
    return sum(field_errors(a, b, widths).mean() for a, b in pairs)


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
