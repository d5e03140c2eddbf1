"""One function per file format of vehicle surfaces: file -> token table.

=========== ======================================================= =========================
layout      files                                                   what a context shard reads
=========== ======================================================= =========================
presampled  ``run_*.npz`` (surface_mesh_centers, surface_fields)    the file, keeps its rows
vtp         ``run_*/boundary_*.vtp`` PolyData                       the file, keeps its rows
pdmsh       ``run_*/domain_*.pdmsh`` DomainMesh of PhysicsNeMo      its cells, memory-mapped
zarr        ``run_*.zarr`` groups of PhysicsNeMo-Curator            the chunks with its rows
=========== ======================================================= =========================

The formats of the first two rows have no random access to rows: reading the file is unavoidable.
Of a DomainMesh stored as a zarr group the connectivity is read whole.

Zarr reads a chunk that is absent as the fill value, so a chunk lost in a copy becomes zeros. By
default zarr also leaves out chunks that hold nothing but the fill value, and the store does not
tell the two apart. The rule here: every chunk of a requested array must be there, unless the user
lists the array in `allow_missing_chunks`.
"""

import csv
import json
import math
from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
import zarr
from physicsnemo.mesh import DomainMesh, Mesh

from ...files import RefusedFile, reading
from ...meshes import read_polygons
from ..checks import check_shape, missing_name, one_file
from ..specs import SURFACE_FIELD_COLUMNS
from .base import ComputedColumn, Rowwise, TokenTable
from .meshes import ASSOCIATIONS, PolygonMesh, SurfaceRequest, find_association

# All that zarr and numcodecs have for numbers; "pickle" runs what it decodes.
_CODECS = {
    *("bytes", "endian", "transpose", "sharding_indexed", "blosc", "gzip", "zstd", "zlib", "bz2"),
    *("lz4", "lzma", "pcodec", "zfpy", "crc32", "crc32c", "adler32", "fletcher32"),
    *("jenkins_lookup3", "delta", "shuffle", "fixedscaleoffset", "quantize", "bitround"),
    *("astype", "packbits"),
}
_TABLE_ALIASES = {"normals": "surface_normals", "areas": "surface_areas"}


def read_polydata(path: Path, request: SurfaceRequest) -> PolygonMesh:
    """Return the polygons of a ``.vtp`` file with the requested arrays only."""
    places = ASSOCIATIONS if request.association is None else (request.association,)
    raw = read_polygons(path, arrays=request.arrays(), places=places)
    names = {place: dict.fromkeys(raw.present[place]) for place in ASSOCIATIONS}
    place = find_association(path, request, names)
    data = {"cell": {}, "point": {}, place: raw.data[place]}
    return PolygonMesh(path, raw.points, raw.connectivity, raw.offsets, data)


