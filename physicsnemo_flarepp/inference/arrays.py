"""Arrays of any storage: inputs, of which ranges are read, and outputs that fill up.

An interrupted prediction never looks finished.
"""

import math
import os
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..files import put_in_place
from ..mixers.base import TokenWeights
from ..models import TokenModel
from ..models.token_model import scale_weights
from ..ops.attention import join_weights
from ..ops.checks import check_mask, check_weights
from .streams import Range, Transfers

_NUMPY_DTYPES = {torch.float64: np.float64, torch.float32: np.float32,
                 torch.float16: np.float16, torch.bfloat16: np.float32}  # fmt: skip


@runtime_checkable
class ArrayLike(Protocol):
    """What an input array must offer: tensors, NumPy, memory-mapped, zarr and h5py arrays do."""

    @property
    def shape(self) -> Sequence[int]:
        """Length along each axis."""

    @property
    def dtype(self) -> Any:
        """Kind of numbers, of torch or NumPy."""

    def __getitem__(self, key: Any) -> Any:
        """Read a slice."""


class TokenArray:
    """One input of the model as rows (B, N, F), of which only the asked ranges are read.

    The array is (B, N, F), (N, F) for a batch of one, or (B, *grid, F); a mask or weights have no
    F. The name is that of the argument, for messages.
    """

    def __init__(self, name: str, array: ArrayLike, grid: tuple[int, ...] | None = None) -> None:
        if not isinstance(array, ArrayLike):
            raise TypeError(
                f"{name} must be a torch tensor, NumPy array, memory map or zarr array, "
                f"got {type(array).__name__}"
            )
        self.name = name
        self.array: Any = array  # written to where it holds gradients
        shape = tuple(array.shape)
        self.lacks_batch = len(shape) == (1 if name in ("token_mask", "token_weights") else 2)
        if self.lacks_batch:
            shape = (1, *shape)
        self.on_grid = grid is not None and len(shape) > 3 and shape[1:-1] == tuple(grid)
        self.plane = math.prod(shape[2:-1]) if self.on_grid else 1
        self.shape = (shape[0], math.prod(shape[1:-1]), shape[-1]) if self.on_grid else shape

    def read(self, start: int, stop: int) -> Tensor:
        """Return rows ``start:stop`` of every sample, (B, rows, F); tensors stay where they are."""
        if self.lacks_batch:
            return _as_tensor(self.array[start:stop])[None]
        if not self.on_grid:
            return _as_tensor(self.array[:, start:stop])
        # Whole planes of the leading grid axis: a flat view does not exist for every storage.
        first, last = start // self.plane, -(-stop // self.plane)
        rows = _as_tensor(self.array[:, first:last]).flatten(1, -2)
        return rows[:, start - first * self.plane : stop - first * self.plane]

    def write(self, start: int, rows: Tensor) -> None:
        """Store rows (B, rows, F) from ``start`` on, in the dtype of the array."""
        stop = start + rows.shape[1]
        if self.lacks_batch:
            self.array[start:stop] = self._stored(rows[0])
        elif not self.on_grid:
            self.array[:, start:stop] = self._stored(rows)
        else:
            first, last = start // self.plane, -(-stop // self.plane)
            planes = _as_tensor(self.array[:, first:last]).clone()
            flat = planes.flatten(1, -2)
            flat[:, start - first * self.plane : stop - first * self.plane] = rows
            self.array[:, first:last] = self._stored(flat.view(planes.shape))

    def _stored(self, rows: Tensor) -> Any:
        return rows if isinstance(self.array, Tensor) else rows.cpu().numpy()

    def meta(self) -> Tensor:
        """Return a tensor of this shape and dtype without memory, for the model's own checks."""
        dtype = self.array.dtype
        if not isinstance(dtype, torch.dtype):
            dtype = torch.from_numpy(np.empty(0, np.dtype(dtype).newbyteorder("="))).dtype
        return torch.empty(self.shape, dtype=dtype, device="meta")


