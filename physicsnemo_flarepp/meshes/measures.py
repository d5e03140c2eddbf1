"""What area a point stands for: its share of the cells around it, on grids and in clouds."""

import numpy as np
from jaxtyping import Float, Int
from scipy.spatial import Delaunay, KDTree, QhullError

from .polygons import PolygonMesh

# A triangle across a void has a circumcircle far larger than the spacing of its corners, which is
# the distance to the third neighbour: the first two may be close by chance.
_LARGEST_CIRCUMRADIUS = 1.5
_NEIGHBOUR = 3


def grid_areas(points: Float[np.ndarray, "N d"], shape: tuple[int, ...]) -> Float[np.ndarray, " N"]:
    """Return the area of each point of a curvilinear grid: a quarter of every cell around it.

    Parameters
    ----------
    points : numpy.ndarray
        (N, 2) or (N, 3), in row-major order of the grid.
    shape : tuple[int, int]
        Rows and columns of points.

    Examples
    --------
    >>> x, y = np.meshgrid([0.0, 1.0, 3.0], [0.0, 1.0], indexing="ij")
    >>> grid_areas(np.stack([x.ravel(), y.ravel()], -1), (3, 2))
    array([0.25, 0.25, 0.75, 0.75, 0.5 , 0.5 ])
    """
    if len(shape) != 2 or np.prod(shape) != len(points):
        raise ValueError(
            f"areas need a grid of rows and columns, got {shape}, {len(points)} points"
        )
    numbers = np.arange(len(points)).reshape(shape)
    corners = (numbers[:-1, :-1], numbers[1:, :-1], numbers[1:, 1:], numbers[:-1, 1:])
    return _vertex_areas(points, np.stack([corner.reshape(-1) for corner in corners], -1))


def cloud_areas(points: Float[np.ndarray, "N 2"]) -> Float[np.ndarray, " N"]:
    """Return the area of each point of a planar cloud: a third of every triangle around it.

    The triangles are those of :func:`cloud_triangles`. On the nodes of a mesh of triangles it is
    the lumped mass of linear elements.

    Parameters
    ----------
    points : numpy.ndarray
        (N, 2).

    Examples
    --------
    >>> cloud_areas(np.array([[0.0, 0.0], [2.0, 0.0], [2.0, 2.0], [0.0, 2.0]])).sum()
    np.float64(4.0)
    """
    return _vertex_areas(np.asarray(points, dtype=np.float64), cloud_triangles(points))


def cloud_triangles(
    points: Float[np.ndarray, "N 2"], alpha: float | None = None
) -> Int[np.ndarray, "n 3"]:
    """Return the triangles of a planar cloud, as rows of its points, for weights and figures alike.

    Delaunay's without those that span a void or a bay, told by a circumcircle much larger than the
    distances of their corners to other points.

    Parameters
    ----------
    points : numpy.ndarray
        (N, 2).
    alpha : float, optional
        Largest circumradius of a triangle, instead of that comparison.

    Examples
    --------
    >>> len(cloud_triangles(np.array([[0.0, 0.0], [2.0, 0.0], [2.0, 2.0], [0.0, 2.0]])))
    2
    """
    points = np.asarray(points, dtype=np.float64)
    if points.ndim != 2 or points.shape[1] != 2:
        raise ValueError(
            f"a cloud of shape {points.shape} has no areas: points must lie in a plane, (N, 2). "
            "Name a stored array of weights instead"
        )
    bad = np.flatnonzero(~np.isfinite(points).all(axis=1))
    if len(bad):
        raise ValueError(f"point {bad[0]} is {points[bad[0]]}; areas need finite coordinates")
    try:
        triangles = Delaunay(points).simplices
    except (QhullError, ValueError) as error:
        raise ValueError(
            f"{len(points)} points have no triangles between them: they are too few or on a line"
        ) from error
    sides = points[triangles[:, [1, 2, 0]]] - points[triangles]
    lengths = np.linalg.norm(sides, axis=2)
    doubled = np.abs(sides[:, 0, 0] * sides[:, 1, 1] - sides[:, 0, 1] * sides[:, 1, 0])
    if alpha is None:
        neighbour = min(_NEIGHBOUR, len(points) - 1)
        spacing = KDTree(points).query(points, k=[neighbour + 1])[0][:, 0]
        largest = _LARGEST_CIRCUMRADIUS * spacing[triangles].max(axis=1)
    else:
        largest = alpha
    # R = abc / 4A, compared without dividing: flat triangles on the hull have A = 0.
    return triangles[lengths.prod(axis=1) <= 2 * doubled * largest]


def _vertex_areas(points: Float[np.ndarray, "N d"], cells: np.ndarray) -> Float[np.ndarray, " N"]:
    """Return each point's share of polygons with one number of corners, (n, corners)."""
    in_space = np.zeros((len(points), 3))
    in_space[:, : points.shape[1]] = points
    offsets = np.arange(0, cells.size + 1, cells.shape[1])
    return PolygonMesh("grid or cloud", in_space, cells.reshape(-1), offsets).vertex_areas[1]
