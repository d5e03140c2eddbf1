"""Relative L2 errors of the cases of a loader, over all ranks."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from physicsnemo.datapipes import DataLoader
from tensordict import TensorDict
from torch import Tensor


@torch.no_grad()
def case_errors(
    predict: Callable[[TensorDict], Float[Tensor, "B N O"]],
    loader: DataLoader,
    measure: Callable[[Float[Tensor, "B N O"], TensorDict], Float[Tensor, "B F"]],
    n_fields: int,
) -> tuple[Int[Tensor, " n"], Float[Tensor, "n F"]]:
    """Return the cases that this rank's loader gives and their errors in physical units.

    Parameters
    ----------
    predict : Callable
        From a batch to fields in physical units.
    loader : DataLoader
        Gives batches.
    measure : Callable
        From a prediction and its batch to the errors of each field, such as
        :meth:`~.step.FieldLoss.errors`.
    n_fields : int
        The F fields that have an error.

    Returns
    -------
    tuple[torch.Tensor, torch.Tensor]
        Positions of the cases in the split (n,) and relative L2 errors (n, F).
    """
    cases, errors = [], []
    for batch in loader:
        errors.append(measure(predict(batch), batch))
        cases.append(batch["case_index"])
    if not cases:
        return torch.empty(0, dtype=torch.int64), torch.empty(0, n_fields)
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
