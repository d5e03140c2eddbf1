"""Polygon meshes as arrays: centres, area vectors and vertex shares, for chosen polygons."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

Rows = slice | np.ndarray
# Where the values of a mesh live.
ASSOCIATIONS = ("cell", "point")


def check_vertices(connectivity: np.ndarray, n_points: int) -> None:
    """Raise ValueError unless all vertex numbers are from 0 to `n_points` - 1.

    Examples
    --------
    >>> check_vertices(np.array([0, 1, -1]), 3)
    Traceback (most recent call last):
    ValueError: vertex numbers go from -1 to 1, expected 0 to 2, for the mesh has 3 points
    """
    if len(connectivity) == 0:
        return
    low, high = int(connectivity.min()), int(connectivity.max())
    if low < 0 or high >= n_points:
        raise ValueError(
            f"vertex numbers go from {low} to {high}, expected 0 to {n_points - 1}, for the mesh "
            f"has {n_points} points"
        )


def select_polygons(
    connectivity: np.ndarray, offsets: np.ndarray, rows: Rows
) -> tuple[np.ndarray, np.ndarray]:
    """Return connectivity and offsets of the chosen polygons only.

    Parameters
    ----------
    connectivity : numpy.ndarray
        Vertex indices of all polygons one after the other.
    offsets : numpy.ndarray
        Where each polygon starts, with the total length at the end; (n + 1,).
    rows : slice or numpy.ndarray
        Polygons to keep.

    Examples
    --------
    >>> select_polygons(np.array([0, 1, 2, 2, 3, 0, 4]), np.array([0, 3, 7]), np.array([1]))
    (array([2, 3, 0, 4]), array([0, 4]))
    """
    starts = offsets[:-1][rows]
    sizes = offsets[1:][rows] - starts
    kept = np.concatenate([[0], np.cumsum(sizes)])
    within = np.arange(kept[-1]) - np.repeat(kept[:-1], sizes)
    return connectivity[np.repeat(starts, sizes) + within], kept


def fan_triangles(connectivity: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return polygons cut into triangles that share each one's first corner, (T, 3).

    Parameters
    ----------
    connectivity, offsets : numpy.ndarray
        Polygons, as in :func:`select_polygons`.

    Examples
    --------
    >>> fan_triangles(np.array([5, 6, 7, 8]), np.array([0, 4]))
    array([[5, 6, 7], [5, 7, 8]])
    """
    counts = np.maximum(np.diff(offsets) - 2, 0)
    first = np.repeat(offsets[:-1], counts)
    place = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    corners = np.stack([first, first + place + 1, first + place + 2], axis=1)
    return np.asarray(connectivity)[corners]


def polygon_geometry(
    points: np.ndarray, connectivity: np.ndarray, offsets: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean vertex and the area vector of each polygon.

    The area vector points along the normal (right-hand rule) and its length is the area; for a
    triangle the mean vertex is the centroid.

    Parameters
    ----------
    points : numpy.ndarray
        Vertices, (P, 3).
    connectivity, offsets : numpy.ndarray
        Polygons, as in :func:`select_polygons`.

    Returns
    -------
    tuple[numpy.ndarray, numpy.ndarray]
        Centres (n, 3) and area vectors (n, 3), float64.

    Examples
    --------
    >>> square = np.array([[0, 0, 0], [2, 0, 0], [2, 2, 0], [0, 2, 0]])
    >>> polygon_geometry(square, np.arange(4), np.array([0, 4]))
    (array([[1., 1., 0.]]), array([[0., 0., 4.]]))
    """
    n_polygons = len(offsets) - 1
    if n_polygons == 0:
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
    n_points: int, connectivity: np.ndarray, offsets: np.ndarray, area_vectors: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return each vertex's share of the area vectors and of the areas around it.

    Every polygon gives its vertices equal parts.

    Returns
    -------
    tuple[numpy.ndarray, numpy.ndarray]
        Area vectors (n_points, 3) and areas (n_points,).
    """
    sizes = np.diff(offsets)
    shares = np.repeat(area_vectors / sizes[:, None], sizes, axis=0)
    summed = np.stack(
        [np.bincount(connectivity, shares[:, axis], n_points) for axis in range(3)], axis=1
    )
    areas = np.bincount(connectivity, np.linalg.norm(shares, axis=1), n_points)
    return summed, areas


def unit_vectors(vectors: np.ndarray) -> np.ndarray:
    """Return `vectors` (n, 3) scaled to length 1; a zero vector stays zero.

    Examples
    --------
    >>> unit_vectors(np.array([[0.0, 0.0, 4.0], [0.0, 0.0, 0.0]]))
    array([[0., 0., 1.], [0., 0., 0.]])
    """
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)


@dataclass(frozen=True)
class PolygonMesh:
    """A surface mesh with its data, in memory or memory-mapped.

    Parameters
    ----------
    source : Path or str
        Where it came from, to name in errors.
    points : numpy.ndarray
        Vertices, (P, 3).
    connectivity, offsets : numpy.ndarray
        Vertex numbers one polygon after the other, and where each polygon begins, (n + 1,).
    data : Mapping[str, Mapping[str, numpy.ndarray]]
        Arrays by place (``cell``, ``point``; ``field`` for those of neither) and name; a lazy
        array, such as one of zarr, will do.
    present : Mapping[str, Collection[str]], optional
        Names of all arrays of the source by place, where `data` has not all of them.

    Examples
    --------
    >>> corners = np.array([[0.0, 0, 0], [2, 0, 0], [2, 2, 0], [0, 2, 0]])
    >>> mesh = PolygonMesh("square", corners, np.arange(4), np.array([0, 4]))
    >>> mesh.n_cells, mesh.cell_geometry(slice(0, 1))[1], mesh.vertex_areas[1]
    (1, array([[0., 0., 4.]]), array([1., 1., 1., 1.]))
    """

    source: Path | str
    points: np.ndarray
    connectivity: np.ndarray
    offsets: np.ndarray
    data: Mapping[str, Mapping[str, np.ndarray]] = field(
        default_factory=lambda: {place: {} for place in ASSOCIATIONS}
    )
    present: Mapping[str, Collection[str]] | None = None

    @property
    def n_cells(self) -> int:
        """Number of polygons."""
        return len(self.offsets) - 1

    def array_names(self) -> Mapping[str, Collection[str]]:
        """Return the names of the arrays of the source by place, whether they were read or not."""
        return self.data if self.present is None else self.present

    def cell_geometry(self, rows: Rows = slice(None)) -> tuple[np.ndarray, np.ndarray]:
        """Return centres and area vectors of the chosen polygons; see :func:`polygon_geometry`."""
        chosen = select_polygons(self.connectivity, self.offsets, rows)
        return polygon_geometry(self.points, *chosen)

    @cached_property
    def vertex_areas(self) -> tuple[np.ndarray, np.ndarray]:
        """Area vectors and areas around each point; see :func:`vertex_area_vectors`."""
        vectors = polygon_geometry(self.points, self.connectivity, self.offsets)[1]
        return vertex_area_vectors(len(self.points), self.connectivity, self.offsets, vectors)
