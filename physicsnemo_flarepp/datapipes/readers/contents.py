"""What lies in the files of one case, before names are given a meaning: one opener per format.

====================== ============================================= ===========================
files                  what is found                                 what a draw reads
====================== ============================================= ===========================
VTK's XML files        a mesh, its cell, point and field data        the arrays asked for
other meshes           the same; of parts the volumes, or one named  all arrays
.csv, .npz             columns or arrays by name                     all columns; arrays asked for
.npy, .pmsh .pdmsh     an array; a Mesh, or part of a DomainMesh     its rows, memory-mapped
.h5 .hdf5, .zarr       arrays by name, of groups group/array         rows first to last; chunks
====================== ============================================= ===========================
"""

import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path

import numpy as np
import torch
import zarr
from physicsnemo.mesh import DomainMesh, Mesh

from ...files import RefusedFile, reading
from ...meshes import SUFFIXES as MESH_SUFFIXES
from ...meshes import CellMesh, PolygonMesh, read_mesh
from ...meshes.polygons import numeric_arrays
from ..specs import TABLE_AREAS, TABLE_NAMES
from ..validation import check_range, check_shape, missing_name, printable
from .array_files import SUFFIXES as ARRAY_SUFFIXES
from .array_files import LazyArray, Rowwise, check_chunks, lazy_zarr, open_arrays

STORE_SUFFIXES = (".pmsh", ".pdmsh", ".zarr")
SUFFIXES = tuple(dict.fromkeys((*MESH_SUFFIXES, *ARRAY_SUFFIXES, *STORE_SUFFIXES)))
MESH_FILES = (*MESH_SUFFIXES, ".pmsh", ".pdmsh")
# Name of what is inside the boundaries of a DomainMesh.
INTERIOR = "interior"
# VTK's number of the kind of cell with so many corners, of the simplices that PhysicsNeMo has.
_SIMPLEX_TYPES = {1: 1, 2: 3, 4: 10}
# Of arrays that list the points of each cell.
_CONNECTIVITY = re.compile(
    r"(.*[_/])?(triangles?|tris?|faces?|cells?|elements?|elems?|quads?|connectivity|simplices)",
    re.IGNORECASE,
)
# Files that are decoded whole, whatever is wanted of them.
_DECODED = (*MESH_SUFFIXES, ".csv", ".npz")


@dataclass(frozen=True)
class Wanted:
    """What of a file will be used, so that the rest need not be read."""

    arrays: Collection[str] | None = None
    sizes: bool = False
    boundary: str | None = None
    allow_missing_chunks: Collection[str] = ()


@dataclass(frozen=True)
class Contents:
    """Everything in the files of one case."""

    source: Path | str
    arrays: Mapping[str, Rowwise] = field(default_factory=dict)
    mesh: PolygonMesh | CellMesh | None = None
    values: Mapping[str, np.ndarray] = field(default_factory=dict)
    body: PolygonMesh | None = None
    unreadable: Mapping[str, str] = field(default_factory=dict)
    checked: bool = False
    origins: Mapping[str, Path | str] = field(default_factory=dict)
    # Whether the files are decoded whole, and the bytes of what is.
    decoded: bool = False
    held: int = 0

    def source_of(self, name: str) -> Path | str:
        """Return the file to blame for an array."""
        return self.origins.get(name, self.source)

    def join(self, other: "Contents") -> "Contents":
        """Return both together; arrays of a second mesh must be on the same points or cells."""
        one, two = (self, other) if self.mesh is not None else (other, self)
        _refuse_twice(self, other.source, self.arrays, other.arrays)
        _refuse_twice(self, other.source, self.values, other.values)
        mesh = one.mesh
        if mesh is not None and two.mesh is not None:
            mesh = _joined_mesh(mesh, two.mesh)
        return Contents(
            one.source,
            {**self.arrays, **other.arrays},
            mesh,
            {**self.values, **other.values},
            self.body or other.body,
            {**self.unreadable, **other.unreadable},
            self.checked and other.checked,
            {name: part.source_of(name) for part in (self, other) for name in part.arrays},
            self.decoded and other.decoded,
            self.held + other.held,
        )

    def with_values(self, values: Mapping[str, np.ndarray]) -> "Contents":
        """Return the contents with further values of the whole case."""
        _refuse_twice(self, "the parameters", self.values, values)
        return replace(self, values={**self.values, **values})

    def count(self, place: str) -> int:
        """Return the number of cells or points of the mesh."""
        return self.mesh.n_cells if place == "cell" else len(self.mesh.points)

    def columns(self, place: str | None) -> dict[str, Rowwise]:
        """Return the arrays that can belong to tokens: all, or those of one place of a mesh."""
        if self.mesh is None:
            return dict(self.arrays)
        n = self.count(place)
        fitting = {name: a for name, a in self.arrays.items() if a.shape[:1] == (n,)}
        return {**self.mesh.data.get(place, {}), **fitting}

    def names(self) -> dict[str, str]:
        """Return the name of everything there is, with where it is."""
        found = {name: "array" for name in self.arrays}
        places = {} if self.mesh is None else self.mesh.array_names()
        for place in ("cell", "point"):
            for name in places.get(place, ()):
                found[name] = f"{found[name]}, {place} data" if name in found else f"{place} data"
        return found | {name: "value of the case" for name in self.values}


