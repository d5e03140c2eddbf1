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
        Host memory (page-locked if the device is a CUDA one), the device, or unnamed files in this
        directory.
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
            # All at once: blocks made between the temporaries of chunks would fragment the heap.
            batch, _, width = x.shape
            shapes = [torch.Size((batch, stop - start, width)) for start, stop in self.ranges]
            self._blocks = [self._new_block(shape, dtype) for shape in shapes]
        elif self._blocks[index].dtype != dtype:
            # Some mixers widen the dtype under autocast in their first block.
            self._blocks[index] = self._new_block(x.shape, dtype)
        self._written_dtype = x.dtype
        self.transfers.store(self._blocks[index], x)

    def read(self, index: int) -> Float[Tensor, "B rows C"]:
        """Give the hidden state of one chunk on the device; do not change it in place."""
        block = self._blocks[index].to(self.transfers.device, non_blocking=True)
        return block.to(self._written_dtype)

    def _new_block(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        if isinstance(self.place, Path) and shape.numel():
            return _map_unnamed_file(self.place, shape.numel(), dtype).view(shape)
        if self.place == "device":
            return torch.empty(shape, dtype=dtype, device=self.transfers.device)
        # Page-locked block by block: torch rounds each request up to a power of two.
        return torch.empty(shape, dtype=dtype, pin_memory=self.transfers.is_cuda)


def _map_unnamed_file(directory: Path, size: int, dtype: torch.dtype) -> Tensor:
    # The mapping outlives the name, so that no end of the process leaves the file behind.
    with tempfile.NamedTemporaryFile(dir=directory, prefix="flarepp-residual-") as file:
        return torch.from_file(file.name, shared=True, size=size, dtype=dtype)
