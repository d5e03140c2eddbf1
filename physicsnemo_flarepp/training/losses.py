"""Losses: the relative L2 error of samples, and of finite differences on grids."""

from collections.abc import Sequence

from jaxtyping import Bool, Float
from torch import Tensor

from ..ops.collectives import Group
from ..ops.errors import field_errors, relative_l2


def relative_l2_loss(
    prediction: Float[Tensor, "B *tokens O"],
    target: Float[Tensor, "B *tokens O"],
    *,
    token_mask: Bool[Tensor, "B N"] | None = None,
    group: Group | None = None,
) -> Float[Tensor, ""]:
    """Return the mean of :func:`relative_l2` over the samples, the loss and metric of the paper.

    Parameters
    ----------
    prediction, target, token_mask, group
        As in :func:`~physicsnemo_flarepp.ops.errors.relative_l2`.

    Returns
    -------
    torch.Tensor
        A scalar. Over a data x context mesh its mean over "data" is the loss of the whole batch.

    Examples
    --------
    >>> import torch
    >>> target = torch.ones(2, 5, 1)
    >>> relative_l2_loss(2 * target, target)
    tensor(1.)
    """
    return relative_l2(prediction, target, token_mask=token_mask, group=group).mean()


def derivative_loss(
    prediction: Float[Tensor, "B N O"],
    target: Float[Tensor, "B N O"],
    grid: tuple[int, int],
    widths: Sequence[int],
) -> Float[Tensor, ""]:
    """Return the relative L2 loss of the central differences along both axes of a grid, added up.

    The spacing cancels in the relative error, so none is asked for.

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
    >>> import torch
    >>> target = torch.arange(12.0).reshape(1, 12, 1)
    >>> derivative_loss(1.5 * target, target, (3, 4), (1,))
    tensor(1.)
    """
    prediction, target = (value.unflatten(1, grid) for value in (prediction, target))
    loss = prediction.new_zeros(())
    for axis in (1, 2):
        size = prediction.shape[axis] - 2
        differences = (
            value.narrow(axis, 2, size) - value.narrow(axis, 0, size)
            for value in (prediction, target)
        )
        loss = loss + field_errors(*differences, widths).mean()
    return loss
