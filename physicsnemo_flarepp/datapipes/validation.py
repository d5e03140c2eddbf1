"""Validation of what readers find: errors name the file, the value and the next step."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import psutil

from ..texts import printable

_OUT_OF_PROPORTION = 1e9
# Arrays of up to this many bytes are read without asking how much memory is free.
_SMALL = 1 << 26
_FEW = 16


class MissingName(ValueError, KeyError):
    """A name that is not in a file."""

    def __str__(self) -> str:
        """Return the message itself; a KeyError would quote it."""
        return str(self.args[0])


class TooLarge(ValueError, MemoryError):
    """An array that the memory of the machine cannot hold."""


def check_fits(path: Path | str, name: str, shape: Sequence[int], dtype: np.dtype) -> None:
    """Raise if an array, as its file declares it, needs more memory than is free."""
    size = math.prod(shape) * dtype.itemsize
    if size > _SMALL and size > (free := psutil.virtual_memory().available):
        raise TooLarge(
            f"{path}: {printable(name)} has the shape {tuple(shape)} and needs {size / 1e9:.3g} "
            f"GB, but {free / 1e9:.3g} GB are free. Split the cases, or repair the file"
        )


def existing_directory(root: str | Path, *, expected: Sequence[str], source: str) -> Path:
    """Return `root` as a path, or say which files belong there and where they come from."""
    path = Path(root).expanduser()
    if not path.is_dir():
        state = "is not a directory" if path.exists() else "does not exist"
        raise FileNotFoundError(
            f"data directory {path} {state}; expected {', '.join(expected)} in it. Set data.root "
            f"to where they are; {source}"
        )
    return path


def one_file(root: Path, pattern: str, *, source: str, preferred: str | None = None) -> Path:
    """Return the file in `root`, or else below it, that matches; `preferred` if several do."""
    found = sorted(root.glob(pattern)) or sorted(root.rglob(pattern))
    found = [path for path in found if path.name == preferred] or found
    if len(found) == 1:
        return found[0]
    present = ", ".join(sorted(p.name for p in root.iterdir())[:20]) or "nothing"
    if not found:
        raise FileNotFoundError(
            f"{root / pattern} is missing, also below; {root} holds {present}. See {source}"
        )
    names = ", ".join(str(path.relative_to(root)) for path in found)
    raise ValueError(f"{root / pattern} matches {len(found)} files ({names}); keep one of them")


def check_shape(path: Path, name: str, shape: Sequence[int], expected: Sequence[int | str]) -> None:
    """Raise unless `shape` is as expected; a string stands for any length, the same each time."""
    lengths: dict[str, int] = {}
    fits = len(shape) == len(expected) and all(
        got == (lengths.setdefault(want, got) if isinstance(want, str) else want)
        for got, want in zip(shape, expected, strict=True)
    )
    if not fits:
        wanted = ", ".join(str(want) for want in expected)
        raise ValueError(
            f"{path}: {name} has shape {tuple(shape)}, expected ({wanted}); check the order of axes"
        )


def check_finite(
    path: Path | str, case_id: str, name: str, values: np.ndarray, channels: Sequence[str] = ()
) -> None:
    """Raise if `values` holds NaN or infinity; `channels` names its columns."""
    finite = np.isfinite(values)
    bad = values.size - np.count_nonzero(finite)
    if bad:
        rows = ~finite.reshape(len(values), -1) if values.ndim == 2 else ~finite.reshape(1, -1)
        named = [channel for channel, wrong in zip(channels, rows.any(0), strict=False) if wrong]
        where = f" ({', '.join(named)}, first at row {int(rows.any(1).argmax())})" if named else ""
        raise ValueError(
            f"{path}: case {case_id} has {bad} of {values.size} values of {name} NaN or infinite"
            f"{where}. Repair the file, or leave the case out"
        )


def check_range(path: Path | str, case_id: str, name: str, values: np.ndarray) -> None:
    """Raise if a few of the `values` (N, channels) are out of all proportion to the others.

    A flipped bit in the exponent makes a number 10^9 times larger or more. Single precision leaves
    noise of 10^-7 beside a peak, so that a sound field has no such gap.
    """
    for channel in range(values.shape[1]):
        # One channel at a time: reductions along the rows of a table are ten times slower.
        sizes = np.abs(values[:, channel])
        row = int(sizes.argmax()) if len(sizes) else 0
        near = np.count_nonzero(sizes > sizes[row] / _OUT_OF_PROPORTION) if len(sizes) else 0
        # One damaged vertex moves the cells around it; zeros say nothing about the size of a field.
        if 0 < near <= _FEW and np.count_nonzero(sizes > 0) - near > 4 * near:
            raise ValueError(
                f"{path}: case {case_id} has {values[row, channel]:.4g} at row {row} of channel "
                f"{channel} of {name}, more than 10^9 times all but {near} of the {len(values)} "
                "values. Fetch or write the damaged file again, or leave the case out"
            )


def invalid_weights(weights: np.ndarray) -> np.ndarray:
    """Return the rows of weights that are not finite and at least 0."""
    return np.flatnonzero(~((weights >= 0) & (weights < np.inf)))


def check_weights(
    path: Path | str, case_id: str, name: str, weights: np.ndarray, rows: slice | np.ndarray
) -> None:
    """Raise unless the weights of the tokens in `rows` are finite and at least 0."""
    bad = invalid_weights(weights)
    if len(bad):
        row = rows.start + bad[0] if isinstance(rows, slice) else rows[bad[0]]
        raise ValueError(
            f"{path}: case {case_id} has the weight {weights[bad[0]]:.6g} at row {row} of {name}, "
            "expected a finite one of at least 0. Repair it, or set data.weights to another array"
        )


def missing_name(path: Path | str, kind: str, name: str, present: Iterable[str]) -> MissingName:
    """Return the error for a `kind` (field, boundary, ...) that the file does not hold."""
    names = ", ".join(sorted(present)) or "none"
    return MissingName(
        f"{path} has no {kind} {name!r}; present: {names}. Name one of these in the config"
    )


def check_unique(case_ids: Sequence[str], where: str) -> None:
    """Raise if a case id appears twice."""
    twice = sorted(case for case, count in Counter(case_ids).items() if count > 1)
    if twice:
        raise ValueError(f"{where}: case ids appear more than once: {', '.join(twice[:10])}")
