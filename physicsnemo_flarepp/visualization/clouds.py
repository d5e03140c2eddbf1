"""Faces for point clouds in the plane, without those that would bridge a void."""

import numpy as np
import pyvista as pv
from jaxtyping import Float
from scipy.spatial import Delaunay, QhullError, cKDTree

# A face whose circumradius, over the spacing of the points around it, is this many times the
# typical one belongs to no data.
_VOID_FACTOR = 2.5
_NEIGHBOURS = 4


def triangulate_cloud(
    points: Float[np.ndarray, "N d"], *, alpha: float | None = None
) -> pv.PolyData:
    r"""Triangulate a planar point cloud and leave its voids open (an alpha shape).

    Parameters
    ----------
    points : numpy.ndarray
        Shape :math:`(N, 2)`, or :math:`(N, 3)` in a plane of constant z.
    alpha : float, optional
        Faces with a circumradius beyond it are dropped. By default circumradii are compared with
        the spacing of the points around each face, so that clouds may be graded: faces beyond 2.5
        times the median ratio are dropped.

    Returns
    -------
    pyvista.PolyData
        Triangles on the points, in their order.

    Examples
    --------
    A ring of two circles keeps its hole:

    >>> angle = np.linspace(0, 2 * np.pi, 60, endpoint=False)
    >>> circle = np.stack([np.cos(angle), np.sin(angle)], -1)
    >>> ring = triangulate_cloud(np.concatenate([circle, 1.1 * circle]))
    >>> bool(abs(ring.area - np.pi * (1.1**2 - 1)) < 0.01)
    True
    """
    points = np.asarray(points, float)
    if points.ndim != 2 or points.shape[1] not in (2, 3) or len(points) < 3:
        raise ValueError(
            f"points has shape {points.shape}, expected (N, 2) or (N, 3) with at least 3 points"
        )
    if points.shape[1] == 3 and np.ptp(points[:, 2]) > 1e-6 * np.ptp(points[:, :2]):
        raise ValueError(
            "points do not lie in a plane of constant z; only planar clouds can be triangulated"
        )
    plane = points[:, :2]
    try:
        faces = Delaunay(plane).simplices
    except QhullError as error:
        raise ValueError(
            f"the {len(points)} points lie on a line or coincide, and have no triangulation"
        ) from error
    radius = _circumradius(plane[faces])
    if alpha is None:
        ratio = radius / _spacing(plane)[faces].max(1)
        kept = faces[ratio <= _VOID_FACTOR * np.median(ratio)]
    else:
        kept = faces[radius <= alpha]
    if not len(kept):
        raise ValueError(
            f"alpha = {alpha} drops every face; the median circumradius is {np.median(radius):.3g}"
        )
    return pv.PolyData.from_regular_faces(_spatial(plane), kept)


def _spacing(plane: Float[np.ndarray, "N 2"]) -> Float[np.ndarray, " N"]:
    """Return the mean distance of each point to its nearest neighbours."""
    distances, _ = cKDTree(plane).query(plane, k=min(_NEIGHBOURS + 1, len(plane)))
    return np.maximum(distances[:, 1:].mean(1), np.finfo(float).tiny)  # points may coincide


def _circumradius(corners: Float[np.ndarray, "n 3 2"]) -> Float[np.ndarray, " n"]:
    sides = np.linalg.norm(corners - np.roll(corners, 1, axis=1), axis=2)
    first, second = corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]
    twice_area = np.abs(first[:, 0] * second[:, 1] - first[:, 1] * second[:, 0])
    with np.errstate(divide="ignore"):
        return np.where(twice_area > 0, sides.prod(1) / (2 * twice_area), np.inf)


def _spatial(plane: Float[np.ndarray, "N 2"]) -> Float[np.ndarray, "N 3"]:
    return np.concatenate([plane, np.zeros((len(plane), 1))], axis=1)
