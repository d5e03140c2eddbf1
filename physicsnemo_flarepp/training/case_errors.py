"""Relative L2 errors of the cases of a loader, over all ranks."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from jaxtyping import Float
from physicsnemo.datapipes import DataLoader
from tensordict import TensorDict
from torch import Tensor

from ..datapipes.normalization import Normalizer
from ..ops.collectives import Group
from .losses import batch_errors


@torch.no_grad()
def case_errors(
    predict: Callable[[TensorDict], Float[Tensor, "B N O"]],
    loader: DataLoader,
    widths: tuple[int, ...],
    *,
    norm: str = "tokens",
    context_group: Group | None = None,
    data_group: dist.ProcessGroup | None = None,
    advance: Callable[[], None] = lambda: None,
) -> Float[Tensor, "cases F"]:
    """Return the errors of all cases of a split, in its order and the same on all ranks.

    Parameters
    ----------
    predict : Callable
        From a batch to fields in physical units.
    loader : DataLoader
        Gives this rank's batches.
    widths : tuple[int, ...]
        Channels of the F fields.
    norm : str, optional
        As in :func:`~.losses.batch_errors`.
    context_group : ProcessGroup or str, optional
        The ranks that hold parts of the same cases.
    data_group : ProcessGroup, optional
        The ranks that hold different cases.
    advance : Callable, optional
        Called after each batch.

    Returns
    -------
    torch.Tensor
        Relative L2 errors, on the CPU.
    """
    cases, errors = [torch.empty(0, dtype=torch.int64)], [torch.empty(0, len(widths))]
    for batch in loader:
        found = batch_errors(predict(batch), batch, widths, norm, context_group)
        errors.append(found.cpu())
        cases.append(batch["case_index"].cpu())
        advance()
    own = torch.cat(cases), torch.cat(errors)
    everyones = [own]
    if data_group is not None and dist.get_world_size(data_group) > 1:
        everyones = [None] * dist.get_world_size(data_group)
        dist.all_gather_object(everyones, own, group=data_group)
    positions, errors = (torch.cat(values) for values in zip(*everyones, strict=True))
    return errors[positions.argsort()]


def predict_mean(normalizer: Normalizer) -> Callable[[TensorDict], Float[Tensor, "B N O"]]:
    """Return what predicts the fields that normalise to 0, for :func:`case_errors`."""

    def predict(batch: TensorDict) -> Float[Tensor, "B N O"]:
        return normalizer.inverse(torch.zeros_like(batch["fields"]), batch["tokens"])

    return predict
