"""Faces for point clouds in the plane, without those that would bridge a void."""

import numpy as np
import pyvista as pv
from jaxtyping import Float

from ..meshes.measures import cloud_triangles


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
        the spacing of the points around each face, so that clouds may be graded.

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
    faces = cloud_triangles(plane, alpha)
    if not len(faces):
        raise ValueError(f"alpha = {alpha} drops every face; choose a larger one")
    return pv.PolyData.from_regular_faces(np.pad(plane, ((0, 0), (0, 1))), faces)
