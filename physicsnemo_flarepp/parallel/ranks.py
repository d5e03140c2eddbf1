"""Where a process stands among all, and what the first does for the others."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.distributed import DeviceMesh, ProcessGroup

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """Rank and size of the job, its mesh ("data", "context"), and the device of this process."""

    rank: int
    size: int
    mesh: DeviceMesh
    device: torch.device

    @property
    def is_first(self) -> bool:
        """Whether this process is the one that writes."""
        return self.rank == 0

    @property
    def context_group(self) -> ProcessGroup | None:
        """The ranks that share a sample, None if it is whole."""
        return self.mesh["context"].get_group() if self.mesh["context"].size() > 1 else None

    @property
    def data_group(self) -> ProcessGroup:
        """The ranks that hold the same part of different samples."""
        return self.mesh["data"].get_group()


def on_first_rank(function: Callable[[], T]) -> T:
    """Return on all ranks what `function` returns on the first; raise on all what it raises."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return function()
    outcome: list = [None, None]
    if dist.get_rank() == 0:
        try:
            outcome[0] = function()
        except Exception as error:  # whatever it is, the others must not wait for ever
            outcome[1] = error
    dist.broadcast_object_list(outcome, src=0)
    if outcome[1] is not None:
        raise outcome[1]
    return outcome[0]
