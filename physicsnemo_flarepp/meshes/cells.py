"""Meshes of any cells as arrays, such as volumes: centres and what cells and points stand for."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from .polygons import Rows, select_polygons

# VTK's numbers of the kinds of cells that are polygons.
_TRIANGLE, _POLYGON, _PIXEL, _QUAD = 5, 7, 8, 9
POLYGON_TYPES = (_TRIANGLE, _POLYGON, _PIXEL, _QUAD)


def pixels_to_quads(
    connectivity: Int[np.ndarray, " L"], offsets: Int[np.ndarray, " n1"], types: np.ndarray
) -> Int[np.ndarray, " L"]:
    """Return the vertices of polygons in the order in which they go around.

    VTK's pixels, the cells of a flat image, list theirs line by line.

    Examples
    --------
    >>> pixels_to_quads(np.arange(4), np.array([0, 4]), np.array([8]))
    array([0, 1, 3, 2])
    """
    third = offsets[:-1][types == _PIXEL] + 2
    if len(third) == 0:
        return connectivity
    turned = connectivity.copy()
    turned[third], turned[third + 1] = connectivity[third + 1], connectivity[third]
    return turned


@dataclass(frozen=True)
class CellMesh:
    """A mesh of cells of any kind, or of points alone, with its data.

    Parameters
    ----------
    source : Path or str
        Where it came from, to name in errors.
    points : numpy.ndarray
        Vertices, (P, 3).
    connectivity, offsets : numpy.ndarray
        Vertex numbers one cell after the other, and where each cell begins, (n + 1,).
    types : numpy.ndarray
        VTK's numbers of the kinds of cells, (n,).
    data : Mapping[str, Mapping[str, numpy.ndarray]]
        Arrays by place (``cell``, ``point``; ``field`` for those of neither) and name.
    present : Mapping[str, Collection[str]], optional
        Names of all arrays of the source by place, where `data` has not all of them.
    sizes : numpy.ndarray, optional
        Volume of each cell, or area or length of one that is flat, (n,).
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

    @property
    def n_cells(self) -> int:
        """Number of cells."""
        return len(self.offsets) - 1

    def array_names(self) -> Mapping[str, Collection[str]]:
        """Return the names of the arrays of the source by place, whether they were read or not."""
        return self.data if self.present is None else self.present

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