def is_connectivity(name: str, array: Rowwise) -> bool:
    """Return whether an array lists the points of triangles or quads: (cells, 3) or (cells, 4)."""
    listed = array.dtype.kind in "iu" and len(array.shape) == 2 and array.shape[1] in (3, 4)
    return listed and bool(_CONNECTIVITY.fullmatch(name))


def _refuse_twice(
    one: Contents, other: Path | str, first: Collection[str], second: Collection[str]
) -> None:
    twice = sorted(set(first) & set(second))
    if twice:
        raise ValueError(
            f"{', '.join(twice)} is in {one.source} and again in {other}; rename one, or leave one "
            "of the files out of data.reader.files"
        )


def _matching_points(points: np.ndarray, others: np.ndarray) -> np.ndarray | None:
    """Return which of `others` is each of `points`, to the last bit; None if they differ."""
    order, place = np.lexsort(points.T), np.lexsort(others.T)
    if not np.array_equal(points[order], others[place]):
        return None
    found = np.empty(len(points), dtype=np.int64)
    found[order] = place
    return found


def _joined_mesh(
    mesh: PolygonMesh | CellMesh, other: PolygonMesh | CellMesh
) -> PolygonMesh | CellMesh:
    counts = [(len(m.points), m.n_cells) for m in (mesh, other)]
    same = counts[0] == counts[1]
    if same and not np.allclose(mesh.points, other.points, rtol=1e-4, atol=1e-6):
        order = _matching_points(mesh.points, other.points)
        same = order is not None and not other.data.get("cell")
        if same:
            at_points = {n: np.asarray(a)[order] for n, a in other.data.get("point", {}).items()}
            other = replace(other, data={**other.data, "point": at_points})
    if not same:
        raise ValueError(
            f"{mesh.source} has {counts[0][0]} points and {counts[0][1]} cells, {other.source} "
            f"{counts[1][0]} and {counts[1][1]}, or their points differ; one case needs one mesh"
        )
    data = {p: {**other.data.get(p, {}), **mesh.data.get(p, {})} for p in {*mesh.data, *other.data}}
    names = [m.array_names() for m in (mesh, other)]
    present = {
        p: list(dict.fromkeys(n for each in names for n in each.get(p, ())))
        for p in ("cell", "point")
    }
    return replace(mesh, data=data, present=present)


def array_name(path: Path, case: str | None) -> str:
    """Return the name of the array in a .npy file: of the file, without the id of its case."""
    if case is None or case not in path.stem:
        return path.stem
    return path.stem.replace(case, "", 1).strip("_-. ") or "values"


