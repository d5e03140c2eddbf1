"""The hidden state of all tokens between two passes over them."""

import tempfile
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from .chunks import Range
from .transfers import Transfers


class ResidualStream:
    """Hidden states (B, rows, C) of every chunk, kept on the host, on the device or on disk.

    Each chunk is one contiguous block, so that a copy is one transfer. Blocks are made at the
    first write, in the dtype that is written: under autocast that of the plain forward.

    Parameters
    ----------
    ranges : list of (int, int)
        Token ranges of the chunks.
    transfers : Transfers
        Copies between host and device.
    place : "cpu", "device" or pathlib.Path
        Host memory (page-locked if the device is a CUDA one), the device, or an unnamed file in
        this directory.
    dtype : torch.dtype, optional
        Store in this dtype and restore what was written on reading. Default: as written.
    """

    def __init__(
        self,
        ranges: list[Range],
        transfers: Transfers,
        place: str | Path = "cpu",
        dtype: torch.dtype | None = None,
    ) -> None:
        self.ranges = ranges
        self.transfers = transfers
        self.place = place
        self.dtype = dtype
        self._written_dtype: torch.dtype | None = None
        self._blocks: list[Tensor] = []

    def write(self, index: int, x: Float[Tensor, "B rows C"]) -> None:
        """Keep the hidden state of one chunk."""
        dtype = self.dtype or x.dtype
        if not self._blocks:
            self._allocate(x, dtype)
        elif self._blocks[index].dtype != dtype:
            # Some mixers change the dtype under autocast in their first block.
            self._blocks[index] = torch.empty_like(self._blocks[index], dtype=dtype)
        self._written_dtype = x.dtype
        self.transfers.store(self._blocks[index], x)

    def read(self, index: int) -> Float[Tensor, "B rows C"]:
        """Give the hidden state of one chunk on the device; do not change it in place."""
        block = self._blocks[index].to(self.transfers.device, non_blocking=True)
        return block.to(self._written_dtype)

    def _allocate(self, x: Tensor, dtype: torch.dtype) -> None:
        batch, _, width = x.shape
        sizes = [batch * (stop - start) * width for start, stop in self.ranges]
        if isinstance(self.place, Path):
            flat = _map_unnamed_file(self.place, max(sum(sizes), 1), dtype)
            blocks = flat[: sum(sizes)].split(sizes)
        else:
            device = self.transfers.device if self.place == "device" else torch.device("cpu")
            # Page-locked block by block: torch rounds each request up to a power of two.
            pin = self.transfers.is_cuda and device.type == "cpu"
            blocks = [torch.empty(n, dtype=dtype, device=device, pin_memory=pin) for n in sizes]
        self._blocks = [
            block.view(batch, -1, width) if n else block.view(batch, 0, width)
            for block, n in zip(blocks, sizes, strict=True)
        ]


def _map_unnamed_file(directory: Path, size: int, dtype: torch.dtype) -> Tensor:
    # The mapping outlives the name, so that no end of the process leaves the file behind.
    with tempfile.NamedTemporaryFile(dir=directory, prefix="flarepp-residual-") as file:
        return torch.from_file(file.name, shared=True, size=size, dtype=dtype)