def _csv_values(path: Path, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    with reading(path), path.open(newline="") as file:
        header, row = list(csv.reader(file))[:2]
        values = {key.strip(" #"): value for key, value in zip(header, row, strict=True)}
        for name in names:
            if name not in values:
                raise missing_name(path, "column", name, values)
        return {name: np.array(float(values[name])) for name in names}


def open_vtp(path: Path, request: SurfaceRequest) -> TokenTable:
    """Return a ``.vtp`` surface; globals are columns of ``geo_ref_*.csv`` beside it."""
    global_values = {}
    if request.global_names:
        table = one_file(path.parent, "geo_ref_*.csv", source="the DrivAerML repository")
        global_values = _csv_values(table, request.global_names)
    return read_polydata(path, request).table(request, global_values)


def _chosen(arrays: Mapping[str, Rowwise], names: Iterable[str]) -> list[Rowwise]:
    return [arrays[name] for name in dict.fromkeys(names) if name in arrays]


def _named_globals(
    path: Path, stored: Mapping[str, object], names: tuple[str, ...]
) -> dict[str, np.ndarray]:
    for name in names:
        if name not in stored:
            raise missing_name(path, "global value", name, stored.keys())
    with reading(path):
        return {name: np.asarray(stored[name], dtype=np.float64) for name in names}


def _simplices(
    path: Path, points: np.ndarray, cells: np.ndarray, data: Mapping[str, Mapping[str, Rowwise]]
) -> PolygonMesh:
    check_shape(path, "cells", cells.shape, ("cell", 3))
    offsets = np.arange(0, 3 * len(cells) + 1, 3)
    return PolygonMesh(path, points, cells.reshape(-1), offsets, data)


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


def load_domain(path: Path) -> DomainMesh:
    """Return a DomainMesh stored as memory maps; pickled entries are refused.

    The maps are copy-on-write: a shared one would lengthen a truncated file with zeros, or a file
    elsewhere to which a link in the store leads.
    """
    with reading(path):
        for pickled in (*path.rglob("*.pickle"), *path.rglob("*.pkl")):
            raise RefusedFile(
                f"{path} is refused: {pickled.relative_to(path)} is a pickle, and loading it could "
                "run code of whoever wrote it. Nothing of it was run; write the mesh again with "
                "tensors only"
            )
        try:
            check_memory_maps(path)
            domain = DomainMesh.load_memmap(path, allow_pickle=False, mode="r")
        except (KeyError, AttributeError, FileNotFoundError) as error:
            raise ValueError(
                f"a meta.json in it is damaged: {type(error).__name__} {error}"
            ) from error
        if not isinstance(domain, DomainMesh):
            raise TypeError(f"it holds a {type(domain).__name__}, expected a DomainMesh")
    return domain


def open_pdmsh(path: Path, request: SurfaceRequest) -> TokenTable:
    """Return one boundary of a DomainMesh, stored as memory maps or as a zarr group."""
    if (path / "zarr.json").exists():
        return _open_domain_zarr(path, request)
    domain = load_domain(path)
    if request.boundary not in domain.boundary_names:
        raise missing_name(path, "boundary", request.boundary, domain.boundary_names)
    mesh: Mesh = domain.boundaries[request.boundary]
    data = {
        "cell": {name: mesh.cell_data[name].numpy() for name in mesh.cell_data.keys()},
        "point": {name: mesh.point_data[name].numpy() for name in mesh.point_data.keys()},
    }
    global_values = _named_globals(path, dict(domain.global_data.items()), request.global_names)
    surface = _simplices(path, mesh.points.numpy(), mesh.cells.numpy(), data)
    return surface.table(request, global_values)


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
    """Give the names of codecs and of those inside them: ``name`` of zarr 3, ``id`` of zarr 2."""
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
    expected = math.prod(-(-n // k) for n, k in zip(array.shape, stored_shape, strict=True))
    per_object = math.prod(n // k for n, k in zip(stored_shape, array.chunks, strict=True))
    present = array.nchunks_initialized // per_object
    if present < expected and array.basename not in allowed:
        raise ValueError(
            f"{path}: array {array.basename} has {present} of {expected} chunks. Either the copy "
            "is incomplete: fetch it again. Or its writer left out chunks that hold only the fill "
            f"value {array.fill_value}, as zarr does by default: then write it again with "
            f"write_empty_chunks, or set allow_missing_chunks=[{array.basename!r}]"
        )


def _group_arrays(group: zarr.Group, name: str) -> dict[str, zarr.Array]:
    return dict(group[name].arrays()) if name in group else {}


def _open_domain_zarr(path: Path, request: SurfaceRequest) -> TokenTable:
    with reading(path):
        root = zarr.open_group(path, mode="r")
        boundaries = root["boundaries"] if "boundaries" in root else {}
        if request.boundary not in boundaries:
            raise missing_name(path, "boundary", request.boundary, boundaries)
        mesh = boundaries[request.boundary]
        data = {place: _group_arrays(mesh, f"{place}_data") for place in ASSOCIATIONS}
        stored = _group_arrays(root, "global_data")
        points, cells = mesh["points"], mesh["cells"]
    place = find_association(path, request, data)
    wanted = [points, cells, *(data[place][name] for name in request.arrays())]
    for array in (*wanted, *_chosen(stored, request.global_names)):
        check_chunks(path, array, request.allow_missing_chunks)
    global_values = _named_globals(path, stored, request.global_names)
    with reading(path):
        points, cells = points[...], cells[...]
    return _simplices(path, points, cells, data).table(request, global_values)


def _stored_name(arrays: Container[str], name: str) -> str:
    """Return the array that holds `name`: itself, or the packed array ``surface_fields``."""
    stored = _TABLE_ALIASES.get(name, name)
    return "surface_fields" if stored not in arrays and name in SURFACE_FIELD_COLUMNS else stored


def _table_column(path: Path, arrays: Mapping[str, Rowwise], name: str) -> Rowwise:
    """Return array `name`, or its columns of the packed array ``surface_fields``."""
    stored = _stored_name(arrays, name)
    if stored not in arrays:
        packed = SURFACE_FIELD_COLUMNS if "surface_fields" in arrays else {}
        raise missing_name(path, "field", name, [*arrays, *packed])
    if stored != "surface_fields" or name == stored:
        return arrays[stored]
    fields, columns = arrays[stored], SURFACE_FIELD_COLUMNS[name]
    check_shape(path, "surface_fields", fields.shape, (fields.shape[0], 4))
    return ComputedColumn(
        (fields.shape[0], len(columns)), lambda rows: fields[rows][:, list(columns)]
    )


def _open_table(path: Path, arrays: Mapping[str, Rowwise], request: SurfaceRequest) -> TokenTable:
    if "surface_mesh_centers" not in arrays:
        raise missing_name(path, "array", "surface_mesh_centers", arrays)
    centers = arrays["surface_mesh_centers"]
    check_shape(path, "surface_mesh_centers", centers.shape, ("token", 3))
    columns = {
        name: _table_column(path, arrays, name) for name in (*request.fields, *request.features)
    }
    return TokenTable(
        path,
        centers.shape[0],
        {"xyz": centers},
        {name: columns[name] for name in request.fields},
        features={name: columns[name] for name in request.features},
        global_values=_named_globals(
            path, {name: arrays[name] for name in arrays}, request.global_names
        ),
    )


def open_npz(path: Path, request: SurfaceRequest) -> TokenTable:
    """Return a presampled or curated ``.npz`` surface."""
    with reading(path), np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    return _open_table(path, arrays, request)


def open_zarr(path: Path, request: SurfaceRequest) -> TokenTable:
    """Return a curated zarr group; chunks are read when rows are."""
    with reading(path):
        arrays = dict(zarr.open_group(path, mode="r").arrays())
    columns = [_stored_name(arrays, name) for name in (*request.fields, *request.features)]
    for array in _chosen(arrays, ["surface_mesh_centers", *columns, *request.global_names]):
        check_chunks(path, array, request.allow_missing_chunks)
    return _open_table(path, arrays, request)


OPENERS = {"presampled": open_npz, "vtp": open_vtp, "pdmsh": open_pdmsh, "zarr": open_zarr}