def open_files(paths: Sequence[Path], wanted: Wanted, case: str | None = None) -> Contents:
    """Return what is in some files.

    Of a `case`, note what is decoded, and check the values of meshes, which are read whole.
    """
    opened = [open_file(path, wanted, array_name(path, case)) for path in paths]
    contents = reduce(Contents.join, opened)
    suffixes = {path.suffix.lower() for path in paths}
    if case is None or not suffixes <= set(_DECODED):
        return contents
    mesh, arrays = contents.mesh, list(contents.arrays.values())
    checked = suffixes <= set(MESH_SUFFIXES) and wanted.arrays is not None
    if checked:
        named = {n: a for p in ("cell", "point") for n, a in mesh.data[p].items()}
        named = {n: a for n, a in named.items() if n in wanted.arrays}
        for name, values in {"coordinates": mesh.points, **named}.items():
            if values.dtype.kind == "f" and len(values):
                check_range(contents.source, case, name, values.reshape(len(values), -1))
    if mesh is not None:
        arrays += [mesh.points, mesh.connectivity, mesh.offsets]
        arrays += [array for place in mesh.data.values() for array in place.values()]
    held = sum(math.prod(array.shape) * array.dtype.itemsize for array in arrays)
    return replace(contents, checked=checked, decoded=True, held=held)


def open_file(path: Path, wanted: Wanted, name: str | None = None) -> Contents:
    """Return the contents of one file or store, by its suffix."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"{path} must end in one of {', '.join(SUFFIXES)}")
    _check_present(path)
    if suffix in MESH_SUFFIXES:
        mesh = read_mesh(path, arrays=wanted.arrays, sizes=wanted.sizes, part=wanted.boundary)
        return Contents(path, mesh=mesh, values=numeric_arrays(mesh.data.get("field", {})))
    if suffix not in (".pmsh", ".pdmsh"):
        return _open_table(path, wanted, name)
    if (path / "zarr.json").exists():
        return _open_zarr_mesh(path, wanted)
    with reading(path):
        stored = _load_memory_maps(path)
    return from_physicsnemo(path, stored, wanted)


def _open_table(path: Path, wanted: Wanted, name: str | None) -> Contents:
    """Return the arrays of a file, also those that DrivAerML's tables store under other names."""
    asked = wanted.arrays
    others = {n: TABLE_NAMES[n] for n in asked or () if n in TABLE_NAMES}
    if asked is not None:
        asked = {*asked, *(stored for stored, _ in others.values())}
        asked |= {TABLE_AREAS} if wanted.sizes else set()
    allowed = wanted.allow_missing_chunks
    arrays, found = open_arrays(path, name=name, wanted=asked, allow_missing_chunks=allowed)
    for alias, (stored, columns) in others.items():
        if alias not in arrays and stored in arrays:
            arrays[alias] = _table_columns(path, stored, arrays[stored], columns)
    unreadable = {n: f"{path}: {printable(n)} is {why}" for n, why in found.items()}
    return Contents(path, arrays, unreadable=unreadable)


def _table_columns(path: Path, name: str, array: Rowwise, columns: slice | None) -> Rowwise:
    if columns is None:
        return array
    check_shape(path, name, array.shape, ("token", 4))
    shape = (array.shape[0], len(range(4)[columns]))
    return LazyArray(shape, lambda rows: np.asarray(array[rows])[..., columns])


def _check_present(path: Path) -> None:
    """Raise unless there is a file, or a folder where the format is one; a pipe would wait."""
    if not path.exists():
        link = f": it is a link to {path.readlink()}" if path.is_symlink() else ""
        raise FileNotFoundError(f"{path} does not exist{link}; give a file of arrays or a mesh")
    store = path.suffix.lower() in STORE_SUFFIXES
    if not (path.is_dir() if store else path.is_file()):
        kind = "folder" if store else "regular file"
        raise ValueError(f"{path} is not a {kind}, as its name says; fetch it again, or rename it")


def open_body(path: Path) -> PolygonMesh:
    """Return the surface of a body in a domain."""
    mesh = read_mesh(path, arrays=())
    if not isinstance(mesh, PolygonMesh):
        raise ValueError(
            f"{path} is not a surface; data.reader.body names the surface of the body to which "
            "distances are measured, a .stl, .vtp, .ply or .obj"
        )
    return mesh


def _check_memory_maps(path: Path) -> None:
    """Raise on missing or cut tensors, which loading would leave out or lengthen with zeros."""
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


