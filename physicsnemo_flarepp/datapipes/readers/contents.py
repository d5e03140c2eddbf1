"""What lies in the files of one case, before names are given a meaning: one opener per format.

========================= ============================================ ========================
files                     what is found                                what a draw reads
========================= ============================================ ========================
.vtp .vtu .vtk .vts .vtr  a mesh, its cell, point and field data       the arrays asked for
.vti .stl .ply .obj
.npz                      arrays by name                               the arrays asked for
.npy                      one array, named by the file                 its rows, memory-mapped
.h5 .hdf5                 arrays by name, those of groups group/array  the first row to the last
.zarr                     the same                                     the chunks with its rows
.pmsh .pdmsh              a PhysicsNeMo Mesh, or part of a DomainMesh  its rows, memory-mapped
========================= ============================================ ========================

Of legacy .vtk, .stl, .ply and .obj files all arrays are read.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from physicsnemo.mesh import Mesh

from ...meshes import SUFFIXES as MESH_SUFFIXES
from ...meshes import CellMesh, PolygonMesh, read_mesh
from ..checks import printable
from .array_files import SUFFIXES as ARRAY_SUFFIXES
from .array_files import open_arrays
from .base import Rowwise
from .stores import load_mesh_store

STORE_SUFFIXES = (".pmsh", ".pdmsh", ".zarr")
SUFFIXES = tuple(dict.fromkeys((*MESH_SUFFIXES, *ARRAY_SUFFIXES, *STORE_SUFFIXES)))
MESH_FILES = (*MESH_SUFFIXES, ".pmsh", ".pdmsh")
# VTK's number of the kind of cell with so many corners, of the simplices that PhysicsNeMo has.
_SIMPLEX_TYPES = {1: 1, 2: 3, 4: 10}


@dataclass(frozen=True)
class Wanted:
    """What of a file will be used, so that the rest need not be read.

    Parameters
    ----------
    arrays : Collection[str] or None
        Names; None for all.
    sizes : bool
        Whether the cells of a volume are measured.
    boundary : str or None
        Part of a DomainMesh: a boundary or ``interior``; None for the only boundary.
    allow_missing_chunks : Collection[str]
        Zarr arrays whose absent chunks stand for the fill value.
    """

    arrays: Collection[str] | None = None
    sizes: bool = False
    boundary: str | None = None
    allow_missing_chunks: Collection[str] = ()


@dataclass(frozen=True)
class Contents:
    """Everything in the files of one case.

    Parameters
    ----------
    source : Path or str
        The file to name in errors and to plot from: that of the mesh, if there is one.
    arrays : Mapping[str, Rowwise]
        Of files of arrays, of any shape.
    mesh : PolygonMesh or CellMesh, optional
        Geometry with its cell and point data.
    values : Mapping[str, numpy.ndarray]
        Of the whole case: field data of a mesh, global data, parameters.
    body : PolygonMesh, optional
        Surface of the body in a domain, to which distances are measured.
    unreadable : Mapping[str, str]
        Why arrays that are there are not read, by name: sentences that begin with the file.
    """

    source: Path | str
    arrays: Mapping[str, Rowwise] = field(default_factory=dict)
    mesh: PolygonMesh | CellMesh | None = None
    values: Mapping[str, np.ndarray] = field(default_factory=dict)
    body: PolygonMesh | None = None
    unreadable: Mapping[str, str] = field(default_factory=dict)

    def join(self, other: "Contents") -> "Contents":
        """Return both together; arrays of a second mesh must be on the same points or cells."""
        one, two = (self, other) if self.mesh is not None else (other, self)
        _refuse_twice(self, other, self.arrays, other.arrays)
        _refuse_twice(self, other, self.values, other.values)
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
        )

    def with_values(self, values: Mapping[str, np.ndarray]) -> "Contents":
        """Return the contents with further values of the whole case."""
        _refuse_twice(self, Contents("the parameters"), self.values, values)
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
        if self.mesh is not None:
            for place, names in self.mesh.array_names().items():
                for name in names if place != "field" else ():
                    found[name] = (
                        f"{found[name]}, {place} data" if name in found else f"{place} data"
                    )
        return found | {name: "value of the case" for name in self.values}


def open_body(path: Path) -> PolygonMesh:
    """Return the surface of a body in a domain."""
    mesh = read_mesh(path, arrays=())
    if not isinstance(mesh, PolygonMesh):
        raise ValueError(
            f"{path} holds no surface, but data.reader.body names the surface of the body in the "
            "domain, to which distances are measured; name a .stl, .vtp, .ply or .obj"
        )
    return mesh


def _refuse_twice(
    one: Contents, other: Contents, first: Collection[str], second: Collection[str]
) -> None:
    twice = sorted(set(first) & set(second))
    if twice:
        raise ValueError(
            f"{', '.join(twice)} is in {one.source} and again in {other.source}; leave one of the "
            "files out of data.reader.files, or rename the array"
        )


def _matching_points(points: np.ndarray, others: np.ndarray) -> np.ndarray | None:
    """Return which of `others` is each of `points`, to the last bit; None if they are not the same.

    DrivAerNet++ has pressure and wall shear on the same points in different orders.
    """
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
            f"{counts[1][0]} and {counts[1][1]}, or their points differ; files of one case must "
            "hold the same mesh, with cells in one order (points alone may be in another)"
        )
    places = {*mesh.data, *other.data}
    data = {p: {**other.data.get(p, {}), **mesh.data.get(p, {})} for p in places}
    present = {
        p: list(dict.fromkeys([*mesh.array_names().get(p, ()), *other.array_names().get(p, ())]))
        for p in ("cell", "point")
    }
    return replace(mesh, data=data, present=present)


def open_files(paths: Sequence[Path], wanted: Wanted, names: Mapping[Path, str]) -> Contents:
    """Return the contents of the files of one case.

    Parameters
    ----------
    paths : Sequence[Path]
        The files or stores.
    wanted : Wanted
        What of them will be used.
    names : Mapping[Path, str]
        Names of arrays in files that hold a single one without a name (.npy).
    """
    contents = open_file(paths[0], wanted, names.get(paths[0]))
    for path in paths[1:]:
        contents = contents.join(open_file(path, wanted, names.get(path)))
    return contents


def open_file(path: Path, wanted: Wanted, name: str | None = None) -> Contents:
    """Return the contents of one file or store; the format is told by its suffix."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"{path} must end in one of {', '.join(SUFFIXES)}")
    _check_present(path)
    if suffix in MESH_SUFFIXES:
        mesh = read_mesh(path, arrays=wanted.arrays, sizes=wanted.sizes)
        return Contents(path, mesh=mesh, values=_values(mesh.data.get("field", {})))
    if suffix in (".pmsh", ".pdmsh"):
        mesh, global_values = load_mesh_store(path, wanted.boundary, wanted.allow_missing_chunks)
        return from_physicsnemo(path, mesh, global_values, sizes=wanted.sizes)
    found = open_arrays(
        path,
        name=name,
        wanted=wanted.arrays,
        allow_missing_chunks=wanted.allow_missing_chunks,
    )
    unreadable = {n: f"{path}: {printable(n)} is {why}" for n, why in found.unreadable.items()}
    return Contents(path, found.arrays, unreadable=unreadable)


