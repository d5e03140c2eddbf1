"""One function per file format of vehicle surfaces: file -> token table.

=========== ======================================================= =========================
layout      files                                                   what a context shard reads
=========== ======================================================= =========================
presampled  ``run_*.npz`` (surface_mesh_centers, surface_fields)    the file, keeps its rows
vtp         ``run_*/boundary_*.vtp`` PolyData                       the file, keeps its rows
pdmsh       ``run_*/domain_*.pdmsh`` DomainMesh of PhysicsNeMo      its cells, memory-mapped
pmsh        ``run_*/*.pmsh`` Mesh of PhysicsNeMo: the surface alone its cells, memory-mapped
zarr        ``run_*.zarr`` groups of PhysicsNeMo-Curator            the chunks with its rows
=========== ======================================================= =========================

The formats of the first two rows have no random access to rows: reading the file is unavoidable.
Of a DomainMesh stored as a zarr group the connectivity is read whole.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import zarr
from physicsnemo.mesh import DomainMesh, Mesh

from ...files import reading
from ...meshes import ASSOCIATIONS, PolygonMesh, read_polygons
from ..checks import check_shape, missing_name, one_file
from ..specs import SURFACE_FIELD_COLUMNS
from .array_files import open_arrays
from .base import MEASURE, ComputedColumn, Rowwise, TokenTable
from .parameters import read_reference_values
from .stores import check_chunks, load_stored
from .surface_tables import SurfaceRequest, find_association, surface_table

_TABLE_ALIASES = {"normals": "surface_normals", "areas": "surface_areas"}


def read_polydata(path: Path, request: SurfaceRequest) -> PolygonMesh:
    """Return the polygons of a ``.vtp`` file with the requested arrays only."""
    places = ASSOCIATIONS if request.association is None else (request.association,)
    mesh = read_polygons(path, arrays=request.arrays(), places=places)
    place = find_association(path, request, mesh.array_names())
    return replace(mesh, data={"cell": {}, "point": {}, place: mesh.data[place]})


def reference_values_beside(source: str | Path) -> dict[str, float]:
    """Return all numbers of the only ``geo_ref_*.csv`` beside a surface file; empty without one."""
    tables = sorted(Path(source).parent.glob("geo_ref_*.csv"))
    return read_reference_values(tables[0]) if len(tables) == 1 else {}


def open_vtp(path: Path, request: SurfaceRequest) -> TokenTable:
    """Return a ``.vtp`` surface; globals are columns of ``geo_ref_*.csv`` beside it."""
    stored: dict[str, float] = {}
    if any(name not in request.constants for name in request.global_names):
        table = one_file(path.parent, "geo_ref_*.csv", source="the DrivAerML repository")
        stored = read_reference_values(table)
    elif request.global_names:
        stored = reference_values_beside(path)
    global_values = _named_globals(path, stored, request)
    return surface_table(read_polydata(path, request), request, global_values)


def _chosen(arrays: Mapping[str, Rowwise], names: Iterable[str]) -> list[Rowwise]:
    return [arrays[name] for name in dict.fromkeys(names) if name in arrays]


def _named_globals(
    path: Path, stored: Mapping[str, object], request: SurfaceRequest
) -> dict[str, np.ndarray]:
    """Return the global values asked for: of the file, or else the constants of the config."""
    values = {}
    for name in request.global_names:
        if name in stored:
            with reading(path):
                values[name] = np.asarray(stored[name], dtype=np.float64)
        elif name in request.constants:
            values[name] = np.asarray(request.constants[name], dtype=np.float64)
        else:
            error = missing_name(path, "global value", name, stored.keys())
            raise KeyError(
                f"{error.args[0]}, or give its value for such files: data.reader.constants.{name}"
            )
    return values


def _simplices(
    path: Path, points: np.ndarray, cells: np.ndarray, data: Mapping[str, Mapping[str, Rowwise]]
) -> PolygonMesh:
    check_shape(path, "cells", cells.shape, ("cell", 3))
    offsets = np.arange(0, 3 * len(cells) + 1, 3)
    return PolygonMesh(path, points, cells.reshape(-1), offsets, data)


def open_pdmsh(path: Path, request: SurfaceRequest) -> TokenTable:
    """Return one boundary of a DomainMesh, stored as memory maps or as a zarr group."""
    if (path / "zarr.json").exists():
        return _open_domain_zarr(path, request)
    domain = load_stored(path, DomainMesh)
    if request.boundary not in domain.boundary_names:
        raise missing_name(path, "boundary", request.boundary, domain.boundary_names)
    mesh: Mesh = domain.boundaries[request.boundary]
    return _stored_mesh(path, mesh, dict(domain.global_data.items()), request)


def open_pmsh(path: Path, request: SurfaceRequest) -> TokenTable:
    """Return a Mesh that is a surface and nothing else, stored as memory maps."""
    mesh = load_stored(path, Mesh)
    return _stored_mesh(path, mesh, dict(mesh.global_data.items()), request)


def _stored_mesh(
    path: Path, mesh: Mesh, stored: Mapping[str, object], request: SurfaceRequest
) -> TokenTable:
    data = {
        "cell": {name: mesh.cell_data[name].numpy() for name in mesh.cell_data.keys()},
        "point": {name: mesh.point_data[name].numpy() for name in mesh.point_data.keys()},
    }
    surface = _simplices(path, mesh.points.numpy(), mesh.cells.numpy(), data)
    return surface_table(surface, request, _named_globals(path, stored, request))


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
    global_values = _named_globals(path, stored, request)
    with reading(path):
        points, cells = points[...], cells[...]
    return surface_table(_simplices(path, points, cells, data), request, global_values)


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
    wanted = (*request.fields, *request.features, *request.stored_weights())
    columns = {name: _table_column(path, arrays, name) for name in wanted}
    weights = {name: columns[name] for name in request.stored_weights()}
    if _TABLE_ALIASES["areas"] in arrays:
        weights[MEASURE] = arrays[_TABLE_ALIASES["areas"]]
    return TokenTable(
        path,
        centers.shape[0],
        {"xyz": centers},
        {name: columns[name] for name in request.fields},
        features={name: columns[name] for name in request.features},
        global_values=_named_globals(path, {name: arrays[name] for name in arrays}, request),
        weights=weights,
    )


def open_npz(path: Path, request: SurfaceRequest) -> TokenTable:
    """Return a presampled or curated ``.npz`` surface."""
    return _open_table(path, open_arrays(path).arrays, request)


def open_zarr(path: Path, request: SurfaceRequest) -> TokenTable:
    """Return a curated zarr group; chunks are read when rows are."""
    with reading(path):
        arrays = dict(zarr.open_group(path, mode="r").arrays())
    wanted = (*request.fields, *request.features, *request.stored_weights())
    columns = [_stored_name(arrays, name) for name in wanted]
    columns += [_TABLE_ALIASES["areas"]] if request.weights == MEASURE else []
    for array in _chosen(arrays, ["surface_mesh_centers", *columns, *request.global_names]):
        check_chunks(path, array, request.allow_missing_chunks)
    return _open_table(path, arrays, request)


OPENERS = {
    "presampled": open_npz,
    "vtp": open_vtp,
    "pdmsh": open_pdmsh,
    "pmsh": open_pmsh,
    "zarr": open_zarr,
}
