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
"""

import csv
import json
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
import zarr
from physicsnemo.mesh import DomainMesh, Mesh
from vtkmodules.util.numpy_support import vtk_to_numpy
from vtkmodules.vtkIOXML import vtkXMLPolyDataReader

from ..checks import check_shape, missing_name, one_file, reading
from ..specs import SURFACE_FIELD_COLUMNS
from .base import ComputedColumn, Rowwise, TokenTable
from .meshes import PolygonMesh, SurfaceRequest, find_association

_TABLE_ALIASES = {"normals": "surface_normals", "areas": "surface_areas"}


def read_polydata(path: Path, request: SurfaceRequest) -> PolygonMesh:
    """Return the polygons of a ``.vtp`` file with the requested arrays only."""
    reader = vtkXMLPolyDataReader()
    errors: list[str] = []
    # VTK reports a damaged file through this event only and returns an empty mesh.
    reader.AddObserver("ErrorEvent", lambda *_: errors.append("VTK reported an error"))
    reader.SetFileName(str(path))
    reader.UpdateInformation()
    selections = {
        "cell": reader.GetCellDataArraySelection(),
        "point": reader.GetPointDataArraySelection(),
    }
    names = {
        place: {chosen.GetArrayName(i): None for i in range(chosen.GetNumberOfArrays())}
        for place, chosen in selections.items()
    }
    with reading(path):
        if errors:
            raise OSError(errors[0])
        place = find_association(path, request, names)
        for chosen in selections.values():
            chosen.DisableAllArrays()
        for name in request.arrays():
            selections[place].EnableArray(name)
        reader.Update()
        if errors:
            raise OSError(errors[0])
    mesh = reader.GetOutput()
    polygons = mesh.GetPolys()
    if polygons.GetNumberOfCells() != mesh.GetNumberOfCells() or mesh.GetNumberOfCells() == 0:
        raise ValueError(
            f"{path} has {polygons.GetNumberOfCells()} polygons among {mesh.GetNumberOfCells()} "
            "cells; expected a surface of polygons only (no lines, vertices or strips)"
        )
    source = mesh.GetCellData() if place == "cell" else mesh.GetPointData()
    arrays = {name: vtk_to_numpy(source.GetArray(name)) for name in request.arrays()}
    return PolygonMesh(
        path,
        vtk_to_numpy(mesh.GetPoints().GetData()),
        vtk_to_numpy(polygons.GetConnectivityArray()),
        vtk_to_numpy(polygons.GetOffsetsArray()),
        {"cell": {}, "point": {}, place: arrays},
    )


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


def _named_globals(
    path: Path, stored: Mapping[str, object], names: tuple[str, ...]
) -> dict[str, np.ndarray]:
    for name in names:
        if name not in stored:
            raise missing_name(path, "global value", name, stored.keys())
    return {name: np.asarray(stored[name], dtype=np.float64) for name in names}


def _simplices(
    path: Path, points: np.ndarray, cells: np.ndarray, data: Mapping[str, Mapping[str, Rowwise]]
) -> PolygonMesh:
    check_shape(path, "cells", cells.shape, ("cell", 3))
    offsets = np.arange(0, 3 * len(cells) + 1, 3)
    return PolygonMesh(path, points, cells.reshape(-1), offsets, data)


def check_memory_maps(path: Path) -> None:
    """Raise EOFError if a tensor of a stored TensorDict is shorter than its description says.

    Loading maps the file in shared mode, which would lengthen a truncated file with zeros.
    """
    for description in path.rglob("meta.json"):
        for name, entry in json.loads(description.read_text()).items():
            if not isinstance(entry, dict) or "dtype" not in entry or not all(entry["shape"]):
                continue
            itemsize = getattr(torch, entry["dtype"].removeprefix("torch.")).itemsize
            expected = math.prod(entry["shape"]) * itemsize
            file = description.parent / f"{name}.memmap"
            size = file.stat().st_size
            if size < expected:
                raise EOFError(f"{file} has {size} bytes, expected {expected}")


def open_pdmsh(path: Path, request: SurfaceRequest) -> TokenTable:
    """Return one boundary of a DomainMesh, stored as memory maps or as a zarr group."""
    if (path / "zarr.json").exists():
        return _open_domain_zarr(path, request)
    with reading(path):
        check_memory_maps(path)
        domain = DomainMesh.load(path)
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


def _group_arrays(group: zarr.Group, name: str) -> dict[str, zarr.Array]:
    return dict(group[name].arrays()) if name in group else {}


def _open_domain_zarr(path: Path, request: SurfaceRequest) -> TokenTable:
    with reading(path):
        root = zarr.open_group(path, mode="r")
        boundaries = root["boundaries"] if "boundaries" in root else {}
        if request.boundary not in boundaries:
            raise missing_name(path, "boundary", request.boundary, boundaries)
        mesh = boundaries[request.boundary]
        data = {place: _group_arrays(mesh, f"{place}_data") for place in ("cell", "point")}
        stored = {name: array[...] for name, array in _group_arrays(root, "global_data").items()}
        points, cells = mesh["points"][...], mesh["cells"][...]
    global_values = _named_globals(path, stored, request.global_names)
    return _simplices(path, points, cells, data).table(request, global_values)


def _table_column(path: Path, arrays: Mapping[str, Rowwise], name: str) -> Rowwise:
    """Return array `name`, or its columns of the packed array ``surface_fields``."""
    stored = _TABLE_ALIASES.get(name, name)
    if stored in arrays:
        return arrays[stored]
    columns = SURFACE_FIELD_COLUMNS.get(name)
    if columns is None or "surface_fields" not in arrays:
        packed = SURFACE_FIELD_COLUMNS if "surface_fields" in arrays else {}
        raise missing_name(path, "field", name, [*arrays, *packed])
    fields = arrays["surface_fields"]
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
    for name, array in arrays.items():
        # zarr reads a lost chunk as zeros without a word.
        if array.nchunks_initialized < array.nchunks and name.startswith("surface_"):
            raise ValueError(
                f"{path}: array {name} has {array.nchunks_initialized} of {array.nchunks} chunks; "
                "the copy is incomplete: fetch or write it again"
            )
    return _open_table(path, arrays, request)


OPENERS = {"presampled": open_npz, "vtp": open_vtp, "pdmsh": open_pdmsh, "zarr": open_zarr}
