"""Meshes as arrays: surfaces of polygons, with their areas and normals, and cells of any kind.

Cells are two arrays: `connectivity`, the vertex numbers of one cell after the other, and `offsets`,
where each cell begins, with the total length at the end.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

# pyvista takes a second that reading arrays and generating data do not need.
if TYPE_CHECKING:
    import pyvista as pv

Rows = slice | np.ndarray
# Where the values of a mesh live.
ASSOCIATIONS = ("cell", "point")
# VTK's numbers of the kinds of cells that are polygons.
_TRIANGLE, _POLYGON, PIXEL, _QUAD = 5, 7, 8, 9
POLYGON_TYPES = (_TRIANGLE, _POLYGON, PIXEL, _QUAD)


def check_vertices(connectivity: Int[np.ndarray, " L"], n_points: int) -> None:
    """Raise ValueError unless all vertex numbers are from 0 to `n_points` - 1."""
    if len(connectivity) == 0:
        return
    low, high = int(connectivity.min()), int(connectivity.max())
    if low < 0 or high >= n_points:
        raise ValueError(
            f"vertex numbers go from {low} to {high}, but the mesh has {n_points} points"
        )


def select_polygons(
    connectivity: Int[np.ndarray, " L"], offsets: Int[np.ndarray, " n1"], rows: Rows
) -> tuple[Int[np.ndarray, " l"], Int[np.ndarray, " k1"]]:
    """Return connectivity and offsets of the chosen polygons only."""
    starts = offsets[:-1][rows]
    sizes = offsets[1:][rows] - starts
    kept = np.concatenate([[0], np.cumsum(sizes)])
    within = np.arange(kept[-1]) - np.repeat(kept[:-1], sizes)
    return connectivity[np.repeat(starts, sizes) + within], kept


def fan_triangles(
    connectivity: Int[np.ndarray, " L"], offsets: Int[np.ndarray, " n1"]
) -> Int[np.ndarray, "T 3"]:
    """Return polygons cut into triangles that share each polygon's first corner."""
    counts = np.maximum(np.diff(offsets) - 2, 0)
    first = np.repeat(offsets[:-1], counts)
    place = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    corners = np.stack([first, first + place + 1, first + place + 2], axis=1)
    return np.asarray(connectivity)[corners]


def polygon_geometry(
    points: Float[np.ndarray, "P 3"],
    connectivity: Int[np.ndarray, " L"],
    offsets: Int[np.ndarray, " n1"],
) -> tuple[Float[np.ndarray, "n 3"], Float[np.ndarray, "n 3"]]:
    """Return the mean vertex and the area vector of each polygon, in float64.

    The area vector points along the normal (right-hand rule) and its length is the area.
    """
    if len(offsets) == 1:
        return np.zeros((0, 3)), np.zeros((0, 3))
    check_vertices(connectivity, len(points))
    vertices = np.asarray(points[connectivity], dtype=np.float64)
    starts, sizes = offsets[:-1], np.diff(offsets)
    if (sizes < 3).any():
        raise ValueError(f"{(sizes < 3).sum()} polygons have fewer than 3 vertices")
    centres = np.add.reduceat(vertices, starts, axis=0) / sizes[:, None]
    # Fan of triangles around the centre; exact for planar polygons, and free of the cancellation
    # that coordinates far from the origin would cause.
    around = vertices - np.repeat(centres, sizes, axis=0)
    following = np.arange(len(connectivity)) + 1
    following[offsets[1:] - 1] = starts
    area_vectors = 0.5 * np.add.reduceat(np.cross(around, around[following]), starts, axis=0)
    return centres, area_vectors


def vertex_area_vectors(
    n_points: int,
    connectivity: Int[np.ndarray, " L"],
    offsets: Int[np.ndarray, " n1"],
    area_vectors: Float[np.ndarray, "n 3"],
) -> tuple[Float[np.ndarray, "P 3"], Float[np.ndarray, " P"]]:
    """Return each vertex's share of the area vectors and areas around it, in equal parts."""
    sizes = np.diff(offsets)
    shares = np.repeat(area_vectors / sizes[:, None], sizes, axis=0)
    parts = (*shares.T, np.linalg.norm(shares, axis=1))
    *summed, areas = (np.bincount(connectivity, part, n_points) for part in parts)
    return np.stack(summed, axis=1), areas


