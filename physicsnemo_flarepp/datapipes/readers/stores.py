"""Stores of arrays (MATLAB files, memory maps, zarr): opened only if complete and free of code.

scipy ignores a cut variable at the end of a MATLAB file, which would then look as if it had never
been written.

Loading memory maps would leave out a missing one and lengthen a truncated one with zeros.

Zarr reads a chunk that is absent as the fill value, so a chunk lost in a copy becomes zeros. By
default zarr also leaves out chunks that hold nothing but the fill value, and the store does not
tell the two apart. The rule here: every chunk of a requested array must be there, unless the user
lists the array in `allow_missing_chunks`.
"""

import json
import math
import struct
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path

import h5py
import numpy as np
import scipy.io
import torch
import zarr
from physicsnemo.mesh import DomainMesh, Mesh

from ...files import RefusedFile, damaged, reading
from ..validation import missing_name

# Name of what is inside the boundaries of a DomainMesh.
INTERIOR = "interior"
_ZARR_NOTES = ("zarr.json", ".zarray", ".zattrs")
# All that zarr and numcodecs have for numbers; "pickle" runs what it decodes.
_CODECS = {
    *("bytes", "endian", "transpose", "sharding_indexed", "blosc", "gzip", "zstd", "zlib", "bz2"),
    *("lz4", "lzma", "pcodec", "zfpy", "crc32", "crc32c", "adler32", "fletcher32"),
    *("jenkins_lookup3", "delta", "shuffle", "fixedscaleoffset", "quantize", "bitround"),
    *("astype", "packbits"),
}


def check_complete(path: Path) -> None:
    """Raise EOFError if a MATLAB v5 file ends inside a variable."""
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
            _check_written(path, found, variable, allow_missing_chunks)
            return found
    raise RefusedFile(
        f"{path} is refused: variable {variable!r} is not stored in it but points elsewhere, maybe "
        "to another file; write it as one plain dataset"
    )


def _check_written(path: Path, dataset: h5py.Dataset, name: str, allowed: Container[str]) -> None:
    """Raise if parts of a dataset were never written; HDF5 reads them as the fill value."""
    if not dataset.size or name in allowed:
        return
    if dataset.chunks is None:
        stored = dataset.id.get_storage_size()
        expected, present = 1, int(stored > 0)
        if present and stored != dataset.nbytes:
            raise damaged(path, f"{name} has {stored} bytes, {dataset.nbytes} by its shape")
    else:
        expected = math.prod(-(-n // k) for n, k in zip(dataset.shape, dataset.chunks, strict=True))
        present = dataset.id.get_num_chunks()
    if present < expected:
        raise RefusedFile(
            f"{path}: array {name} has {present} of {expected} parts, the others were never "
            f"written and would be read as {dataset.fillvalue}. Whoever wrote the file was "
            "stopped: write it again. Or, if that is meant, set data.reader.allow_missing_chunks="
            f"[{name!r}]"
        )


def mat_shape(path: Path, variable: str) -> tuple[int, ...]:
    """Return the MATLAB shape of `variable` without reading its values."""
    with reading(path):
        if h5py.is_hdf5(path):
            with h5py.File(path) as file:
                return own_dataset(path, file, variable).shape[::-1]
        check_complete(path)
        shapes = {name: shape for name, shape, _ in scipy.io.whosmat(path)}
    if variable not in shapes:
        raise missing_name(path, "variable", variable, shapes)
    return shapes[variable]


def load_mat(path: Path, variable: str, cases: slice, stride: int = 1) -> np.ndarray:
    """Return some cases of a MATLAB array, case axis first, as float32.

    MATLAB v7.3 files are HDF5 with the axes reversed (MATLAB stores columns first); only the
    chosen cases and grid points are read. Earlier formats have no random access: the variable is
    read whole and cut afterwards.
    """
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


def check_memory_maps(path: Path) -> None:
    """Raise if a tensor of a stored TensorDict is shorter than described (EOFError) or missing.

    Loading would leave a missing one out.
    """
    for description in path.rglob("meta.json"):
        try:
            entries = json.loads(description.read_text())
            sizes = {
                name: math.prod(entry["shape"])
                * getattr(torch, entry["dtype"].removeprefix("torch.")).itemsize
                for name, entry in entries.items()
                if isinstance(entry, dict) and "dtype" in entry and all(entry["shape"])
            }
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{description} does not describe tensors ({type(error).__name__}: {error})"
            ) from error
        for name, expected in sizes.items():
            file = description.parent / f"{name}.memmap"
            if not file.is_file():
                raise ValueError(f"{description} describes {file.name}, which is missing")
            size = file.stat().st_size
            if size < expected:
                raise EOFError(f"{file} has {size} bytes, expected {expected}")


def load_memory_maps(path: Path) -> Mesh | DomainMesh:
    """Return a Mesh or DomainMesh stored as memory maps; pickled entries are refused.

    The maps are copy-on-write: a shared one would lengthen a truncated file with zeros, or a file
    elsewhere to which a link in the store leads.
    """
    for pickled in (*path.rglob("*.pickle"), *path.rglob("*.pkl")):
        raise RefusedFile(
            f"{path} is refused: {pickled.relative_to(path)} is a pickle, and loading it could "
            "run code of whoever wrote it. Nothing of it was run; write the mesh again with "
            "tensors only"
        )
    try:
        check_memory_maps(path)
        return DomainMesh.load_memmap(path, allow_pickle=False, mode="r")
    except (KeyError, AttributeError, FileNotFoundError) as error:
        raise ValueError(f"a meta.json in it is damaged: {type(error).__name__} {error}") from error


def domain_part(source: Path | str, domain: DomainMesh, boundary: str | None) -> Mesh:
    """Return a part of a domain by its name; see :func:`part_name`."""
    name = part_name(source, list(domain.boundary_names), boundary)
    return domain.interior if name is None else domain.boundaries[name]


def part_name(source: Path | str, names: Sequence[str], boundary: str | None) -> str | None:
    """Return the boundary asked for, or by default the only one; None for the interior.

    A domain without boundaries has an interior alone.
    """
    if boundary == INTERIOR or (boundary is None and not names):
        return None
    if boundary is None and len(names) > 1:
        raise ValueError(
            f"{source} has the boundaries {', '.join(names)}; set data.reader.boundary to one of "
            f"them, or to {INTERIOR!r}"
        )
    if boundary is not None and boundary not in names:
        raise missing_name(source, "boundary", boundary, [*names, INTERIOR])
    return boundary or names[0]


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
    """Raise if chunks are absent and the array's name is not in `allowed`, or on other codecs."""
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
        raise ValueError(
            f"{path}: array {array.basename} has {present} of {expected} chunks. Either the copy "
            "is incomplete: fetch it again. Or its writer left out chunks that hold only the fill "
            f"value {array.fill_value}, as zarr does by default: then write it again with "
            f"write_empty_chunks, or set allow_missing_chunks=[{array.basename!r}]"
        )
