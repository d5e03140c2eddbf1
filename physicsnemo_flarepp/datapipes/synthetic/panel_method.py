"""Potential flow around a closed body by constant-strength source panels (Hess and Smith).

Every triangle carries a uniform source density; the densities are such that no flow crosses the
centroid of any triangle. Planes of symmetry, a ground among them, are images of the panels, so
they are exact and cost no unknowns. The influence of nearby panels is the exact integral, that of
distant ones a point source at the centroid (:data:`NEAR` says where the two meet).
"""

from dataclasses import dataclass

import numpy as np
from scipy.linalg import lu_factor, lu_solve

# Distance, in longest edges of the panel, beyond which a panel acts as a point source.
NEAR = 5.0
# Near pairs are integrated in blocks of this many, to stay in the processor's cache.
BLOCK = 8192


@dataclass(frozen=True)
class Panels:
    """Flat triangles and what the method needs of them.

    Parameters
    ----------
    corners : numpy.ndarray
        Corners of the triangles, counter-clockwise seen from the flow, shape (N, 3, 3): panel,
        corner, coordinate.

    Examples
    --------
    >>> panels = Panels(np.array([[[0.0, 0, 0], [1, 0, 0], [0, 1, 0]]]))
    >>> panels.normals.tolist(), panels.areas.tolist()
    ([[0.0, 0.0, 1.0]], [0.5])
    """

    corners: np.ndarray

    @property
    def centroids(self) -> np.ndarray:
        """Collocation points, shape (N, 3)."""
        return self.corners.mean(axis=1)

    @property
    def area_vectors(self) -> np.ndarray:
        """Outward normals times areas, shape (N, 3)."""
        a, b, c = self.corners.swapaxes(0, 1)
        return np.cross(b - a, c - a) / 2

    @property
    def areas(self) -> np.ndarray:
        """Areas, shape (N,)."""
        return np.linalg.norm(self.area_vectors, axis=1)

    @property
    def normals(self) -> np.ndarray:
        """Outward unit normals, shape (N, 3)."""
        return self.area_vectors / self.areas[:, None]

    @property
    def longest_edges(self) -> np.ndarray:
        """Length of the longest edge of each triangle, shape (N,)."""
        edges = np.roll(self.corners, -1, axis=1) - self.corners
        return np.linalg.norm(edges, axis=2).max(axis=1)


def mirror_images(symmetry_y: bool, ground: float | None) -> list[tuple[np.ndarray, np.ndarray]]:
    """Maps ``x -> scale * x + shift`` from the panels to themselves and to each of their images.

    Parameters
    ----------
    symmetry_y : bool
        The panels are one half of a body that is symmetric about y = 0.
    ground : float, optional
        Height z of a plane that no flow crosses.

    Examples
    --------
    >>> len(mirror_images(False, None)), len(mirror_images(True, -0.3))
    (1, 4)
    """
    images = [(np.ones(3), np.zeros(3))]
    if symmetry_y:
        flip = np.array([1.0, -1.0, 1.0])
        images += [(scale * flip, shift) for scale, shift in images]
    if ground is not None:
        flip, rise = np.array([1.0, 1.0, -1.0]), np.array([0.0, 0.0, 2 * ground])
        images += [(scale * flip, shift + rise) for scale, shift in images]
    return images


