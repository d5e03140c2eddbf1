"""What points stand for; where a surface faces, its frontal area, and distances to a body."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy.spatial import Delaunay, KDTree, QhullError

from .polygons import CellMesh, PolygonMesh, fan_triangles

# What PhysicsNeMo's pipes note at drawn cells, and from 2.3 on at points: the area or volume that
# one stands for, and up to 2.2 the factor from its own to that. Never fields.
EFFECTIVE_MEASURE = "_effective_measure"
MEASURE_WEIGHTS = "_measure_weights"
MEASURE_NAMES = (EFFECTIVE_MEASURE, MEASURE_WEIGHTS)

# A triangle across a void has a circumcircle far larger than the spacing of its corners, which is
# the distance to the third neighbour: the first two may be close by chance.
_LARGEST_CIRCUMRADIUS = 1.5
_NEIGHBOUR = 3
_BLOCK = 2**18  # triangles cut at a time: bounds the memory of large surfaces
# Below this share of area^(3/2) the enclosed volume does not tell inside from outside.
_FLAT = 1e-5


def stored_measure(mesh: PolygonMesh | CellMesh, place: str) -> Float[np.ndarray, " N"] | None:
    """Return what cells or points stand for by the notes of PhysicsNeMo's pipes, or None."""

    def noted(place: str, name: str) -> np.ndarray | None:
        stored = mesh.data.get(place, {}).get(name)
        return None if stored is None else np.asarray(stored[:], dtype=np.float64).reshape(-1)

    if (found := noted(place, EFFECTIVE_MEASURE)) is not None:
        return found
    cells = noted("cell", EFFECTIVE_MEASURE)
    if cells is None:
        factors = noted("cell", MEASURE_WEIGHTS)
        is_surface = isinstance(mesh, PolygonMesh)
        sizes = np.linalg.norm(mesh.cell_geometry()[1], axis=1) if is_surface else mesh.sizes
        if factors is None or sizes is None:
            return None
        cells = factors * sizes
    return cells if place == "cell" else mesh.shared_by_points(cells)


def grid_areas(points: Float[np.ndarray, "N d"], shape: tuple[int, ...]) -> Float[np.ndarray, " N"]:
    """Return each point's quarter of the cells around it; points are row by row, as in `shape`."""
    if len(shape) != 2 or np.prod(shape) != len(points):
        raise ValueError(
            f"areas need a grid of rows and columns, got {shape}, {len(points)} points"
        )
    numbers = np.arange(len(points)).reshape(shape)
    corners = (numbers[:-1, :-1], numbers[1:, :-1], numbers[1:, 1:], numbers[:-1, 1:])
    return _vertex_areas(points, np.stack([corner.reshape(-1) for corner in corners], -1))


def cloud_areas(points: Float[np.ndarray, "N 2"]) -> Float[np.ndarray, " N"]:
    """Return the area of each point of a planar cloud: a third of every triangle around it."""
    return _vertex_areas(np.asarray(points, dtype=np.float64), cloud_triangles(points))


def cloud_triangles(
    points: Float[np.ndarray, "N 2"], alpha: float | None = None
) -> Int[np.ndarray, "n 3"]:
    """Return the triangles of a planar cloud, as rows of its points.

    Delaunay's without those across a void or a bay, whose circumcircle is much larger than the
    distances of their corners to other points, or than `alpha`.
    """
    points = np.asarray(points, dtype=np.float64)
    if points.ndim != 2 or points.shape[1] != 2:
        raise ValueError(
            f"a cloud of shape {points.shape} has no areas, expected (N, 2); name stored weights"
        )
    bad = np.flatnonzero(~np.isfinite(points).all(axis=1))
    if len(bad):
        raise ValueError(f"point {bad[0]} is {points[bad[0]]}; areas need finite coordinates")
    try:
        triangles = Delaunay(points).simplices
    except (QhullError, ValueError) as error:
        raise ValueError(
            f"{len(points)} points have no triangles: they are too few or on a line"
        ) from error
    sides = points[triangles[:, [1, 2, 0]]] - points[triangles]
    lengths = np.linalg.norm(sides, axis=2)
    doubled = np.abs(sides[:, 0, 0] * sides[:, 1, 1] - sides[:, 0, 1] * sides[:, 1, 0])
    if alpha is None:
        neighbour = min(_NEIGHBOUR, len(points) - 1)
        spacing = KDTree(points).query(points, k=[neighbour + 1])[0][:, 0]
        alpha = _LARGEST_CIRCUMRADIUS * spacing[triangles].max(axis=1)
    # R = abc / 4A, compared without dividing: flat triangles on the hull have A = 0.
    return triangles[lengths.prod(axis=1) <= 2 * doubled * alpha]