def _load_memory_maps(path: Path) -> Mesh | DomainMesh:
    """Return a Mesh or DomainMesh from memory maps, copy-on-write so that no file is lengthened."""
    for pickled in (*path.rglob("*.pickle"), *path.rglob("*.pkl")):
        raise RefusedFile(
            f"{path} is refused: {pickled.relative_to(path)} is a pickle, which could run code. "
            "Nothing of it was run; write the mesh again with tensors only"
        )
    try:
        _check_memory_maps(path)
        return DomainMesh.load_memmap(path, allow_pickle=False, mode="r")
    except (KeyError, AttributeError, FileNotFoundError) as error:
        raise ValueError(f"a meta.json in it is damaged: {type(error).__name__} {error}") from error


def _part_name(source: Path | str, names: Sequence[str], boundary: str | None) -> str | None:
    """Return the boundary asked for, or by default the only one; None for the interior."""
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


def _open_zarr_mesh(path: Path, wanted: Wanted) -> Contents:
    """Return a Mesh, or a part of a DomainMesh, in a zarr group; its data are read by rows."""

    def arrays_of(group: zarr.Group, name: str) -> dict[str, zarr.Array]:
        return dict(group[name].arrays()) if name in group else {}

    with reading(path):
        root = zarr.open_group(path, mode="r")
        if "points" in root:
            group, global_groups = root, [root]
        else:
            boundaries = dict(root["boundaries"].groups()) if "boundaries" in root else {}
            name = _part_name(path, list(boundaries), wanted.boundary)
            group = root["interior"] if name is None else boundaries[name]
            global_groups = [group, root]
        places = {place: arrays_of(group, f"{place}_data") for place in ("cell", "point")}
        stored = {n: a for g in global_groups for n, a in arrays_of(g, "global_data").items()}
        points, cells = group["points"], group["cells"] if "cells" in group else None
    used = [array for arrays in (*places.values(), stored) for array in arrays.values()]
    if wanted.arrays is not None:
        used = [array for array in used if array.basename in wanted.arrays]
    for array in (points, *(() if cells is None else (cells,)), *used):
        check_chunks(path, array, wanted.allow_missing_chunks)
    with reading(path):
        values = {n: a[...] for n, a in stored.items()}
        points = points[...]
        cells = np.zeros((0, 1), dtype=np.int64) if cells is None else cells[...]
    data = {
        place: {n: lazy_zarr(path, n, a) for n, a in arrays.items() if a.ndim <= 2}
        for place, arrays in places.items()
    }
    return _simplices(path, points, cells, data, values, wanted.sizes)


def from_physicsnemo(source: Path | str, mesh: Mesh | DomainMesh, wanted: Wanted) -> Contents:
    """Return a Mesh, or the wanted part of a DomainMesh, whose values come before the part's."""
    part, above = mesh, {}
    if isinstance(mesh, DomainMesh):
        name = _part_name(source, list(mesh.boundary_names), wanted.boundary)
        part = mesh.interior if name is None else mesh.boundaries[name]
        above = dict(mesh.global_data.items())
    data = {
        place: {name: value.numpy() for name, value in stored.items() if value.ndim <= 2}
        for place, stored in (("cell", part.cell_data), ("point", part.point_data))
    }
    stored = {**dict(part.global_data.items()), **above}
    values = {name: np.asarray(value) for name, value in stored.items()}
    return _simplices(source, part.points.numpy(), part.cells.numpy(), data, values, wanted.sizes)


def _simplices(
    source: Path | str,
    points: np.ndarray,
    cells: np.ndarray,
    data: Mapping[str, Mapping[str, Rowwise]],
    values: Mapping[str, np.ndarray],
    sizes: bool,
) -> Contents:
    """Return simplices of any dimension as contents; points of a plane are put into space."""
    n_cells, corners = cells.shape
    space = np.pad(points, ((0, 0), (0, 3 - points.shape[1]))) if points.shape[1] < 3 else points
    offsets = np.arange(0, cells.size + 1, max(1, corners))[: n_cells + 1]
    listed = (source, space, cells.reshape(-1), offsets)
    if corners == 3 and n_cells:
        return Contents(source, mesh=PolygonMesh(*listed, data), values=values)
    types, measured = np.full(n_cells, _SIMPLEX_TYPES.get(corners, 0)), None
    if sizes and n_cells:
        measured = Mesh(points=torch.tensor(points), cells=torch.tensor(cells)).cell_areas.numpy()
    mesh = CellMesh(*listed, data, types=types, sizes=measured, kind="Mesh")
    return Contents(source, mesh=mesh, values=values)
