"""Arrays in ``.npz``, ``.npy``, HDF5, zarr and CSV files: found by their headers, read when used.

A file of somebody else, or of a bad disk, may say anything of its arrays. Before values are read
their size is compared with what the file holds and with the memory that is free, what is stored
elsewhere is refused, and what was never written is no zero. Arrays that are no numbers are not
opened; they are named with the reason, for whoever asks for one of them.
"""

import math
import re
import zipfile
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import BinaryIO

import h5py
import numpy as np
import zarr

from ...files import damaged, reading
from ..validation import check_fits
from .base import LazyArray, Part, Rowwise
from .stores import check_chunks, check_codecs, own_dataset

SUFFIXES = (".npz", ".npy", ".h5", ".hdf5", ".zarr", ".csv")
_NUMBERS = "fiub"
_NPY_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
# Arrays of numbers by name, and why others are not read.
Found = tuple[dict[str, Rowwise], dict[str, str]]


def open_arrays(
    path: Path,
    *,
    name: str | None = None,
    wanted: Collection[str] | None = None,
    allow_missing_chunks: Collection[str] = (),
) -> Found:
    """Return the arrays of a file; of a zarr group those wanted must have all their chunks.

    The array of a ``.npy`` file has the `name` given, or that of the file.
    """
    suffix = path.suffix.lower()
    if suffix == ".npy":
        return _open_npy(path, name or path.stem)
    if suffix == ".npz":
        return _open_npz(path)
    if suffix == ".csv":
        return _open_csv(path)
    if suffix == ".zarr":
        return _open_zarr(path, wanted, allow_missing_chunks)
    return _open_hdf5(path, allow_missing_chunks)


def _npy_header(file: BinaryIO, size: int) -> tuple[tuple[int, ...], np.dtype] | str:
    """Return shape and type of an array of numbers in ``.npy`` format, or why it is none.

    Raises EOFError unless the array fills the `size` bytes exactly.
    """
    version = np.lib.format.read_magic(file)
    if version not in _NPY_HEADERS:
        return "of records; save it as numbers"
    shape, _, dtype = _NPY_HEADERS[version](file)
    if dtype.kind not in _NUMBERS:
        return _no_numbers(dtype)
    expected = file.tell() + math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or expected != size:
        raise EOFError(f"it has {size} bytes, but {expected} for the shape {shape} in its header")
    return shape, dtype


def _no_numbers(dtype: np.dtype) -> str:
    if dtype.kind == "O":
        return "of objects, which are pickles or words; save it as numbers"
    return f"of the type {dtype}, which is not a real number"


def map_npy(path: Path) -> np.ndarray:
    """Return the array of numbers in a ``.npy`` file, memory-mapped."""
    arrays, unreadable = _open_npy(path, path.stem)
    if unreadable:
        raise damaged(path, f"it holds an array {unreadable[path.stem]}")
    return arrays[path.stem]


def _open_npy(path: Path, name: str) -> Found:
    with reading(path):
        with path.open("rb") as file:
            header = _npy_header(file, path.stat().st_size)
        if isinstance(header, str):
            return {}, {name: header}
        return {name: np.load(path, mmap_mode="r", allow_pickle=False)}, {}


def _open_npz(path: Path) -> Found:
    """Return the arrays of a ``.npz`` file; each is read whole when first used."""

    def lazy(name: str, shape: tuple[int, ...], dtype: np.dtype) -> LazyArray:
        kept: list[np.ndarray] = []

        def read(rows: Part) -> np.ndarray:
            if not kept:
                check_fits(path, name, shape, dtype)
                with reading(path), np.load(path, allow_pickle=False) as file:
                    kept.append(file[name])
            return kept[0][rows]

        return LazyArray(shape, read, dtype)

    arrays: dict[str, Rowwise] = {}
    unreadable: dict[str, str] = {}
    with reading(path), zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        twice = [n for n, count in Counter(m.filename for m in members).items() if count > 1]
        if twice:
            raise ValueError(f"it holds {twice[0]} more than once")
        for member in members:
            name = member.filename.removesuffix(".npy")
            if name == member.filename:
                unreadable[name] = "no array of NumPy"
                continue
            with archive.open(member) as file:
                try:
                    header = _npy_header(file, member.file_size)
                except (ValueError, EOFError) as error:
                    raise ValueError(f"{member.filename}: {error}") from error
            if isinstance(header, str):
                unreadable[name] = header
            else:
                arrays[name] = lazy(name, *header)
    return arrays, unreadable


