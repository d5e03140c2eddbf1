"""Relative L2 errors: as losses, whole, over sums or of finite differences, and of all cases."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from jaxtyping import Float
from tensordict import TensorDict
from torch import Tensor

from ..inference.arrays import ArrayLike, TokenArray
from ..inference.streams import Range
from ..ops.collectives import Group
from ..ops.errors import error_squares, errors_of_squares, field_errors, relative_l2


def relative_l2_loss(
    prediction: Float[Tensor, "B *tokens O"],
    target: Float[Tensor, "B *tokens O"],
    *,
    group: Group | None = None,
) -> Float[Tensor, ""]:
    """Return the mean of :func:`relative_l2` over the samples, the loss and metric of the paper.

    Over a data x context mesh its mean over "data" is the loss of the whole batch.
    """
    return relative_l2(prediction, target, group=group).mean()


def derivative_loss(
    prediction: Float[Tensor, "B N O"],
    target: Float[Tensor, "B N O"],
    grid: tuple[int, int],
    widths: Sequence[int],
) -> Float[Tensor, ""]:
    """Return the relative L2 loss of the central differences along both axes of a grid, added up.

    For fields that are 0 on the boundary of the grid, as Darcy's: the predicted boundary is set to
    0, both fields are continued by 0, and the differences are taken at all points. The spacing
    cancels in the relative error. Samples are whole, tokens in row-major order.
    """
    prediction, target = (value.unflatten(1, grid) for value in (prediction, target))
    prediction = F.pad(prediction[:, 1:-1, 1:-1], (0, 0, 2, 2, 2, 2))
    target = F.pad(target, (0, 0, 1, 1, 1, 1))

    def differences(values: Tensor) -> tuple[Tensor, Tensor]:
        down, along = values[:, :, 1:-1], values[:, 1:-1]
        return down[:, 2:] - down[:, :-2], along[:, :, 2:] - along[:, :, :-2]

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
    """Mean relative L2 error as a function of sums of squares, of fields of these `widths`."""

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


@torch.no_grad()
def case_errors(
    measures: Mapping[str, Callable[[TensorDict], Float[Tensor, "B F"]]],
    loader: Iterable[TensorDict],
    columns: int,
    *,
    data_group: dist.ProcessGroup | None = None,
    advance: Callable[[], None] = lambda: None,
) -> dict[str, Float[Tensor, "cases F"]]:
    """Return the `columns` numbers of each measure for all cases of a split, alike on all ranks."""
    cases = [torch.empty(0, dtype=torch.int64)]
    errors = {name: [torch.empty(0, columns)] for name in measures}
    for batch in loader:
        for name, measure in measures.items():
            errors[name].append(measure(batch).cpu())
        cases.append(batch["case_index"].cpu())
        advance()
    own = torch.cat(cases), {name: torch.cat(found) for name, found in errors.items()}
    everyones = [own]
    if data_group is not None and dist.get_world_size(data_group) > 1:
        everyones = [None] * dist.get_world_size(data_group)
        dist.all_gather_object(everyones, own, group=data_group)
    order = torch.cat([positions for positions, _ in everyones]).argsort()
    return {name: torch.cat([found[name] for _, found in everyones])[order] for name in measures}
