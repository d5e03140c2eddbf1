"""Arrays in ``.npz``, ``.npy``, HDF5, zarr, CSV and MATLAB files: found by headers, read when used.

A damaged or hostile file may say anything about its arrays. Before values are read their size is
compared with what the file holds and with the free memory, and arrays that are stored elsewhere or
were never written are refused. Arrays that are not numbers are listed with the reason.
"""

import math
import re
import struct
import zipfile
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import EllipsisType
from typing import BinaryIO

import h5py
import numpy as np
import scipy.io
import zarr

from ...files import RefusedFile, damaged, reading
from ...meshes.polygons import Rows
from ..validation import check_fits, missing_name

SUFFIXES = (".npz", ".npy", ".h5", ".hdf5", ".zarr", ".csv")
_NUMBERS = "fiub"
_NPY_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_ZARR_NOTES = ("zarr.json", ".zarray", ".zattrs")
# All that zarr and numcodecs have for numbers; "pickle" runs what it decodes.
_CODECS = {
    *("bytes", "endian", "transpose", "sharding_indexed", "blosc", "gzip", "zstd", "zlib", "bz2"),
    *("lz4", "lzma", "pcodec", "zfpy", "crc32", "crc32c", "adler32", "fletcher32"),
    *("jenkins_lookup3", "delta", "shuffle", "fixedscaleoffset", "quantize", "bitround"),
    *("astype", "packbits"),
}
Part = Rows | int | EllipsisType


@dataclass(frozen=True)
class LazyArray:
    """An array whose rows are read or computed when they are asked for, and only these."""

    shape: tuple[int, ...]
    # Gives rows, with an int one entry of the first axis, with ``...`` all.
    read: Callable[[Part], np.ndarray]
    dtype: np.dtype = np.dtype(np.float64)

    def __getitem__(self, rows: Part) -> np.ndarray:
        return self.read(rows)

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self[...], dtype=dtype)


# Anything whose first axis is the token axis; a memory map is an ndarray.
Rowwise = np.ndarray | LazyArray
# Arrays of numbers by name, and why others are not read.
Found = tuple[dict[str, Rowwise], dict[str, str]]


def open_arrays(
    path: Path,
    *,
    name: str | None = None,
    wanted: Collection[str] | None = None,
    allow_missing_chunks: Collection[str] = (),
) -> Found:
    """Return the arrays of a file; of a zarr group those wanted must have all their chunks."""
    suffix = path.suffix.lower()
    if suffix == ".npy":
        return _open_npy(path, name or path.stem)
    if suffix == ".zarr":
        return _open_zarr(path, wanted, allow_missing_chunks)
    if suffix in (".npz", ".csv"):
        return _open_npz(path) if suffix == ".npz" else _open_csv(path)
    return _open_hdf5(path, allow_missing_chunks)


def _npy_header(file: BinaryIO, size: int) -> tuple[tuple[int, ...], np.dtype] | str:
    """Return shape and type of an array that fills `size` bytes, or why it is not of numbers."""
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
    headers, unreadable = {}, {}
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
            (unreadable if isinstance(header, str) else headers)[name] = header

    @cache
    def whole(name: str) -> np.ndarray:
        check_fits(path, name, *headers[name])
        with reading(path), np.load(path, allow_pickle=False) as file:
            return file[name]

    arrays = {
        name: LazyArray(shape, lambda rows, name=name: whole(name)[rows], dtype)
        for name, (shape, dtype) in headers.items()
    }
    return arrays, unreadable


def _open_csv(path: Path) -> Found:
    """Return the columns of numbers of a table; ``U:0, U:1, U:2`` (or ``U_0``) make one array."""
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
    arrays = {}
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

    def lazy(name: str, shape: tuple[int, ...], dtype: np.dtype) -> LazyArray:
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

    arrays, unreadable = {}, {}

    def visit(name: str, item: h5py.Dataset | h5py.Group) -> None:
        if not isinstance(item, h5py.Dataset):
            return
        if item.dtype.kind not in _NUMBERS:
            unreadable[name] = _no_numbers(item.dtype)
        elif item.shape is None:
            unreadable[name] = "empty"
        else:
            arrays[name] = lazy(name, item.shape, item.dtype)

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


def own_dataset(
    path: Path, file: h5py.File, variable: str, allow_missing_chunks: Container[str] = ()
) -> h5py.Dataset:
    """Return a dataset that lies whole in this file; HDF5 can point to bytes of other files."""
    if variable not in file:
        raise missing_name(path, "variable", variable, file.keys())
    if isinstance(file.get(variable, getlink=True), h5py.HardLink):
        found = file[variable]
        # A group on the way may be a link to another file.
        own = isinstance(found, h5py.Dataset) and found.file.filename == file.filename
        if own and not (found.external or found.is_virtual):
            if found.size and variable not in allow_missing_chunks:
                _check_written(path, found, variable)
            return found
    raise RefusedFile(
        f"{path} is refused: variable {variable!r} points elsewhere, maybe to another file; write "
        "it as one plain dataset"
    )