def _open_csv(path: Path) -> Found:
    """Return the columns of a table with a row per point; those of words are not read.

    ``U:0, U:1, U:2`` and ``U_0, U_1, U_2``, as ParaView writes vectors, make one array U.
    """
    with reading(path), path.open(encoding="utf-8-sig") as file:
        first, second = file.readline(), file.readline()
        separator = max(",;\t", key=first.count)
        header = [name.strip(' "#\n') for name in first.split(separator)]
        numbers = [i for i, entry in enumerate(second.split(separator)) if _is_number(entry)]
        if len(set(header)) < len(header):
            raise ValueError(f"its columns are {header}; each needs a name of its own")
        if not numbers or all(map(_is_number, header)):
            raise ValueError("it has no header with names above rows of numbers")
        file.seek(0)
        values = np.loadtxt(
            file, delimiter=separator, skiprows=1, usecols=numbers, ndmin=2, comments=None
        )
    columns = {header[i]: values[:, at] for at, i in enumerate(numbers) if i < len(header)}
    words = {name: "of words" for name in header if name not in columns}
    arrays: dict[str, Rowwise] = {}
    for name in columns:
        base = re.fullmatch(r"(.+)[:_]0", name)
        parts = [f"{name[:-1]}{i}" for i in range(3)]
        if base and all(part in columns for part in parts):
            arrays[base[1]] = np.stack([columns[part] for part in parts], axis=1)
        elif not (name[-1] in "12" and f"{name[:-1]}0" in columns and name[-2:-1] in (":", "_")):
            arrays[name] = columns[name]
    return arrays, words


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _n_rows(rows: Part, n: int) -> int:
    """Return how many of `n` rows are asked for."""
    if isinstance(rows, slice):
        return len(range(*rows.indices(n)))
    return n if rows is ... else np.size(rows)


def _open_hdf5(path: Path, allow_missing_chunks: Collection[str]) -> Found:
    """Return the datasets of numbers in an HDF5 file, those of groups as group/name."""

    def lazy(name: str, dataset: h5py.Dataset) -> LazyArray:
        shape, dtype = dataset.shape, dataset.dtype

        def read(rows: Part) -> np.ndarray:
            with reading(path), h5py.File(path) as file:
                stored = own_dataset(path, file, name, allow_missing_chunks)
                # Reading row by row takes seconds where the span takes milliseconds.
                spread = isinstance(rows, np.ndarray) and len(rows) > 0
                first = int(rows.min()) if spread else 0
                span = slice(first, int(rows.max()) + 1) if spread else rows
                if shape:
                    check_fits(path, name, (_n_rows(span, shape[0]), *shape[1:]), dtype)
                return stored[span][rows - first] if spread else stored[span]

        return LazyArray(shape, read, dtype)

    arrays: dict[str, Rowwise] = {}
    unreadable: dict[str, str] = {}

    def visit(name: str, item: h5py.Dataset | h5py.Group) -> None:
        if not isinstance(item, h5py.Dataset):
            return
        if item.dtype.kind not in _NUMBERS:
            unreadable[name] = _no_numbers(item.dtype)
        elif item.shape is None:
            unreadable[name] = "empty"
        else:
            arrays[name] = lazy(name, item)

    def visit_link(name: str, link: object) -> None:
        if not isinstance(link, h5py.HardLink):
            unreadable[name] = "a link that leads elsewhere; write it as one plain dataset"

    with reading(path), h5py.File(path) as file:
        try:
            file.visititems(visit)
            file.visititems_links(visit_link)
        except KeyError as error:  # of a damaged entry of a group, not of a name asked for
            raise damaged(path, error) from error
    return arrays, unreadable


def lazy_zarr(path: Path, name: str, array: zarr.Array) -> LazyArray:
    """Return an array of a zarr group of which a read touches the chunks with its rows."""

    def read(rows: Part) -> np.ndarray:
        if array.shape:
            part = (_n_rows(rows, array.shape[0]), *array.shape[1:])
            check_fits(path, name, part, array.dtype)
            # A chunk is unpacked whole, whatever is asked of it.
            check_fits(path, f"a chunk of {name}", array.chunks, array.dtype)
        with reading(path):
            return np.asarray(array[rows])

    return LazyArray(array.shape, read, array.dtype)


def _open_zarr(
    path: Path, wanted: Collection[str] | None, allow_missing_chunks: Collection[str]
) -> Found:
    """Return the arrays of numbers in a zarr group; those wanted must have all their chunks."""
    arrays: dict[str, Rowwise] = {}
    unreadable: dict[str, str] = {}
    with reading(path):
        try:
            members = list(zarr.open_group(path, mode="r").members(None))
        except FileNotFoundError as error:
            raise EOFError(f"it holds no zarr group: {error}") from error
    for name, array in members:
        if not isinstance(array, zarr.Array):
            continue
        if wanted is not None and name in wanted:
            check_codecs(path, array)
        if array.dtype.kind not in _NUMBERS:
            unreadable[name] = _no_numbers(array.dtype)
            continue
        if wanted is None or name in wanted:
            check_chunks(path, array, allow_missing_chunks)
        arrays[name] = lazy_zarr(path, name, array)
    return arrays, unreadable
