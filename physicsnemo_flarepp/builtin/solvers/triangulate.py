"""Triangulations of the unit square around a void with a prescribed number of nodes.

The nodes on the square and on the void are equally spaced; the others are moved by Lloyd's
algorithm to the centroids of their Voronoi cells, whose dual is a mesh of nearly equilateral
triangles. All lengths follow from the number of nodes.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.spatial import Delaunay, cKDTree

from . import Unsolvable

Radius = Callable[[np.ndarray], np.ndarray]

CENTRE = np.array([0.5, 0.5])

_LLOYD_STEPS = 15
_ATTEMPTS = 20
_WORST_QUALITY = 0.3


@dataclass(frozen=True)
class CellMesh:
    """Triangles of a unit cell with a void, whose edge is at ``radius(angle)`` from its centre."""

    nodes: np.ndarray  # (N, 2)
    triangles: np.ndarray  # (T, 3), counter-clockwise
    radius: Radius


def void_curve(radius: Radius, angle: np.ndarray) -> np.ndarray:
    """Points of the void's edge at the given angles, (*angle.shape, 2)."""
    direction = np.stack([np.cos(angle), np.sin(angle)], axis=-1)
    return CENTRE + radius(angle)[..., None] * direction


def _outside_void(radius: Radius, points: np.ndarray, margin: float = 0.0) -> np.ndarray:
    """Whether points lie outside the void by at least ``margin`` along their ray."""
    offset = points - CENTRE
    angle = np.arctan2(offset[:, 1], offset[:, 0])
    return np.linalg.norm(offset, axis=1) > radius(angle) + margin


def triangle_areas(nodes: np.ndarray, triangles: np.ndarray) -> np.ndarray:
    """Signed areas of triangles, positive if counter-clockwise, (T,)."""
    a, b, c = (nodes[triangles[:, k]] for k in range(3))
    return 0.5 * np.linalg.det(np.stack([b - a, c - a], axis=-1))


def _edge_length(n_nodes: int, area: float, perimeter: float) -> float:
    """Edge of equilateral triangles that fill the area: 2 N - B, with B nodes on its edges."""
    edge = np.sqrt(area / n_nodes)
    for _ in range(50):
        edge = np.sqrt(4 * area / (np.sqrt(3) * (2 * n_nodes - perimeter / edge)))
    return edge


def _void_nodes(radius: Radius, count: int, phase: float) -> np.ndarray:
    """Nodes at equal arc lengths around the void, the first at a fraction of a step."""
    angle = np.linspace(0, 2 * np.pi, 2001)
    curve = void_curve(radius, angle)
    length = np.concatenate([[0], np.cumsum(np.linalg.norm(np.diff(curve, axis=0), axis=1))])
    wanted = (np.arange(count) + phase) / count * length[-1]
    return void_curve(radius, np.interp(wanted, length, angle))


def _first_inner_nodes(
    radius: Radius, count: int, edge: float, rng: np.random.Generator
) -> np.ndarray:
    """Exactly ``count`` points, off the edges, of a lattice at a random angle and offset."""
    for spacing in edge * np.arange(1.1, 0.5, -0.005):
        number = np.arange(-np.ceil(1.5 / spacing), np.ceil(1.5 / spacing) + 1)
        i, j = np.meshgrid(number, number)
        points = np.stack([i + 0.5 * j, np.sqrt(0.75) * j], axis=-1).reshape(-1, 2) * spacing
        turn, shift = rng.uniform(0, np.pi / 3), rng.uniform(0, spacing, 2)
        rotation = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
        points = CENTRE + points @ rotation.T + shift
        clear = np.all((points > 0.6 * edge) & (points < 1 - 0.6 * edge), axis=1)
        points = points[clear & _outside_void(radius, points, 0.6 * edge)]
        if len(points) >= count:
            return points[rng.permutation(len(points))[:count]]
    raise Unsolvable(f"no lattice has {count} points inside the cell at edge length {edge:.3g}")


def _relax(fixed: np.ndarray, inner: np.ndarray, radius: Radius, edge: float) -> np.ndarray:
    """Inner nodes after Lloyd's algorithm on a fine sample of the domain."""
    count = int(np.ceil(4 / edge))
    axis = (np.arange(count) + 0.5) / count
    sample = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    sample = sample[_outside_void(radius, sample)]
    n, total = len(inner), len(inner) + len(fixed)
    for _ in range(_LLOYD_STEPS):
        owner = cKDTree(np.concatenate([inner, fixed])).query(sample)[1]
        weight = np.bincount(owner, minlength=total)[:n, None]
        sums = np.stack([np.bincount(owner, axis, total)[:n] for axis in sample.T], axis=-1)
        inner = np.where(weight > 0, sums / np.maximum(weight, 1), inner)
    return inner


def triangulate_cell(radius: Radius, n_nodes: int, rng: np.random.Generator) -> CellMesh:
    """A mesh of the unit square around a void with exactly ``n_nodes`` nodes, placed by ``rng``."""
    outline = void_curve(radius, np.linspace(0, 2 * np.pi, 2000, endpoint=False))
    following = np.roll(outline, -1, axis=0)
    void_area = 0.5 * np.sum(outline[:, 0] * following[:, 1] - outline[:, 1] * following[:, 0])
    void_length = np.sum(np.linalg.norm(following - outline, axis=1))
    edge = _edge_length(n_nodes, 1 - void_area, 4 + void_length)
    n_void, per_side = round(void_length / edge), round(1 / edge)
    # Nodes on the edge of the unit square, counter-clockwise from the origin.
    step, zero, one = np.arange(per_side) / per_side, np.zeros(per_side), np.ones(per_side)
    sides = [(step, zero), (one, step), (1 - step, one), (zero, 1 - step)]
    square = np.concatenate([np.stack(side, axis=-1) for side in sides])
    for _ in range(_ATTEMPTS):
        fixed = np.concatenate([_void_nodes(radius, n_void, rng.uniform()), square])
        inner = _first_inner_nodes(radius, n_nodes - len(fixed), edge, rng)
        nodes = np.concatenate([fixed, _relax(fixed, inner, radius, edge)])
        triangles = Delaunay(nodes).simplices
        triangles = triangles[_outside_void(radius, nodes[triangles].mean(axis=1))]
        flipped = triangle_areas(nodes, triangles) < 0
        triangles[flipped] = triangles[flipped][:, [0, 2, 1]]
        follows_edges = len(triangles) == 2 * n_nodes - len(fixed)
        # Area over sum of squared edges, 1 for an equilateral triangle.
        corners = nodes[triangles]
        squares = np.sum((corners - np.roll(corners, 1, axis=1)) ** 2, axis=(1, 2))
        quality = 4 * np.sqrt(3) * triangle_areas(nodes, triangles) / squares
        if follows_edges and quality.min() > _WORST_QUALITY:
            return CellMesh(nodes, triangles, radius)
    raise Unsolvable(
        f"no mesh of {n_nodes} nodes follows this void in {_ATTEMPTS} attempts; use a smoother "
        "void or more nodes"
    )