class TokenInputs:
    """All per-token inputs of one prediction, loaded range by range in the model's dtype.

    With `any_points` a model of a grid takes any points, not just its whole grid.
    """

    def __init__(
        self,
        model: TokenModel,
        fx: ArrayLike,
        embedding: ArrayLike | None,
        time: Float[Tensor, " B"] | None,
        token_mask: ArrayLike | None = None,
        token_weights: ArrayLike | None = None,
        any_points: bool = False,
    ) -> None:
        self.model, grid = model, model.structured_shape
        parameter = next(model.parameters())
        self.device, self.dtype = parameter.device, parameter.dtype
        self.fx = TokenArray("fx", fx, grid)
        self.batch = self.fx.shape[0]
        if model.unified_pos and (embedding is None or not any_points):
            if embedding is not None:
                model.check_replaced(self.batch, TokenArray("embedding", embedding, grid).shape)
            embedding = model.positions[None].expand(self.batch, -1, -1)
        self.embedding = None if embedding is None else TokenArray("embedding", embedding, grid)
        self.time = None if time is None else time.to(self.device)
        arrays = [array for array in (self.fx, self.embedding) if array is not None]
        self.n_tokens = arrays[-1].shape[1]
        # The layout of fx, as in the model; one row of it has none.
        self.on_grid = (arrays[-1] if self.fx.shape[1] == 1 else self.fx).on_grid
        self._check(model, any_points)
        self.token_mask: TokenArray | None = None
        self.token_weights: TokenArray | None = None
        self.total_weight = torch.empty(0)  # of each sample, set before weights are loaded
        shape = (self.batch, self.n_tokens)
        if token_mask is not None:
            self.token_mask = TokenArray("token_mask", token_mask)
            check_mask("token_mask", self.token_mask.meta(), shape)
        if token_weights is not None:
            self.token_weights = TokenArray("token_weights", token_weights)
            check_weights("token_weights", self.token_weights.meta(), shape)

    def _check(self, model: TokenModel, any_points: bool) -> None:
        fx = self.fx.meta()
        embedding = None if self.embedding is None else self.embedding.meta()
        if any_points and model.structured_shape is not None:
            # The model insists on its whole grid: show it that many rows where N stands.
            rows = math.prod(model.structured_shape)
            if fx.ndim == 3 and fx.shape[1] == self.n_tokens:
                fx = fx.new_empty((fx.shape[0], rows, fx.shape[2]))
            if embedding is not None and embedding.ndim == 3:
                embedding = embedding.new_empty((embedding.shape[0], rows, embedding.shape[2]))
        model.check_inputs(fx, embedding, self.time)

    @property
    def require_grad(self) -> bool:
        """Whether a gradient with respect to an input is wanted."""
        arrays = [self.fx.array, None if self.embedding is None else self.embedding.array]
        tensors = [array for array in (*arrays, self.time) if isinstance(array, Tensor)]
        return any(tensor.requires_grad for tensor in tensors)

    def load(self, start: int, stop: int) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return fx, embedding and weights of the tokens ``start:stop`` on the model's device.

        Raises ValueError if a value of a real token is NaN or infinite.
        """
        weights = self.read_weights(start, stop)
        embedding = None
        if self.embedding is not None:
            embedding = self._load_checked(self.embedding, start, stop, weights)
        own = (start, stop, weights) if self.fx.shape[1] == self.n_tokens else (0, 1, None)
        return self._load_checked(self.fx, *own), embedding, self._scaled(weights)

    def load_weights(self, start: int, stop: int) -> TokenWeights | None:
        """Return the weights of the tokens ``start:stop``, or the mask, on the model's device.

        Weights are scaled by :attr:`total_weight`, which must have been set.
        """
        return self._scaled(self.read_weights(start, stop))

    def add_up_weights(self, ranges: Sequence[tuple[int, int]]) -> Float[Tensor, " B"]:
        """Return the sum of the token weights of each sample, fp64 on the model's device.

        Raises ValueError if the weight of a real token is negative, NaN or infinite.
        """
        total = torch.zeros(self.batch, dtype=torch.float64)
        for start, stop in ranges:
            weights = cast(Tensor, self.read_weights(start, stop)).cpu()
            check_weights("token_weights", weights, (self.batch, stop - start), first=start)
            total += weights.sum(-1, dtype=torch.float64)
        return total.to(self.device)

    def read_weights(self, start: int, stop: int) -> TokenWeights | None:
        """Read mask and weights as one, where the weights are stored."""
        mask = None if self.token_mask is None else self.token_mask.read(start, stop)
        if self.token_weights is None:
            return mask
        weights = self.token_weights.read(start, stop).detach()
        return join_weights(None if mask is None else mask.to(weights.device), weights)

    def _scaled(self, weights: TokenWeights | None) -> TokenWeights | None:
        if weights is None:
            return None
        weights = self.to_device(weights)
        if self.token_weights is None:
            return weights
        return scale_weights(weights, self.total_weight, self.dtype)

    def to_device(self, rows: Tensor) -> Tensor:
        """Copy rows to the model's device, from page-locked memory where that makes it async."""
        if rows.device == self.device:
            return rows
        if self.device.type == "cuda":
            rows = rows.pin_memory()
        return rows.to(self.device, non_blocking=True)

    def _load_checked(
        self, array: TokenArray, start: int, stop: int, weights: TokenWeights | None
    ) -> Tensor:
        rows = array.read(start, stop).to(self.dtype)
        # Where the rows live: arrays on the host are checked without waiting for a GPU.
        finite = rows.detach().isfinite()
        if weights is not None:
            finite |= (weights == 0).to(rows.device)[..., None]
        if not finite.all():
            sample, row, channel = (~finite).nonzero()[0].tolist()
            raise ValueError(
                f"{array.name} holds {rows[sample, row, channel].item()} at row {start + row} "
                f"(sample {sample}, channel {channel}); repair it, or exclude it with token_mask"
            )
        return self.to_device(rows)


