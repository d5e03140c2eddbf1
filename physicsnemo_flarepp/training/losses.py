"""Losses: the relative L2 error of samples, whole or over sums, and of finite differences."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch.nn.functional as F
from jaxtyping import Bool, Float
from tensordict import TensorDict
from torch import Tensor

from ..inference.inputs import ArrayLike, TokenArray
from ..inference.streams import Range
from ..ops.collectives import Group
from ..ops.errors import error_squares, errors_of_squares, field_errors, relative_l2


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


def batch_errors(
    prediction: Float[Tensor, "B N O"],
    batch: TensorDict,
    widths: Sequence[int],
    norm: str,
    group: Group | None = None,
) -> Float[Tensor, "B F"]:
    """Return the relative L2 error of each field of each sample of a batch.

    Parameters
    ----------
    prediction : torch.Tensor
        In physical units, as ``batch["fields"]``.
    batch : TensorDict
        Its padding does not count.
    widths : sequence of int
        Channels of the F fields.
    norm : str
        ``tokens``: sums over tokens. ``measure``: integrals, by ``batch["weights"]``.
    group : ProcessGroup or str, optional
        The context group that shares the samples.
    """
    return field_errors(
        prediction,
        batch["fields"],
        widths,
        token_mask=batch.get("token_mask", None),
        token_weights=batch["weights"] if norm == "measure" else None,
        group=group,
    )


def derivative_loss(
    prediction: Float[Tensor, "B N O"],
    target: Float[Tensor, "B N O"],
    grid: tuple[int, int],
    widths: Sequence[int],
) -> Float[Tensor, ""]:
    """Return the relative L2 loss of the central differences along both axes of a grid, added up.

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
    >>> import torch
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


@runtime_checkable
class LossOverSums(Protocol):
    """A loss that depends on the prediction through sums over tokens."""

    def sums(
        self, prediction: Float[Tensor, "B n O"], target: Float[Tensor, "B n T"], rows: Range
    ) -> Float[Tensor, "..."]:
        """Return the sums over the tokens ``rows[0]:rows[1]``, differentiably; 0 for none."""

    def value(self, sums: Float[Tensor, "..."]) -> Float[Tensor, ""]:
        """Return the loss from the sums over all tokens, differentiably."""


class RelativeL2:
    """Mean relative L2 error of the samples, as a function of sums of squares.

    Parameters
    ----------
    token_mask, token_weights : ArrayLike, optional
        What counts, as in :func:`~physicsnemo_flarepp.ops.errors.relative_l2`.
    widths : sequence of int, optional
        Channels of fields that have an error each. Default: one error over all channels.

    Examples
    --------
    >>> import torch
    >>> loss, target = RelativeL2(), torch.tensor([[[3.0], [4.0]]])
    >>> parts = [loss.sums(1.2 * target[:, [i]], target[:, [i]], (i, i + 1)) for i in range(2)]
    >>> loss.value(sum(parts))
    tensor(0.2000)
    """

    def __init__(
        self,
        token_mask: ArrayLike | None = None,
        token_weights: ArrayLike | None = None,
        widths: Sequence[int] | None = None,
    ) -> None:
        given = {"token_mask": token_mask, "token_weights": token_weights}
        self.counted = {k: TokenArray(k, v) for k, v in given.items() if v is not None}
        self.widths = widths

    def sums(
        self, prediction: Float[Tensor, "B n O"], target: Float[Tensor, "B n O"], rows: Range
    ) -> Float[Tensor, "2 B F"]:
        """Return the squares of errors and of targets, added up over these tokens."""
        counted = {k: a.read(*rows).to(prediction.device) for k, a in self.counted.items()}
        widths = (prediction.shape[-1],) if self.widths is None else self.widths
        return error_squares(prediction, target, widths, **counted)

    def value(self, sums: Float[Tensor, "2 B F"]) -> Float[Tensor, ""]:
        """Return the mean error."""
        return errors_of_squares(sums).mean()