def _check_present(path: Path) -> None:
    """Raise unless there is a file, or a folder where the format is one; a pipe would wait."""
    if not path.exists():
        link = f": it is a link to {path.readlink()}" if path.is_symlink() else ""
        raise FileNotFoundError(
            f"{path} does not exist{link}; give a file or store of arrays or a mesh"
        )
    store = path.suffix.lower() in STORE_SUFFIXES
    if not (path.is_dir() if store else path.is_file()):
        kind = "folder" if store else "regular file"
        raise ValueError(f"{path} is no {kind}, as its name says; fetch it again, or rename it")


def _values(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the field data of a mesh that are numbers."""
    return {name: np.asarray(a) for name, a in arrays.items() if np.asarray(a).dtype.kind in "fiub"}


def from_physicsnemo(
    source: Path | str,
    mesh: Mesh,
    global_values: Mapping[str, object] | None = None,
    *,
    sizes: bool = False,
) -> Contents:
    """Return the contents of a PhysicsNeMo Mesh; points of a plane are put into space.

    Parameters
    ----------
    source : Path or str
        To name in errors.
    mesh : physicsnemo.mesh.Mesh
        Points, and simplices of any dimension.
    global_values : Mapping, optional
        Of the domain that the mesh is a part of; they come before those of the mesh.
    sizes : bool, optional
        Measure the cells of a mesh that is no surface.
    """
    data = {
        place: {name: value.numpy() for name, value in stored.items() if value.ndim <= 2}
        for place, stored in (("cell", mesh.cell_data), ("point", mesh.point_data))
    }
    stored = {**dict(mesh.global_data.items()), **(global_values or {})}
    values = {name: np.asarray(value) for name, value in stored.items()}
    points, cells = mesh.points.numpy(), mesh.cells.numpy()
    if points.shape[1] < 3:
        points = np.pad(points, ((0, 0), (0, 3 - points.shape[1])))
    n_cells, corners = cells.shape
    offsets = np.arange(0, cells.size + 1, max(1, corners))[: n_cells + 1]
    if corners == 3 and n_cells:
        return Contents(
            source,
            mesh=PolygonMesh(source, points, cells.reshape(-1), offsets, data),
            values=values,
        )
    types = np.full(n_cells, _SIMPLEX_TYPES.get(corners, 0))
    measured = mesh.cell_areas.numpy() if sizes and n_cells else None
    volume = CellMesh(
        source, points, cells.reshape(-1), offsets, types, data, sizes=measured, kind="Mesh"
    )
    return Contents(source, mesh=volume, values=values)