def _check_written(path: Path, dataset: h5py.Dataset, name: str) -> None:
    """Raise if parts of a dataset were never written; HDF5 reads them as the fill value."""
    if dataset.chunks is None:
        stored = dataset.id.get_storage_size()
        expected, present = 1, int(stored > 0)
        if present and stored != dataset.nbytes:
            raise damaged(path, f"{name} has {stored} bytes, {dataset.nbytes} by its shape")
    else:
        expected = math.prod(-(-n // k) for n, k in zip(dataset.shape, dataset.chunks, strict=True))
        present = dataset.id.get_num_chunks()
    if present < expected:
        raise RefusedFile(_missing_parts(path, name, f"{present} of {expected} parts", dataset))


def _missing_parts(path: Path, name: str, has: str, array: h5py.Dataset | zarr.Array) -> str:
    """Return the error for parts that a file lacks, which would be read as the fill value."""
    fill = array.fillvalue if isinstance(array, h5py.Dataset) else array.fill_value
    return (
        f"{path}: array {name} has {has}, the others were never written. If it is incomplete, "
        f"fetch or write it again. If only parts with the fill value {fill} were left out, "
        f"write it with write_empty_chunks, or set allow_missing_chunks=[{name!r}] in data.reader"
    )


def mat_shape(path: Path, variable: str) -> tuple[int, ...]:
    """Return the MATLAB shape of `variable` without reading its values."""
    with reading(path):
        if h5py.is_hdf5(path):
            with h5py.File(path) as file:
                return own_dataset(path, file, variable).shape[::-1]
        _check_complete(path)
        shapes = {name: shape for name, shape, _ in scipy.io.whosmat(path)}
    if variable not in shapes:
        raise missing_name(path, "variable", variable, shapes)
    return shapes[variable]


def _check_complete(path: Path) -> None:
    """Raise EOFError if a MATLAB v5 file ends inside a variable, which scipy would leave out."""
    with path.open("rb") as file:
        header = file.read(128)
        order = {b"IM": "<", b"MI": ">"}.get(header[126:128])
        if order is None:
            return
        size, position = path.stat().st_size, len(header)
        while position < size:
            file.seek(position)
            tag = file.read(8)
            length = struct.unpack(f"{order}II", tag)[1] if len(tag) == 8 else size
            position += 8 + length
    if position > size:
        raise EOFError(f"a variable ends at byte {position}, the file at byte {size}")


def load_mat(path: Path, variable: str, cases: slice, stride: int = 1) -> np.ndarray:
    """Return some cases of a MATLAB array, case axis first, as float32; v7.3 reverses the axes."""
    shape = mat_shape(path, variable)
    grid = [slice(None, None, stride)] * min(2, len(shape) - 1)
    index = (cases, *grid, *[slice(None)] * (len(shape) - 1 - len(grid)))
    with reading(path):
        if h5py.is_hdf5(path):
            with h5py.File(path) as file:
                values = own_dataset(path, file, variable)[index[::-1]].T
        else:
            values = scipy.io.loadmat(path, variable_names=[variable])[variable][index]
        return np.ascontiguousarray(values, dtype=np.float32)


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
    arrays, unreadable = {}, {}
    with reading(path):
        try:
            # zarr lists them in the order in which they were read, another one each time.
            members = sorted(zarr.open_group(path, mode="r").members(None), key=lambda m: m[0])
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


def check_codecs(path: Path, array: zarr.Array) -> None:
    """Raise if a zarr array is stored with a codec that is not known to decode numbers only."""
    metadata = array.metadata.to_dict()
    stored = [metadata.get(key) or () for key in ("codecs", "filters", "compressor")]
    for name in _codec_names(stored):
        if name.removeprefix("numcodecs.") not in _CODECS:
            raise RefusedFile(
                f"{path}: array {array.basename} is stored with the codec {name!r}, which is "
                f"refused: it may do more than decode numbers. Use one of {sorted(_CODECS)}"
            )


def _codec_names(stored: object) -> Iterator[str]:
    """Return the names of codecs and of those inside them: ``name`` of zarr 3, ``id`` of zarr 2."""
    if isinstance(stored, Mapping):
        yield str(stored.get("name", stored.get("id")))
        inside = stored.get("configuration") or {}
        yield from _codec_names([inside.get("codecs", ()), inside.get("index_codecs", ())])
    elif isinstance(stored, list | tuple):
        for inner in stored:
            yield from _codec_names(inner)


def check_chunks(path: Path, array: zarr.Array, allowed: Container[str]) -> None:
    """Raise on unknown codecs, and on absent chunks, which zarr reads as the fill value, if not
    `allowed`.
    """
    check_codecs(path, array)
    # With sharding one stored object holds several chunks.
    stored_shape = array.shards or array.chunks
    if not all(array.chunks):
        raise ValueError(f"{path}: array {array.basename} has chunks of the shape {array.chunks}")
    expected = math.prod(-(-n // k) for n, k in zip(array.shape, stored_shape, strict=True))
    per_object = math.prod(n // k for n, k in zip(stored_shape, array.chunks, strict=True))
    # zarr makes a list of all chunks that a shape would have, which may be any number.
    files = (path / array.path).rglob("*")
    present = sum(file.name not in _ZARR_NOTES and file.is_file() for file in files)
    if present >= expected:
        present = array.nchunks_initialized // per_object
    if present < expected and array.basename not in allowed:
        has = f"{present} of {expected} chunks"
        raise ValueError(_missing_parts(path, array.basename, has, array))