def _as_tensor(rows) -> Tensor:
    if isinstance(rows, Tensor):
        return rows
    rows = np.asarray(rows)
    # A copy in native byte order: memory maps are often read-only, which torch cannot express.
    return torch.from_numpy(np.array(rows, dtype=rows.dtype.newbyteorder("=")))


class Output:
    """Collects the rows of a prediction in a new tensor, a caller's array or a ``.npy`` file.

    Use it as a context manager. An array is filled with NaN first, so that rows which an
    interrupted prediction did not reach are NaN. A file is written as ``<path>.partial`` and
    renamed when the block ends without an exception; an earlier one stays whole until then.

    It has the layout of the inputs. A file has the dtype of the model; a new tensor is made on
    `device`.
    """

    def __init__(
        self,
        out: ArrayLike | str | os.PathLike | None,
        inputs: TokenInputs,
        device: torch.device,
        transfers: Transfers,
    ) -> None:
        width, grid = inputs.model.out_dim, inputs.model.structured_shape
        tokens = grid if inputs.on_grid and grid is not None else (inputs.n_tokens,)
        self.rows_shape = (inputs.batch, inputs.n_tokens, width)
        self.full_shape = (inputs.batch, *tokens, width)
        self.dtype, self.device, self.transfers = inputs.dtype, device, transfers
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
            self.draft = Path(f"{self.path}.partial")
        elif out is not None:
            self.array = out
            self._rows = self._view_as_rows(out)

    def __enter__(self) -> "Output":
        """Open the file, or mark every row of the caller's array as not predicted."""
        if self.path is not None:
            self._file = np.lib.format.open_memmap(
                self.draft, "w+", _NUMPY_DTYPES[self.dtype], self.full_shape
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
            put_in_place(self.draft, self.path)
        else:
            self.draft.unlink()

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
            self._rows[:, start:stop] = (y.float() if y.dtype == torch.bfloat16 else y).numpy()

    def _view_as_rows(self, array: ArrayLike) -> Any:
        shape = tuple(array.shape)
        if shape not in (self.rows_shape, self.full_shape):
            wanted = " or ".join(map(str, dict.fromkeys((self.full_shape, self.rows_shape))))
            raise ValueError(f"out must have shape {wanted}, got {shape}")
        kind, known = array.dtype, isinstance(array.dtype, torch.dtype)
        if not (kind.is_floating_point if known else np.issubdtype(kind, np.floating)):
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
