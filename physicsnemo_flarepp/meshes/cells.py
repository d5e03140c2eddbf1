"""Meshes of any cells as arrays, such as volumes: centres and what cells and points stand for."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

from .polygons import Cells, PolygonMesh, Rows, select_polygons

if TYPE_CHECKING:
    import pyvista as pv

# VTK's numbers of the kinds of cells that are polygons.
_TRIANGLE, _POLYGON, _PIXEL, _QUAD = 5, 7, 8, 9
POLYGON_TYPES = (_TRIANGLE, _POLYGON, _PIXEL, _QUAD)


def pixels_to_quads(
    connectivity: Int[np.ndarray, " L"], offsets: Int[np.ndarray, " n1"], types: np.ndarray
) -> Int[np.ndarray, " L"]:
    """Return polygons with pixels, which VTK lists line by line, turned into closed loops."""
    third = offsets[:-1][types == _PIXEL] + 2
    if len(third) == 0:
        return connectivity
    turned = connectivity.copy()
    turned[third], turned[third + 1] = connectivity[third + 1], connectivity[third]
    return turned


@dataclass(frozen=True)
class CellMesh(Cells):
    """A mesh of cells of any kind, or of points alone, with its data.

    Parameters
    ----------
    source, points, connectivity, offsets, data, present
        As in :class:`~physicsnemo_flarepp.meshes.PolygonMesh`.
    types : numpy.ndarray
        VTK's numbers of the kinds of cells, (n,).
    sizes : numpy.ndarray, optional
        Volume of each cell, or area or length of a flat one, (n,).
    kind : str
        VTK's name of the data set in the file.

    Examples
    --------
    >>> corners = np.array([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 3]])
    >>> mesh = CellMesh("tet", corners, np.arange(4), np.array([0, 4]), np.array([10]), {})
    >>> mesh.n_cells, mesh.cell_centres()
    (1, array([[0.25, 0.25, 0.75]]))
    """

    source: Path | str
    points: Float[np.ndarray, "P 3"]
    connectivity: Int[np.ndarray, " L"]
    offsets: Int[np.ndarray, " n1"]
    types: np.ndarray
    data: Mapping[str, Mapping[str, np.ndarray]]
    present: Mapping[str, Collection[str]] | None = None
    sizes: Float[np.ndarray, " n"] | None = None
    kind: str = "UnstructuredGrid"

    def cell_centres(self, rows: Rows = slice(None)) -> Float[np.ndarray, "n 3"]:
        """Return the mean vertex of each of the chosen cells."""
        connectivity, offsets = select_polygons(self.connectivity, self.offsets, rows)
        counts = np.diff(offsets)
        if (counts == 0).any():
            raise ValueError(
                f"{self.source} has {(counts == 0).sum()} cells without vertices; remove them, for "
                "example with pyvista's clean()"
            )
        if len(counts) == 0:
            return np.zeros((0, 3))
        vertices = np.asarray(self.points[connectivity], dtype=np.float64)
        return np.add.reduceat(vertices, offsets[:-1], axis=0) / counts[:, None]

    @cached_property
    def point_sizes(self) -> Float[np.ndarray, " P"] | None:
        """Each point's share of the cells around it, which give their vertices equal parts."""
        if self.sizes is None:
            return None
        counts = np.diff(self.offsets)
        shares = np.repeat(self.sizes / np.maximum(counts, 1), counts)
        return np.bincount(self.connectivity, shares, len(self.points))


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