def unit_vectors(vectors: Float[np.ndarray, "n 3"]) -> Float[np.ndarray, "n 3"]:
    """Return `vectors` scaled to length 1; a zero vector stays zero."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)


@dataclass(frozen=True)
class Cells:
    """What meshes of polygons and of other cells share; arrays may be memory-mapped or lazy.

    `data` has arrays by place (``cell``, ``point``, or ``field`` for neither) and name; `present`
    has the names of all arrays of the source by place, if `data` holds only some of them.
    """

    source: Path | str
    points: Float[np.ndarray, "P 3"]
    connectivity: Int[np.ndarray, " L"]
    offsets: Int[np.ndarray, " n1"]
    data: Mapping[str, Mapping[str, np.ndarray]] = field(
        default_factory=lambda: {place: {} for place in ASSOCIATIONS}
    )
    present: Mapping[str, Collection[str]] | None = None

    @property
    def n_cells(self) -> int:
        """Number of cells."""
        return len(self.offsets) - 1

    def array_names(self) -> Mapping[str, Collection[str]]:
        """Return the names of the arrays of the source by place, whether they were read or not."""
        return self.data if self.present is None else self.present

    def shared_by_points(self, values: Float[np.ndarray, " n"]) -> Float[np.ndarray, " P"]:
        """Return each point's share of values of the cells, which give vertices equal parts."""
        counts = np.diff(self.offsets)
        shares = np.repeat(values / np.maximum(counts, 1), counts)
        return np.bincount(self.connectivity, shares, len(self.points))


class PolygonMesh(Cells):
    """A surface mesh with its data."""

    def cell_geometry(self, rows: Rows = slice(None)) -> tuple[np.ndarray, np.ndarray]:
        """Return centres and area vectors of the chosen polygons; see :func:`polygon_geometry`."""
        chosen = select_polygons(self.connectivity, self.offsets, rows)
        return polygon_geometry(self.points, *chosen)

    @cached_property
    def vertex_areas(self) -> tuple[np.ndarray, np.ndarray]:
        """Area vectors and areas around each point; see :func:`vertex_area_vectors`."""
        vectors = polygon_geometry(self.points, self.connectivity, self.offsets)[1]
        return vertex_area_vectors(len(self.points), self.connectivity, self.offsets, vectors)


@dataclass(frozen=True)
class CellMesh(Cells):
    """A mesh of cells of any kind, or of points alone, with its data.

    `types` are VTK's numbers of the kinds of cells, `sizes` their volumes, or the areas or lengths
    of flat ones, and `kind` is VTK's name of the data set in the file.
    """

    types: np.ndarray | None = None
    sizes: Float[np.ndarray, " n"] | None = None
    kind: str = "UnstructuredGrid"

    def cell_centres(self, rows: Rows = slice(None)) -> Float[np.ndarray, "n 3"]:
        """Return the mean vertex of each of the chosen cells."""
        connectivity, offsets = select_polygons(self.connectivity, self.offsets, rows)
        counts = np.diff(offsets)
        if (counts == 0).any():
            raise ValueError(f"{self.source} has {(counts == 0).sum()} cells without vertices")
        if len(counts) == 0:
            return np.zeros((0, 3))
        vertices = np.asarray(self.points[connectivity], dtype=np.float64)
        return np.add.reduceat(vertices, offsets[:-1], axis=0) / counts[:, None]

    @cached_property
    def point_sizes(self) -> Float[np.ndarray, " P"] | None:
        """Each point's share of the cells around it."""
        return None if self.sizes is None else self.shared_by_points(self.sizes)


def numeric_arrays(data: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays of numbers among the data of a pyvista mesh."""
    arrays = {name: np.asarray(values) for name, values in data.items()}
    return {name: array for name, array in arrays.items() if array.dtype.kind in "fiub"}


def polygon_mesh(surface: "pv.PolyData", source: str | Path) -> PolygonMesh:
    """Return a pyvista surface of polygons only as arrays, which share its memory."""
    from vtkmodules.util.numpy_support import vtk_to_numpy

    polygons = surface.GetPolys()
    places = {"cell": surface.cell_data, "point": surface.point_data}
    return PolygonMesh(
        Path(source),
        np.asarray(surface.points),
        vtk_to_numpy(polygons.GetConnectivityArray()),
        vtk_to_numpy(polygons.GetOffsetsArray()),
        {place: {name: np.asarray(data[name]) for name in data} for place, data in places.items()}
        | {"field": numeric_arrays(surface.field_data)},
    )


def to_pyvista(mesh: PolygonMesh | CellMesh) -> "pv.PolyData | pv.UnstructuredGrid":
    """Return a mesh with its data as a pyvista mesh; points without cells become vertices."""
    import pyvista as pv
    from vtkmodules.util.numpy_support import numpy_to_vtk

    if not isinstance(mesh, PolygonMesh) and mesh.n_cells == 0:
        made = pv.PolyData(np.asarray(mesh.points))
    else:
        made = pv.PolyData() if isinstance(mesh, PolygonMesh) else pv.UnstructuredGrid()
        made.points = mesh.points
        cells = pv.CellArray.from_arrays(mesh.offsets, mesh.connectivity)
        if isinstance(mesh, PolygonMesh):
            made.SetPolys(cells)
        else:
            types = np.ascontiguousarray(mesh.types, dtype=np.uint8)
            made.SetCells(numpy_to_vtk(types, deep=True), cells)
    targets = {"cell": made.cell_data, "point": made.point_data, "field": made.field_data}
    for place, target in targets.items():
        for name, array in mesh.data.get(place, {}).items():
            target[name] = np.asarray(array)
    return made
