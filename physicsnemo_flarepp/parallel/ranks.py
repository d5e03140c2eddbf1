"""Where a process stands among all."""

from dataclasses import dataclass

import torch
from torch.distributed import DeviceMesh, ProcessGroup


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
