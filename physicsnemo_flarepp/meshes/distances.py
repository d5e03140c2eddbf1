"""Signed distance and direction from points in a domain to the body in it."""

import numpy as np
import torch
from jaxtyping import Float

from .polygons import PolygonMesh, fan_triangles


def distance_to_body(
    points: Float[np.ndarray, "N 3"], body: PolygonMesh
) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, "N 3"]]:
    """Return the signed distance of points to a closed surface, and the direction to it.

    By PhysicsNeMo's ``signed_distance_field``, in single precision.

    Parameters
    ----------
    points : numpy.ndarray
        (N, 3).
    body : PolygonMesh
        A closed surface; polygons are cut into triangles as fans.

    Returns
    -------
    tuple[numpy.ndarray, numpy.ndarray]
        Distances (N,), negative inside, and unit vectors (N, 3) to the nearest point of the
        surface, 0 on it.

    Examples
    --------
    >>> import pyvista as pv
    >>> from physicsnemo_flarepp.meshes import polygon_mesh
    >>> cube = polygon_mesh(pv.Cube(), "cube")
    >>> distance, direction = distance_to_body(np.array([[2.0, 0, 0], [0.25, 0, 0]]), cube)
    >>> distance.tolist(), direction.tolist()
    ([1.5, -0.25], [[-1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    """
    # The functions of PhysicsNeMo bring Warp, which takes seconds to import.
    from physicsnemo.nn.functional import signed_distance_field

    triangles = fan_triangles(body.connectivity, body.offsets)
    if len(triangles) == 0:
        raise ValueError(
            f"{body.source} has no faces to measure a distance to; give the surface of the body"
        )
    corners = np.asarray(body.points, dtype=np.float64)[triangles].swapaxes(0, 1)
    if np.einsum("tx,tx->", corners[0], np.cross(corners[1], corners[2])) < 0:
        triangles = triangles[:, ::-1]  # it faces inwards, and would be outside of itself
    tensors = (
        torch.from_numpy(np.ascontiguousarray(body.points, dtype=np.float32)),
        torch.from_numpy(np.ascontiguousarray(triangles, dtype=np.int32)),
        torch.from_numpy(np.ascontiguousarray(points, dtype=np.float32)),
    )
    # The winding number tells inside from outside where small gaps are, too.
    distance, nearest, _ = signed_distance_field(*tensors, use_sign_winding_number=True)
    offset = nearest - tensors[2]
    length = offset.norm(dim=1, keepdim=True)
    direction = torch.where(length > 0, offset / length.clamp_min(1e-30), 0.0)
    return distance.numpy(), direction.numpy()
