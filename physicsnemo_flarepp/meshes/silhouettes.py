"""The frontal area of a surface: the area of its shadow along the flow."""

import numpy as np

from .polygons import PolygonMesh, fan_triangles

_BLOCK = 2**18  # triangles cut at a time: bounds the memory of large surfaces


def frontal_area(mesh: PolygonMesh, axis: np.ndarray, *, lines: int = 2000) -> float:
    """Return the area of the silhouette of `mesh` seen along `axis`.

    Parts that hide each other count once. The shadow is cut by equidistant parallel lines; on
    each line the union of the intervals is exact, across the lines the midpoint rule is used, so
    the error is that of `lines` strips (below 1e-4 of the area for a sphere at the default).

    Parameters
    ----------
    mesh : PolygonMesh
        Closed or open, in any orientation.
    axis : numpy.ndarray
        Direction of view, (3,).
    lines : int, optional
        Number of lines across the larger side of the shadow.

    Examples
    --------
    >>> square = np.array([[0, 0, 0], [0, 2, 0], [0, 2, 3], [0, 0, 3]], dtype=float)
    >>> points = np.concatenate([square, square + [5, 0, 0]])  # one behind the other
    >>> mesh = PolygonMesh("two squares", points, np.arange(8), np.array([0, 4, 8]))
    >>> round(frontal_area(mesh, np.array([1.0, 0.0, 0.0])), 6)
    6.0
    """
    shadow = mesh.points.astype(np.float64) @ _plane(axis)
    low, high = shadow.min(axis=0), shadow.max(axis=0)
    across = int(np.argmax(high - low))  # lines follow one another along the longer side
    shadow = (shadow - low)[:, [1 - across, across]]
    width, height = shadow.max(axis=0)
    if width == 0 or height == 0:
        return 0.0
    strip = height / lines
    triangles = fan_triangles(mesh.connectivity, mesh.offsets)
    parts = [
        _intervals(shadow[triangles[first : first + _BLOCK]], strip, lines)
        for first in range(0, len(triangles), _BLOCK)
    ]
    line, start, stop = (np.concatenate(part) for part in zip(*parts, strict=True))
    return float(_covered_length(line, start, stop, width) * strip)


def _plane(axis: np.ndarray) -> np.ndarray:
    """Return two orthonormal vectors across `axis` as columns, (3, 2)."""
    return np.linalg.svd(np.asarray(axis, dtype=np.float64)[None])[2][1:].T


def _intervals(
    triangles: np.ndarray, strip: float, lines: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cut triangles (T, 3, 2) by the lines v = (k + 1/2) strip; return k, start and stop in u."""
    low, high = triangles[..., 1].min(axis=1), triangles[..., 1].max(axis=1)
    first = np.ceil(low / strip - 0.5).astype(np.int64)
    last = np.minimum(np.floor(high / strip - 0.5).astype(np.int64), lines - 1)
    counts = np.maximum(last - first + 1, 0)
    owner = np.repeat(np.arange(len(triangles)), counts)
    line = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts - first, counts)
    v = (line + 0.5) * strip
    start, stop = np.full(len(owner), np.inf), np.full(len(owner), -np.inf)
    for edge in range(3):
        a, b = triangles[owner, edge], triangles[owner, (edge + 1) % 3]
        rise = b[:, 1] - a[:, 1]
        part = np.divide(v - a[:, 1], rise, out=np.full_like(v, np.nan), where=rise != 0)
        u = a[:, 0] + part * (b[:, 0] - a[:, 0])
        crosses = (part >= 0) & (part <= 1)
        start = np.where(crosses, np.minimum(start, u), start)
        stop = np.where(crosses, np.maximum(stop, u), stop)
    found = stop > start
    return line[found], start[found], stop[found]


def _covered_length(
    line: np.ndarray, start: np.ndarray, stop: np.ndarray, width: float
) -> np.ndarray:
    """Return the summed lengths of the unions of the intervals of each line."""
    # Laid end to end with gaps, the lines become one axis and one running maximum serves all.
    offset = line * (2 * width)
    order = np.argsort(start + offset, kind="stable")
    start, stop = (start + offset)[order], (stop + offset)[order]
    reached = np.concatenate([[-np.inf], np.maximum.accumulate(stop)[:-1]])
    return np.maximum(stop - np.maximum(start, reached), 0).sum()
