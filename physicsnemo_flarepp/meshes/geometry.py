"""Geometry of a surface in torch: what tokens know of it, differentiable by its vertices.

The formulas are those of :mod:`~physicsnemo_flarepp.meshes.polygons`, which data is read with and
which needs no torch. PhysicsNeMo's ``Mesh`` gives points and triangles; its own centroids and areas
agree, but it has no polygons, caches what it computed, and weighs the normals of points by angles.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from .measures import silhouette
from .polygons import ASSOCIATIONS, PolygonMesh, check_vertices


@dataclass(frozen=True)
class SurfaceTensors:
    """Positions (N, 3), area vectors (N, 3) and areas (N,) of the cells or points of a surface."""

    positions: Float[Tensor, "N 3"]
    vectors: Float[Tensor, "N 3"]
    areas: Float[Tensor, " N"]

    @property
    def normals(self) -> Float[Tensor, "N 3"]:
        """Unit vectors along the area vectors; 0, with the derivative 0, where these are 0."""
        lengths = torch.linalg.vector_norm(self.vectors, dim=-1, keepdim=True)
        is_known = lengths > 0
        return torch.where(is_known, self.vectors / lengths.where(is_known, 1.0), 0.0)


def surface_tensors(
    points: Float[Tensor, "P 3"],
    connectivity: Int[Tensor, "..."] | Int[np.ndarray, "..."],
    offsets: Int[Tensor, " n1"] | Int[np.ndarray, " n1"] | None = None,
    association: str = "cell",
) -> SurfaceTensors:
    """Return positions, area vectors and areas of cells or points, differentiably.

    Those of a cell are its mean vertex, and the vector along its normal (right-hand rule) whose
    length is its area. A point has an equal share of the vectors and areas of the cells around it.

    Examples
    --------
    >>> corners = torch.tensor([[0.0, 0, 0], [2, 0, 0], [2, 2, 0], [0, 2, 0]], requires_grad=True)
    >>> square = surface_tensors(corners, torch.arange(4)[None])
    >>> square.areas.tolist(), square.positions.tolist(), square.normals.tolist()
    ([4.0], [[1.0, 1.0, 0.0]], [[0.0, 0.0, 1.0]])
    >>> square.areas.sum().backward()
    >>> corners.grad[2].tolist()  # pulled out along the diagonal
    [1.0, 1.0, 0.0]
    """
    if association not in ASSOCIATIONS:
        raise ValueError(f"association is {association!r}, expected one of {ASSOCIATIONS}")
    device = points.device
    corners = torch.as_tensor(connectivity, device=device).long()
    if offsets is None:
        sizes = torch.full((len(corners),), corners.shape[1], device=device)
    else:
        sizes = torch.as_tensor(offsets, device=device).long().diff()
    corners = corners.reshape(-1)
    check_vertices(corners.cpu().numpy(), len(points))
    if bool((sizes < 3).any()):
        raise ValueError(f"{int((sizes < 3).sum())} polygons have fewer than 3 vertices")
    ends = sizes.cumsum(0)
    following = torch.arange(len(corners), device=device) + 1
    following[ends - 1] = ends - sizes
    owner = torch.repeat_interleave(torch.arange(len(sizes), device=device), sizes)
    vertices = points[corners]

    def add_up(values: Tensor) -> Tensor:
        return values.new_zeros((len(sizes), 3)).index_add(0, owner, values)

    centres = add_up(vertices) / sizes[:, None]
    around = vertices - centres[owner]
    vectors = 0.5 * add_up(torch.linalg.cross(around, around[following]))
    areas = torch.linalg.vector_norm(vectors, dim=-1)
    if association == "cell":
        return SurfaceTensors(centres, vectors, areas)
    shares, parts = (vectors / sizes[:, None])[owner], (areas / sizes)[owner]
    return SurfaceTensors(
        points,
        torch.zeros_like(points).index_add(0, corners, shares),
        points.new_zeros(len(points)).index_add(0, corners, parts),
    )


def frontal_area(
    points: Float[Tensor, "P 3"], mesh: PolygonMesh, axis: np.ndarray, *, lines: int = 2000
) -> Float[Tensor, ""]:
    """Return the area of the silhouette along `axis`, differentiable by the vertices `points`.

    The value is that of :func:`.measures.frontal_area`, the derivative that of the edges that bound
    the shadow.
    """
    values = points.detach().cpu().numpy()
    moved = PolygonMesh(mesh.source, values, mesh.connectivity, mesh.offsets)
    found = silhouette(moved, axis, lines)
    if found is None:
        return 0.0 * points.sum()
    plane = torch.as_tensor(found.plane, dtype=points.dtype, device=points.device)
    shadow = points @ plane
    low, high = shadow.amin(0), shadow.amax(0)
    strip = (high[1] - low[1]) / lines
    shadow = shadow - low
    height = torch.as_tensor(found.line + 0.5).to(points) * strip

    def cross(edges: np.ndarray) -> Tensor:
        a, b = shadow[torch.as_tensor(edges, device=points.device)].unbind(1)
        return a[:, 0] + (height - a[:, 1]) / (b[:, 1] - a[:, 1]) * (b[:, 0] - a[:, 0])

    return (cross(found.stops) - cross(found.starts)).sum() * strip
