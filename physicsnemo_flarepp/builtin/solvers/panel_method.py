"""Potential flow around a closed body by constant-strength source panels (Hess and Smith).

Every triangle carries a uniform source density; the densities are such that no flow crosses the
centroid of any triangle. Planes of symmetry, a ground among them, are images of the panels, so
they are exact and cost no unknowns. The influence of nearby panels is the exact integral, that of
distant ones a point source at the centroid (:data:`NEAR` says where the two meet).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import lu_factor, lu_solve

# Distance, in longest edges of the panel, beyond which a panel acts as a point source.
NEAR = 4.0
# Influences are computed for this many points at a time, to stay in the processor's cache.
ROWS = 32


@dataclass(frozen=True)
class Panels:
    """Flat triangles (N, 3, 3): panel, corner, coordinate; counter-clockwise seen from the flow."""

    corners: np.ndarray

    @cached_property
    def centroids(self) -> np.ndarray:
        """Collocation points, shape (N, 3)."""
        return self.corners.mean(axis=1)

    @cached_property
    def area_vectors(self) -> np.ndarray:
        """Outward normals times areas, shape (N, 3)."""
        a, b, c = self.corners.swapaxes(0, 1)
        return np.cross(b - a, c - a) / 2

    @cached_property
    def areas(self) -> np.ndarray:
        """Areas, shape (N,)."""
        return np.linalg.norm(self.area_vectors, axis=1)

    @cached_property
    def normals(self) -> np.ndarray:
        """Outward unit normals, shape (N, 3)."""
        return self.area_vectors / self.areas[:, None]

    @cached_property
    def longest_edges(self) -> np.ndarray:
        """Length of the longest edge of each triangle, shape (N,)."""
        edges = np.roll(self.corners, -1, axis=1) - self.corners
        return np.linalg.norm(edges, axis=2).max(axis=1)


def with_images(panels: Panels, symmetry_y: bool, ground: float | None) -> list[Panels]:
    """Return the panels and their mirror images at y = 0 and at the height z of the ground."""
    images = [panels.corners]
    if symmetry_y:
        images += [corners * [1, -1, 1] for corners in images]
    if ground is not None:
        images += [corners * [1, 1, -1] + [0, 0, 2 * ground] for corners in images]
    return [Panels(corners) for corners in images]


def panel_velocity(points: np.ndarray, corners: np.ndarray) -> np.ndarray:
    """Velocity at each point (P, 3) due to a unit source density on its own triangle, exactly.

    The component along the normal is the solid angle of the triangle over 4 pi, positive on the
    side the normal points to; the component in its plane is a sum over the edges of the edge's
    outward normal times the integral of 1 / r along it. Points must not lie on an edge.
    """
    arms = corners - points[:, None]
    lengths = np.sqrt(np.einsum("pcx,pcx->pc", arms, arms))
    edges = corners[:, [1, 2, 0]] - corners
    normals = np.cross(edges[:, 0], edges[:, 1])
    normals /= np.linalg.norm(normals, axis=1, keepdims=True)

    # Solid angle after van Oosterom and Strackee.
    triple = np.einsum("px,px->p", arms[:, 0], np.cross(arms[:, 1], arms[:, 2]))
    products = np.einsum("pcx,pcx->pc", arms, arms[:, [1, 2, 0]])
    below = lengths.prod(axis=1) + np.einsum("pc,pc->p", products, lengths[:, [2, 0, 1]])
    solid_angle = -2 * np.arctan2(triple, below)

    edge_lengths = np.sqrt(np.einsum("pcx,pcx->pc", edges, edges))
    sums = lengths + lengths[:, [1, 2, 0]]
    logs = np.log((sums + edge_lengths) / (sums - edge_lengths)) / edge_lengths
    # Edge normals times edge lengths are edge x normal, hence the division above.
    in_plane = np.cross(np.einsum("pc,pcx->px", logs, edges), normals)
    return (in_plane + solid_angle[:, None] * normals) / (4 * np.pi)


class Influence:
    """Velocities that panels of unit density induce at a set of points (P, 3).

    ``far`` = area / (4 pi r^3) of far pairs, (P, N), times the vector from source to point is their
    velocity; it is zero for near pairs, which are a list of (point, panel, velocity).
    """

    def __init__(self, points: np.ndarray, panels: Panels, near: float) -> None:
        self.points, self.sources = points, panels.centroids
        squared = points @ (-2 * self.sources.T)
        squared += np.einsum("px,px->p", points, points)[:, None]
        squared += np.einsum("nx,nx->n", self.sources, self.sources)
        pairs = self.near_point, self.near_panel = np.nonzero(
            squared < (near * panels.longest_edges) ** 2
        )
        squared[pairs] = np.inf
        self.far = np.sqrt(squared)
        self.far *= squared
        np.divide(panels.areas / (4 * np.pi), self.far, out=self.far)
        self.near_velocity = panel_velocity(
            points[self.near_point], panels.corners[self.near_panel]
        )

    def normal_matrix(self, normals: np.ndarray) -> np.ndarray:
        """Normal component at each point of the velocity from each panel, shape (P, N)."""
        matrix = np.einsum("px,px->p", normals, self.points)[:, None] - normals @ self.sources.T
        matrix *= self.far
        near = np.einsum("px,px->p", self.near_velocity, normals[self.near_point])
        matrix[self.near_point, self.near_panel] += near
        return matrix

    def velocity(self, density: np.ndarray) -> np.ndarray:
        """Velocity at the points for given source densities (N,), shape (P, 3)."""
        strength = self.far @ np.column_stack([density, density[:, None] * self.sources])
        velocity = self.points * strength[:, :1] - strength[:, 1:]
        weighted = self.near_velocity * density[self.near_panel, None]
        for axis in range(3):
            velocity[:, axis] += np.bincount(
                self.near_point, weighted[:, axis], minlength=len(self.points)
            )
        return velocity


def row_blocks(count: int) -> Iterator[slice]:
    """Slices of at most ``ROWS`` that cover ``count`` points."""
    return (slice(start, start + ROWS) for start in range(0, count, ROWS))


@dataclass(frozen=True)
class PanelFlow:
    """Solved potential flow of unit speed along x; ``images`` include the panels themselves."""

    panels: Panels
    images: list[Panels]
    density: np.ndarray
    surface_velocity: np.ndarray

    @property
    def pressure_coefficient(self) -> np.ndarray:
        """Cp = 1 - |u|^2 at the centroids, shape (N,)."""
        return 1 - np.einsum("nx,nx->n", self.surface_velocity, self.surface_velocity)

    def velocity(self, points: np.ndarray) -> np.ndarray:
        """Velocity at points in the flow, off the surface, shape (P, 3)."""
        total = np.tile([1.0, 0.0, 0.0], (len(points), 1))
        for rows in row_blocks(len(points)):
            for image in self.images:
                total[rows] += Influence(points[rows], image, NEAR).velocity(self.density)
        return total


def set_own_velocity(part: Influence, panels: Panels, first: int) -> None:
    """Put the points ``first``, ``first + 1``, ... on the outer side of their own panels.

    There a panel's own velocity along its normal is one half; rounding would leave the sign open.
    """
    own = part.near_point + first == part.near_panel
    normals = panels.normals[part.near_panel[own]]
    along = np.einsum("nx,nx->n", part.near_velocity[own], normals)
    part.near_velocity[own] += (0.5 - along)[:, None] * normals


def solve_flow(
    panels: Panels, *, symmetry_y: bool = False, ground: float | None = None, near: float = NEAR
) -> PanelFlow:
    """Potential flow of unit speed along x around a closed surface of panels.

    With ``symmetry_y`` they are its half with y > 0; no flow crosses the height ``ground``.
    """
    images = with_images(panels, symmetry_y, ground)
    centroids, normals = panels.centroids, panels.normals
    matrix = np.empty((len(centroids), len(centroids)))
    blocks = []
    for rows in row_blocks(len(centroids)):
        parts = [Influence(centroids[rows], image, near) for image in images]
        set_own_velocity(parts[0], panels, rows.start)
        matrix[rows] = sum(part.normal_matrix(normals[rows]) for part in parts)
        blocks.append(parts)
    density = lu_solve(lu_factor(matrix, overwrite_a=True, check_finite=False), -normals[:, 0])
    induced = [sum(part.velocity(density) for part in parts) for parts in blocks]
    return PanelFlow(panels, images, density, np.concatenate(induced) + [1, 0, 0])