def _vertex_areas(points: Float[np.ndarray, "N d"], cells: np.ndarray) -> Float[np.ndarray, " N"]:
    """Return each point's share of polygons with one number of corners, (n, corners)."""
    in_space = np.zeros((len(points), 3))
    in_space[:, : points.shape[1]] = points
    offsets = np.arange(0, cells.size + 1, cells.shape[1])
    return PolygonMesh("grid or cloud", in_space, cells.reshape(-1), offsets).vertex_areas[1]


@dataclass(frozen=True)
class Silhouette:
    """The shadow of a surface, cut by equidistant lines: the edges between which it is dark.

    `plane` (3, 2) spans the shadow, along and across the lines. Interval i lies on line `line[i]`,
    from the edge `starts[i]` to `stops[i]`, pairs of vertex numbers.
    """

    plane: Float[np.ndarray, "3 2"]
    area: float
    line: Int[np.ndarray, " n"]
    starts: Int[np.ndarray, "n 2"]
    stops: Int[np.ndarray, "n 2"]


def facing(centres: np.ndarray, vectors: np.ndarray) -> str | None:
    """Return whether cells face ``outward`` or ``inward``, by the sign of the enclosed volume.

    None if that is too small. It is taken about the middle, so that small openings do not matter.
    """
    areas = np.linalg.norm(vectors, axis=1)
    total = areas.sum()
    if not total > 0:
        return None
    middle = areas @ centres / total
    volume = np.einsum("ij,ij->", centres - middle, vectors) / 3
    if abs(volume) < _FLAT * total**1.5:
        return None
    return "outward" if volume > 0 else "inward"


def clashing_edges(mesh: PolygonMesh) -> int:
    """Return how many directed edges appear more than once: neighbours face opposite sides."""
    keys = np.sort(_directed_edges(mesh)[0])
    return int(np.count_nonzero(keys[1:] == keys[:-1]))


def open_edges(mesh: PolygonMesh) -> int:
    """Return how many edges have a cell on one side only."""
    return int(np.count_nonzero(~np.isin(*_directed_edges(mesh))))


def _directed_edges(mesh: PolygonMesh) -> tuple[np.ndarray, np.ndarray]:
    """Return a number for each edge of each cell in its direction, and in the opposite one."""
    following = np.arange(len(mesh.connectivity)) + 1
    following[mesh.offsets[1:] - 1] = mesh.offsets[:-1]
    start, stop = mesh.connectivity.astype(np.int64), mesh.connectivity[following]
    proper, n = start != stop, len(mesh.points)
    return (start * n + stop)[proper], (stop.astype(np.int64) * n + start)[proper]


def frontal_area(mesh: PolygonMesh, axis: np.ndarray, *, lines: int = 2000) -> float:
    """Return the area of the silhouette seen along `axis`, to 1e-4 of it for a sphere."""
    found = silhouette(mesh, axis, lines)
    return 0.0 if found is None else found.area


