"""Which tokens a rank owns, and how to bring them together again."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from ..ops import all_gather


def shard_bounds(n_tokens: int, group: ProcessGroup) -> tuple[int, int]:
    """Return the range of tokens that this rank owns, for reading it alone from a file.

    Shards differ by at most one token; the first ranks get the longer ones.

    Parameters
    ----------
    n_tokens : int
        Tokens of the whole sample.
    group : ProcessGroup
        The context group.

    Returns
    -------
    tuple[int, int]
        First token and one past the last; equal where there are more ranks than tokens.
    """
    return split_bounds(n_tokens, dist.get_world_size(group), dist.get_rank(group))


def split_bounds(n_tokens: int, ranks: int, rank: int) -> tuple[int, int]:
    """Return the bounds of part ``rank`` of ``n_tokens`` split over ``ranks``."""
    size, longer = divmod(n_tokens, ranks)
    start = rank * size + min(rank, longer)
    return start, start + size + (rank < longer)


def shard_tokens(x: Tensor, group: ProcessGroup, dim: int = 1) -> Tensor:
    """Take this rank's tokens of a tensor that every rank holds whole.

    For data that is read whole anyway, and for tests; :func:`shard_bounds` avoids reading it.

    Parameters
    ----------
    x : torch.Tensor
        The whole tensor, the same on all ranks.
    group : ProcessGroup
        The context group.
    dim : int, optional, default=1
        The token axis.

    Returns
    -------
    torch.Tensor
        A view with the rank's part of axis ``dim``.
    """
    start, stop = shard_bounds(x.shape[dim], group)
    return x.narrow(dim, start, stop - start)


def gather_tokens(x: Tensor, group: ProcessGroup, dim: int = 1) -> Tensor:
    """Bring the tokens of all ranks together on every rank, for writing or plotting.

    The only function here whose traffic grows with the number of tokens. It is not
    differentiable: losses are computed on shards, with ``group``.

    Parameters
    ----------
    x : torch.Tensor
        This rank's tokens; axis ``dim`` may differ between ranks and be empty.
    group, dim
        As in :func:`shard_tokens`.

    Returns
    -------
    torch.Tensor
        The whole tensor in rank order, the same on all ranks.
    """
    if torch.is_grad_enabled() and x.requires_grad:
        raise ValueError(
            "gather_tokens is not differentiable but x requires a gradient; call it on x.detach(), "
            "and compute losses on the shards, e.g. relative_l2(..., group=group)"
        )
    if dist.get_world_size(group) == 1:
        return x
    sizes = all_gather(torch.tensor(x.shape[dim], device=x.device), group).tolist()
    # Padding to the longest shard lets one collective serve every backend.
    padded = x.new_zeros((max(sizes), *x.movedim(dim, 0).shape[1:]))
    padded[: x.shape[dim]] = x.movedim(dim, 0)
    parts = all_gather(padded, group)
    whole = torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])
    return whole.movedim(0, dim)
