"""Where predictions go, such that an interrupted one never looks finished."""

import math
import os
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..files import put_in_place
from .inputs import ArrayLike
from .streams import Range, Transfers

_NUMPY_DTYPES = {
    torch.float64: np.float64,
    torch.float32: np.float32,
    torch.float16: np.float16,
    torch.bfloat16: np.float32,
}


def _partial(path: Path) -> Path:
    """Return where a file is written before it is complete."""
    return Path(f"{path}.partial")


class Output:
    """Collects the rows of a prediction in a new tensor, a caller's array or a ``.npy`` file.

    Use it as a context manager. An array is filled with NaN first, so that rows which an
    interrupted prediction did not reach are NaN. A file is written as ``<path>.partial`` and
    renamed when the block ends without an exception; an earlier one stays whole until then.

    `shape` is (B, N, out_dim) in rows, `grid` that of the result if the rows are its points. A file
    has the `dtype` of the model; a new tensor is made on `device`.
    """

    def __init__(
        self,
        out: ArrayLike | str | os.PathLike | None,
        shape: tuple[int, int, int],
        grid: tuple[int, ...] | None,
        dtype: torch.dtype,
        device: torch.device,
        transfers: Transfers,
    ) -> None:
        self.rows_shape = shape
        self.full_shape = shape if grid is None else (shape[0], *grid, shape[2])
        self.dtype = dtype
        self.device = device
        self.transfers = transfers
        self.path: Path | None = None
        self.array: ArrayLike | None = None
        # Rows of a tensor or of an array of any library.
        self._rows: Any = None
        self._file: np.memmap | None = None
        self._pending: deque[tuple[torch.cuda.Event | None, Range, Tensor]] = deque()
        if isinstance(out, str | os.PathLike):
            self.path = Path(out)
            if self.path.suffix != ".npy":
                raise ValueError(f"out must be a path ending in .npy or an array, got {self.path}")
        elif out is not None:
            self.array = out
            self._rows = self._view_as_rows(out)

    def __enter__(self) -> "Output":
        """Open the file, or mark every row of the caller's array as not predicted."""
        if self.path is not None:
            self._file = np.lib.format.open_memmap(
                _partial(self.path), "w+", _NUMPY_DTYPES[self.dtype], self.full_shape
            )
            self._rows = self._file.reshape(self.rows_shape)
        elif self._rows is not None:
            step = 2**16
            for start in range(0, self.rows_shape[1], step):
                self._rows[:, start : start + step] = math.nan
        return self

    def __exit__(self, kind, error, trace) -> None:
        """Name a finished file, remove an unfinished one."""
        if self.path is None or self._file is None:
            return
        self._file.flush()
        if kind is None:
            put_in_place(_partial(self.path), self.path)
        else:
            _partial(self.path).unlink()

    def write(self, rows: Range, y: Tensor) -> None:
        """Take the prediction of a range of tokens, (B, rows, out_dim)."""
        if self._rows is None:
            self._rows = torch.empty(self.rows_shape, dtype=y.dtype, device=self.device)
        if isinstance(self._rows, Tensor) and self._rows.device == y.device:
            self._rows[:, slice(*rows)] = y
            return
        staged, done = y, None
        if self.transfers.is_cuda:
            staged = torch.empty(y.shape, dtype=y.dtype, pin_memory=True)
            done = self.transfers.store(staged, y)
        self._pending.append((done, rows, staged))
        if len(self._pending) > 1:  # the copy of the chunk before had a chunk's time to arrive
            self._write_oldest()

    def finish(self) -> None:
        """Write what is still on its way."""
        while self._pending:
            self._write_oldest()

    def result(self) -> Tensor | ArrayLike:
        """Return the new tensor, the caller's array, or the finished file as a read-only map."""
        if self.path is not None:
            return np.load(self.path, mmap_mode="r")
        return self._rows.reshape(self.full_shape) if self.array is None else self.array

    def _write_oldest(self) -> None:
        done, (start, stop), y = self._pending.popleft()
        if done is not None:
            done.synchronize()
        if isinstance(self._rows, Tensor):
            self._rows[:, start:stop] = y
        else:
            y = y.float() if y.dtype == torch.bfloat16 else y
            self._rows[:, start:stop] = y.numpy()

    def _view_as_rows(self, array: ArrayLike) -> Any:
        shape = tuple(array.shape)
        if shape not in (self.rows_shape, self.full_shape):
            wanted = " or ".join(map(str, dict.fromkeys((self.full_shape, self.rows_shape))))
            raise ValueError(f"out must have shape {wanted}, got {shape}")
        floating = (
            array.is_floating_point()
            if isinstance(array, Tensor)
            else np.issubdtype(array.dtype, np.floating)
        )
        if not floating:
            raise TypeError(f"out must be of a floating dtype, got {array.dtype}")
        if shape == self.rows_shape:
            return array
        if isinstance(array, Tensor):
            return array.view(self.rows_shape)
        rows = array.reshape(self.rows_shape) if isinstance(array, np.ndarray) else None
        if rows is None or not np.shares_memory(rows, array):
            raise ValueError(
                f"out on the grid must be a contiguous tensor or NumPy array, got "
                f"{type(array).__name__}; pass an array of shape {self.rows_shape}"
            )
        return rows
