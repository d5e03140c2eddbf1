"""Checks of the readers: each error names the file, what was found and what to do next."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import psutil

from ..texts import printable

_OUT_OF_PROPORTION = 1e9
# Bytes of an array that are there without asking.
_SMALL = 1 << 26
_FEW = 16


class MissingName(ValueError, KeyError):
    """A name that a file does not hold."""

    def __str__(self) -> str:
        """Return the message as it is; a KeyError would show it in quotes."""
        return str(self.args[0])


class TooLarge(ValueError, MemoryError):
    """An array that the memory of the machine cannot hold."""


def check_fits(path: Path | str, name: str, shape: Sequence[int], dtype: np.dtype) -> None:
    """Raise if an array, as its file describes it, needs more memory than there is.

    A few bytes can stand for any number of equal values, and a damaged header for any shape.

    Examples
    --------
    >>> check_fits("a.npz", "p", (2**60, 3), np.dtype("f4"))
    Traceback (most recent call last):
    physicsnemo_flarepp.datapipes.checks.TooLarge: a.npz: p has the shape (1152921504606846976, 3)
    and needs 1.38e+10 GB, ...
    """
    size = math.prod(shape) * dtype.itemsize
    if size > _SMALL and size > (free := psutil.virtual_memory().available):
        raise TooLarge(
            f"{path}: {printable(name)} has the shape {tuple(shape)} and needs {size / 1e9:.3g} "
            f"GB, of which {free / 1e9:.3g} are free. Write it in smaller cases, or, if that is "
            "not its shape, fetch or write the file again"
        )


def existing_directory(root: str | Path, *, expected: Sequence[str], source: str) -> Path:
    """Return `root` as a path, or say which files belong there and where they are published.

    Examples
    --------
    >>> existing_directory("no/such", expected=["a.npy"], source="https://example.org")
    Traceback (most recent call last):
    FileNotFoundError: data directory no/such does not exist; expected a directory with a.npy
    (published at https://example.org). Set `root` to where the files are, ...
    """
    path = Path(root).expanduser()
    if not path.is_dir():
        state = "is not a directory" if path.exists() else "does not exist"
        raise FileNotFoundError(
            f"data directory {path} {state}; expected a directory with {', '.join(expected)} "
            f"(published at {source}). Set `root` to where the files are, or fetch published sets "
            "with `flarepp download <set>`"
        )
    return path


def one_file(root: Path, pattern: str, *, source: str, preferred: str | None = None) -> Path:
    """Return the single file in `root`, or else in a folder below it, that matches `pattern`.

    Parameters
    ----------
    root : Path
        Directory of the set; published archives have folders of their own in it.
    pattern : str
        Name or glob.
    source : str
        Where the file is published.
    preferred : str, optional
        Name of the file to take where several match.
    """
    found = sorted(root.glob(pattern)) or sorted(root.rglob(pattern))
    found = [path for path in found if path.name == preferred] or found
    if len(found) == 1:
        return found[0]
    present = ", ".join(sorted(p.name for p in root.iterdir())[:20]) or "nothing"
    if not found:
        raise FileNotFoundError(
            f"{root / pattern} is missing, and no folder below has it; {root} holds {present}. It "
            f"is published at {source}"
        )
    names = ", ".join(str(path.relative_to(root)) for path in found)
    raise ValueError(
        f"{root / pattern} matches {len(found)} files ({names}); keep one of them in this "
        "directory, or point `root` to a directory with one"
    )


def check_shape(path: Path, name: str, shape: Sequence[int], expected: Sequence[int | str]) -> None:
    """Raise unless `shape` matches `expected`.

    A string in `expected` stands for any length; the same string twice, for the same length.

    Examples
    --------
    >>> check_shape(Path("Pipe_Q.npy"), "array", (8, 129, 129, 3), ("case", 3, 129, 129))
    Traceback (most recent call last):
    ValueError: Pipe_Q.npy: array has shape (8, 129, 129, 3), expected (case, 3, 129, 129). ...
    """
    lengths: dict[str, int] = {}
    fits = len(shape) == len(expected) and all(
        got == (lengths.setdefault(want, got) if isinstance(want, str) else want)
        for got, want in zip(shape, expected, strict=True)
    )
    if not fits:
        wanted = ", ".join(str(want) for want in expected)
        raise ValueError(
            f"{path}: {name} has shape {tuple(shape)}, expected ({wanted}). The file is not in the "
            "published layout (check the order of the axes) or belongs to another set"
        )


def check_finite(
    path: Path | str,
    case_id: str,
    name: str,
    values: np.ndarray,
    channels: Sequence[str] = (),
) -> None:
    """Raise if `values` holds NaN or infinity; `channels` names its columns.

    Examples
    --------
    >>> check_finite("run_1.npz", "run_1", "fields", np.array([1.0, np.nan]))
    Traceback (most recent call last):
    ValueError: run_1.npz: case run_1 has 1 of 2 values of fields NaN or infinite. ...
    """
    finite = np.isfinite(values)
    bad = values.size - np.count_nonzero(finite)
    if bad:
        rows = ~finite.reshape(len(values), -1) if values.ndim == 2 else ~finite.reshape(1, -1)
        named = [channel for channel, wrong in zip(channels, rows.any(0), strict=False) if wrong]
        where = f" ({', '.join(named)}, first at row {int(rows.any(1).argmax())})" if named else ""
        raise ValueError(
            f"{path}: case {case_id} has {bad} of {values.size} values of {name} NaN or infinite"
            f"{where}. Repair the file, or leave the case out of the split"
        )


def check_range(path: Path | str, case_id: str, name: str, values: np.ndarray) -> None:
    """Raise if a handful of values of a channel are out of all proportion to the others.

    A flipped bit in the exponent of a number makes it 10^9 times larger or more. Single precision
    leaves noise of 10^-7 beside a peak, so that a sound field has no such gap.

    Parameters
    ----------
    path, case_id, name
        To name in the error.
    values : numpy.ndarray
        (N, channels), finite.

    Examples
    --------
    >>> values = np.ones((100, 2))
    >>> values[7, 1] = 1e19
    >>> check_range("run_1.npz", "run_1", "fields", values)
    Traceback (most recent call last):
    ValueError: run_1.npz: case run_1 has 1e+19 at row 7 of channel 1 of fields, more than 10^9
    times all but 1 of the 100 values. ...
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
                "values. The file is damaged: fetch or write it again, or leave the case out of "
                "the split"
            )