def silhouette(mesh: PolygonMesh, axis: np.ndarray, lines: int) -> Silhouette | None:
    """Return the shadow that :func:`frontal_area` measures, None if it has no extent."""
    # Two orthonormal vectors across the axis span the plane of the shadow.
    plane = np.linalg.svd(np.asarray(axis, dtype=np.float64)[None])[2][1:].T
    shadow = mesh.points.astype(np.float64) @ plane
    low, high = shadow.min(axis=0), shadow.max(axis=0)
    across = int(np.argmax(high - low))  # lines follow one another along the longer side
    order = [1 - across, across]
    shadow = (shadow - low)[:, order]
    width, height = shadow.max(axis=0)
    if width == 0 or height == 0:
        return None
    strip = height / lines
    triangles = fan_triangles(mesh.connectivity, mesh.offsets)
    parts = []
    for first in range(0, len(triangles), _BLOCK):
        block = triangles[first : first + _BLOCK]
        line, start, stop, owner, edges = _intervals(shadow[block], strip, lines)
        parts.append((line, start, stop, owner + first, edges))
    line, start, stop, owner, edges = (np.concatenate(part) for part in zip(*parts, strict=True))
    # Laid end to end with gaps, the lines become one axis and one running maximum serves all.
    offset = line * (2 * width)
    order_of_starts = np.argsort(start + offset, kind="stable")
    line, owner, edges = (values[order_of_starts] for values in (line, owner, edges))
    start, stop = ((values + offset)[order_of_starts] for values in (start, stop))
    reached = np.concatenate([[-np.inf], np.maximum.accumulate(stop)[:-1]])
    area = float(np.maximum(stop - np.maximum(start, reached), 0).sum() * strip)
    # The union begins where nothing reaches, and ends with the interval that reached farthest.
    begins = np.flatnonzero(start > reached)
    farthest = np.maximum.accumulate(np.where(stop > reached, np.arange(len(stop)), 0))
    ends = farthest[np.append(begins[1:], len(stop)) - 1]
    bounds = [
        triangles[owner[chosen, None], (edges[chosen, side, None] + np.arange(2)) % 3]
        for side, chosen in enumerate((begins, ends))
    ]
    return Silhouette(plane[:, order], area, line[begins], *bounds)


def _intervals(
    triangles: Float[np.ndarray, "T 3 2"], strip: float, lines: int
) -> tuple[np.ndarray, ...]:
    """Cut triangles by the lines v = (k + 1/2) strip.

    Returns k, start and stop in u, the triangle, and the edges of start and stop, (n, 2).
    """
    low, high = triangles[..., 1].min(axis=1), triangles[..., 1].max(axis=1)
    first = np.ceil(low / strip - 0.5).astype(np.int64)
    last = np.minimum(np.floor(high / strip - 0.5).astype(np.int64), lines - 1)
    counts = np.maximum(last - first + 1, 0)
    owner = np.repeat(np.arange(len(triangles)), counts)
    line = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts - first, counts)
    v = (line + 0.5) * strip
    start, stop = np.full(len(owner), np.inf), np.full(len(owner), -np.inf)
    edges = np.zeros((len(owner), 2), dtype=np.int8)
    for edge in range(3):
        a, b = triangles[owner, edge], triangles[owner, (edge + 1) % 3]
        rise = b[:, 1] - a[:, 1]
        part = np.divide(v - a[:, 1], rise, out=np.full_like(v, np.nan), where=rise != 0)
        u = a[:, 0] + part * (b[:, 0] - a[:, 0])
        crosses = (part >= 0) & (part <= 1)
        edges[crosses & (u < start), 0] = edge
        edges[crosses & (u > stop), 1] = edge
        start = np.where(crosses, np.minimum(start, u), start)
        stop = np.where(crosses, np.maximum(stop, u), stop)
    found = stop > start
    return line[found], start[found], stop[found], owner[found], edges[found]


def distance_to_body(
    points: Float[np.ndarray, "N 3"], body: PolygonMesh
) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, "N 3"]]:
    """Return signed distances to a closed surface, negative inside, and unit vectors towards it.

    By PhysicsNeMo's ``signed_distance_field``, in single precision; on the surface the vector is 0.
    """
    # The functions of PhysicsNeMo bring Warp, which takes seconds to import.
    import torch
    from physicsnemo.nn.functional import signed_distance_field

    triangles = fan_triangles(body.connectivity, body.offsets)
    if len(triangles) == 0:
        raise ValueError(f"{body.source} has no faces; give the surface of the body")
    corners = np.asarray(body.points, dtype=np.float64)[triangles].swapaxes(0, 1)
    if np.einsum("tx,tx->", corners[0], np.cross(corners[1], corners[2])) < 0:
        triangles = triangles[:, ::-1]  # it faces inwards, and would be outside of itself
    tensors = (
        torch.from_numpy(np.ascontiguousarray(body.points, dtype=np.float32)),
        torch.from_numpy(np.ascontiguousarray(triangles, dtype=np.int32)),
        torch.from_numpy(np.ascontiguousarray(points, dtype=np.float32)),
    )
    # The winding number also tells inside from outside where there are small gaps.
    distance, nearest, _ = signed_distance_field(*tensors, use_sign_winding_number=True)
    offset = nearest - tensors[2]
    length = offset.norm(dim=1, keepdim=True)
    direction = torch.where(length > 0, offset / length.clamp_min(1e-30), 0.0)
    return distance.numpy(), direction.numpy()
