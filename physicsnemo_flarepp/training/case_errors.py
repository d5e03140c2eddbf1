"""Relative L2 errors of the cases of a loader, over all ranks."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from physicsnemo.datapipes import DataLoader
from tensordict import TensorDict
from torch import Tensor

from ..ops.collectives import Group
from ..ops.errors import field_errors


@torch.no_grad()
def case_errors(
    predict: Callable[[TensorDict], Float[Tensor, "B N O"]],
    loader: DataLoader,
    widths: tuple[int, ...],
    group: Group | None = None,
) -> tuple[Int[Tensor, " n"], Float[Tensor, "n F"]]:
    """Return the cases that this rank's loader gives and their errors in physical units.

    Parameters
    ----------
    predict : Callable
        From a batch to fields in physical units.
    loader : DataLoader
        Gives batches.
    widths : tuple[int, ...]
        Channels of the F fields.
    group : ProcessGroup or str, optional
        The context group whose ranks hold parts of the same cases.

    Returns
    -------
    tuple[torch.Tensor, torch.Tensor]
        Positions of the cases in the split (n,) and relative L2 errors (n, F).
    """
    cases, errors = [], []
    for batch in loader:
        mask = batch.get("token_mask", None)
        prediction = predict(batch)
        errors.append(
            field_errors(prediction, batch["fields"], widths, token_mask=mask, group=group)
        )
        cases.append(batch["case_index"])
    if not cases:
        return torch.empty(0, dtype=torch.int64), torch.empty(0, len(widths))
    return torch.cat(cases), torch.cat(errors)


def gather_errors(
    cases: Int[Tensor, " n"], errors: Float[Tensor, "n F"], group: dist.ProcessGroup | None
) -> Float[Tensor, "cases F"]:
    """Return the errors of all cases in the order of the split, the same on all data ranks.

    Examples
    --------
    >>> gather_errors(torch.tensor([1, 0]), torch.tensor([[0.2], [0.1]]), None).flatten()
    tensor([0.1000, 0.2000])
    """
    parts = [(cases.cpu(), errors.cpu())]
    if group is not None and dist.get_world_size(group) > 1:
        mine, parts = parts[0], [None] * dist.get_world_size(group)
        dist.all_gather_object(parts, mine, group=group)
    cases, errors = (torch.cat([part[i] for part in parts]) for i in (0, 1))
    return errors[cases.argsort()]