def check_weights(
    path: Path | str, case_id: str, name: str, weights: np.ndarray, rows: slice | np.ndarray
) -> None:
    """Raise unless the weights of tokens are finite and at least 0.

    Parameters
    ----------
    path, case_id, name
        To name in the error.
    weights : numpy.ndarray
        Of the tokens in `rows`.
    rows : slice or numpy.ndarray
        Where they are in the case.

    Examples
    --------
    >>> check_weights("run_1.vtp", "run_1", "cellArea", np.array([1.0, -2.0]), slice(0, 2))
    Traceback (most recent call last):
    ValueError: run_1.vtp: case run_1 has the weight -2 at row 1 of cellArea; weights must be finite
    and at least 0. Repair the array, or set data.weights to another
    """
    bad = np.flatnonzero(~((weights >= 0) & (weights < np.inf)))
    if len(bad):
        row = rows.start + bad[0] if isinstance(rows, slice) else rows[bad[0]]
        raise ValueError(
            f"{path}: case {case_id} has the weight {weights[bad[0]]:.6g} at row {row} of {name}; "
            "weights must be finite and at least 0. Repair the array, or set data.weights to "
            "another"
        )


def missing_name(path: Path | str, kind: str, name: str, present: Iterable[str]) -> MissingName:
    """Return the error for a `kind` (field, boundary, ...) that the file does not hold.

    Examples
    --------
    >>> print(missing_name("a.vtp", "field", "p", ["pMean"]).args[0])
    a.vtp has no field 'p'; present: pMean. Name one of these in the config
    """
    names = ", ".join(sorted(present)) or "none"
    return MissingName(
        f"{path} has no {kind} {name!r}; present: {names}. Name one of these in the config"
    )


def check_unique(case_ids: Sequence[str], where: str) -> None:
    """Raise if a case id appears twice.

    Examples
    --------
    >>> check_unique(["run_1", "run_2", "run_1"], "manifest.json, split train")
    Traceback (most recent call last):
    ValueError: manifest.json, split train: case ids appear more than once: run_1. ...
    """
    seen: set[str] = set()
    twice = sorted({case for case in case_ids if case in seen or seen.add(case)})
    if twice:
        raise ValueError(
            f"{where}: case ids appear more than once: {', '.join(twice[:10])}. Give every case "
            "one id and list it in one split only"
        )