def panel_velocity(points: np.ndarray, corners: np.ndarray) -> np.ndarray:
    """Velocity at each point due to a unit source density on its own triangle, exactly.

    The component along the normal is the solid angle of the triangle over 4 pi, positive on the
    side the normal points to; the component in its plane is a sum over the edges of the edge's
    outward normal times the integral of 1 / r along it.

    Parameters
    ----------
    points : numpy.ndarray
        Shape (P, 3); not on an edge.
    corners : numpy.ndarray
        Shape (P, 3, 3).

    Returns
    -------
    numpy.ndarray
        Velocities, shape (P, 3).
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


@dataclass(frozen=True)
class Influence:
    """Velocities that one image of all panels induces at a set of points, per unit density.

    Far pairs are kept as ``far`` = area / (4 pi r^3), shape (P, N), zero for near pairs; the
    velocity of such a pair is ``far`` times the vector from the source to the point. Near pairs
    are a list of (point, panel, velocity).
    """

    points: np.ndarray
    sources: np.ndarray
    far: np.ndarray
    near_point: np.ndarray
    near_panel: np.ndarray
    near_velocity: np.ndarray

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


def influence(points: np.ndarray, panels: Panels, image: tuple, near: float) -> Influence:
    """Influence at ``points`` (P, 3) of the panels as seen in one mirror image."""
    scale, shift = image
    sources = panels.centroids * scale + shift
    squared = points @ (-2 * sources.T)
    squared += np.einsum("px,px->p", points, points)[:, None]
    squared += np.einsum("nx,nx->n", sources, sources)
    near_point, near_panel = np.nonzero(squared < (near * panels.longest_edges) ** 2)
    squared[near_point, near_panel] = np.inf
    far = np.sqrt(squared)
    far *= squared
    np.divide(panels.areas / (4 * np.pi), far, out=far)

    corners = panels.corners * scale + shift
    near_velocity = np.empty((len(near_point), 3))
    for start in range(0, len(near_point), BLOCK):
        block = slice(start, start + BLOCK)
        near_velocity[block] = panel_velocity(points[near_point[block]], corners[near_panel[block]])
    return Influence(points, sources, far, near_point, near_panel, near_velocity)


@dataclass(frozen=True)
class PanelFlow:
    """Solved potential flow of unit speed along x."""

    panels: Panels
    images: list
    density: np.ndarray
    surface_velocity: np.ndarray
    near: float

    @property
    def pressure_coefficient(self) -> np.ndarray:
        """Cp = 1 - |u|^2 at the centroids, shape (N,)."""
        return 1 - np.einsum("nx,nx->n", self.surface_velocity, self.surface_velocity)

    def velocity(self, points: np.ndarray) -> np.ndarray:
        """Velocity at points in the flow, off the surface, shape (P, 3)."""
        total = np.tile([1.0, 0.0, 0.0], (len(points), 1))
        for image in self.images:
            total += influence(points, self.panels, image, self.near).velocity(self.density)
        return total


def solve_flow(
    panels: Panels, *, symmetry_y: bool = False, ground: float | None = None, near: float = NEAR
) -> PanelFlow:
    """Potential flow of unit speed along x around a body made of panels.

    Parameters
    ----------
    panels : Panels
        The closed surface, or its half with y > 0 if ``symmetry_y``.
    symmetry_y : bool
        Mirror the panels at y = 0.
    ground : float, optional
        Height z of the ground, which becomes a plane of symmetry.
    near : float
        Distance, in longest edges, up to which panels are integrated exactly; ``inf`` for all.

    Returns
    -------
    PanelFlow
        Densities (N,) and velocities at the centroids (N, 3).

    Examples
    --------
    >>> corners = np.array([[1, 0, 0], [0, 1, 0], [-1, 0, 0], [0, -1, 0], [0, 0, 1], [0, 0, -1.0]])
    >>> sides = [[i, (i + 1) % 4, 4] for i in range(4)] + [[(i + 1) % 4, i, 5] for i in range(4)]
    >>> flow = solve_flow(Panels(corners[sides]))
    >>> np.abs((flow.surface_velocity * flow.panels.normals).sum(axis=1)).max() < 1e-12
    True
    """
    images = mirror_images(symmetry_y, ground)
    centroids, normals = panels.centroids, panels.normals
    influences = [influence(centroids, panels, image, near) for image in images]
    # In the plane of a panel the sign of its own solid angle is left to rounding: the flow is on
    # the outer side, where a panel's own velocity is one half along its normal.
    own = influences[0].near_point == influences[0].near_panel
    velocity = influences[0].near_velocity
    along = np.einsum("nx,nx->n", velocity[own], normals)[:, None]
    velocity[own] += (0.5 - along) * normals

    matrix = influences[0].normal_matrix(normals)
    for other in influences[1:]:
        matrix += other.normal_matrix(normals)
    density = lu_solve(lu_factor(matrix, overwrite_a=True, check_finite=False), -normals[:, 0])
    surface_velocity = sum(part.velocity(density) for part in influences)
    surface_velocity[:, 0] += 1
    return PanelFlow(panels, images, density, surface_velocity, near)
