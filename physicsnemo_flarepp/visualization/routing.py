"""Latent routes: where they lie on the geometry, how queries follow the case, how many are used."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyvista as pv
from jaxtyping import Float

from .canvases import TOP_PERCENTILE, Crop, Limits, check_values, make_canvas
from .curves import colors_by_name, log_numbers
from .pages import (
    LIGHT,
    LOWEST,
    Drawing,
    Page,
    Paths,
    PictureDrawing,
    Theme,
    padded,
)
from .rendering import MeshRenderer
from .views import ALL_AROUND, Camera, make_views

# By kind of weights: the words beside its rows, and what follows them below its colour bar.
_KINDS = {"encode": ("draws from", "weight × N"), "decode": ("returns to", "share of the route")}
# Singular values below this share of the largest are noise of fp32 weights.
_FLOOR = 1e-8
_LARGEST_SHARE = 0.99
_BAND = "line: geometric mean of the heads; band: from the least to the greatest head"
_AT_THE_FLOOR = "values below 10$^{-8}$, which single precision does not resolve, are drawn there"


@dataclass(frozen=True)
class RoutingMaps(PictureDrawing):
    """The figure, with the colour limits that all panels of ``encode`` or ``decode`` share.

    `rectangles` are by (block, head, route, ``encode`` or ``decode``).
    """

    limits: dict[str, Limits]


def plot_routing(
    mesh: pv.DataSet,
    weights: Sequence[Any],
    *,
    association: str = "auto",
    cameras: Sequence[str | Camera] = ALL_AROUND,
    crop: Crop | None = None,
    title: str | None = None,
    theme: Theme = LIGHT,
    path: Paths = None,
) -> RoutingMaps:
    """Draw encode and decode weights of the heaviest routes on the geometry.

    Every head has two rows: where its routes draw from (weight of each token relative to the
    uniform weight 1/N), and where they return to (share of the route in what a token gets back).
    Columns are routes, of the greatest mass first. Encode panels share one scale, decode panels
    another; both end at the 99.5th percentile of what is shown.

    Parameters
    ----------
    mesh : pyvista.DataSet
        Mesh of the whole case.
    weights : sequence
        One entry per head, as ``inference.routing_weights`` returns it: `block`, `head`, `routes`
        and `masses` (R,), `encode` and `decode` (R, N), arrays or CPU tensors.
    association, crop
        As in :func:`plot_comparison`.
    cameras : sequence of str or Camera
        Views of a surface, one below the other; by default two that see all of it.
    title, theme, path
        As in :func:`plot_comparison`.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> even = np.full((1, 45), 1 / 45)
    >>> head = SimpleNamespace(block=0, head=2, routes=[7], masses=[1.0], encode=even, decode=even)
    >>> grid, small = pv.ImageData(dimensions=(9, 5, 1)), Theme(dpi=50, panel_width=1.0)
    >>> list(plot_routing(grid, [head], theme=small).rectangles)
    [(0, 2, 7, 'encode'), (0, 2, 7, 'decode')]
    """
    if not weights:
        raise ValueError("weights is empty; give the weights of at least one head")
    n_tokens = np.shape(weights[0].encode)[-1]
    maps = _checked_maps(weights, n_tokens)
    canvas = make_canvas(mesh, n_tokens, association=association, crop=crop)
    seen = {k: [v[canvas.shown] for key, v in maps.items() if key[3] == k] for k in _KINDS}
    tops = {k: float(np.percentile(np.concatenate(v), TOP_PERCENTILE)) for k, v in seen.items()}
    limits = {kind: (0.0, top or 1.0) for kind, top in tops.items()}
    views = make_views(canvas, theme, None if canvas.flat else cameras, crop, tallest=1.0)
    width, height = max(v.size[0] for v in views), sum(v.size[1] for v in views)
    n_columns = max(len(entry.routes) for entry in weights)
    row_height = max(height, LOWEST * theme.dpi)
    page = Page(theme, [width] * n_columns, [row_height] * 2 * len(weights), path)
    with page, MeshRenderer(canvas, views, theme) as renderer:
        for key, values in maps.items():
            block, head, route, kind = key
            number = next(i for i, w in enumerate(weights) if (w.block, w.head) == (block, head))
            column = list(weights[number].routes).index(route)
            renderer.paint(values, theme.weights(), limits[kind])
            parts = [padded(renderer.picture(v), width, v.size[1], theme) for v in views]
            row = 2 * number + list(_KINDS).index(kind)
            axis = page.picture(key, np.concatenate(parts), row, column)
            if kind == "encode":
                mass = float(weights[number].masses[column])
                page.head(axis, f"route {route + 1}", f", mass {mass:.1%}", size=0.0)
            if column == 0:
                page.beside(axis, f"block {block + 1}, head {head + 1}\n{_KINDS[kind][0]}")
        for row, column in np.ndindex(page.axes.shape):
            if column >= len(weights[row // 2].routes):
                page.blank(row, column)
        page.title(title)
        # Side by side where there are columns for both, else the last one is above the first.
        half = n_columns // 2
        left, right = (slice(half), slice(half, None)) if half else (slice(None), slice(None))
        for kind, columns in (("decode", right), ("encode", left)):
            label, shown = ": ".join(_KINDS[kind]), page.axes[-1, columns]
            page.bar(shown, theme.weights(), limits[kind], label, seen[kind])
    return RoutingMaps(*page.drawn, page.rectangles, limits)


def _checked_maps(weights: Sequence[Any], n_tokens: int) -> dict[tuple, np.ndarray]:
    """Return relative encode and decode weights by (block, head, route, kind)."""
    maps = {}
    for entry in weights:
        for kind, factor in (("encode", n_tokens), ("decode", 1)):
            rows = np.asarray(getattr(entry, kind))
            if rows.ndim != 2 or len(rows) != len(entry.routes):
                raise ValueError(
                    f"{kind} weights of block {entry.block}, head {entry.head} have shape "
                    f"{rows.shape}, expected ({len(entry.routes)}, {n_tokens}): routes x tokens"
                )
            for route, row in zip(np.asarray(entry.routes).tolist(), rows, strict=True):
                name = f"{kind} weights of block {entry.block}, head {entry.head}, route {route}"
                key = (entry.block, entry.head, route, kind)
                maps[key] = factor * check_values(name, row, n_tokens)
    return maps


@dataclass(frozen=True)
class QueryChange(Drawing):
    """The figure and the relative change of every query, (blocks, heads, M)."""

    change: Float[np.ndarray, "blocks heads M"]


def plot_query_change(
    first: Float[np.ndarray, "blocks heads M D"],
    second: Float[np.ndarray, "blocks heads M D"],
    *,
    cases: tuple[str, str],
    title: str | None = None,
    theme: Theme = LIGHT,
    path: Paths = None,
) -> QueryChange:
    """Draw how much the routing queries of a model differ between two cases.

    Fixed queries (FLARE) do not change at all; synthesised ones (FLARE++) show which heads and
    routes follow the input. Within a head routes are in order of their change.

    The queries of two `cases`, named for the figure, are as ``inference.routing_queries`` returns
    them; other arguments are as in :func:`plot_comparison`.

    Examples
    --------
    >>> queries = np.ones((2, 3, 8, 4))
    >>> drawn = plot_query_change(queries, 3 * queries, cases=("a", "b"), theme=Theme(dpi=50))
    >>> drawn.change.shape, float(drawn.change.max())
    ((2, 3, 8), 1.0)
    """
    first, second = np.asarray(first, float), np.asarray(second, float)
    if first.shape != second.shape or first.ndim != 4:
        raise ValueError(
            f"queries have shapes {first.shape} and {second.shape}, expected (blocks, heads, M, D) "
            "twice, from one model"
        )
    # How far each query moves, relative to its mean length.
    length = (np.linalg.norm(first, axis=-1) + np.linalg.norm(second, axis=-1)) / 2
    change = np.linalg.norm(first - second, axis=-1)
    change = np.divide(change, length, out=np.zeros_like(change), where=length > 0)
    n_blocks, n_heads, n_routes = change.shape
    rows = np.sort(change.reshape(-1, n_routes), axis=1)[:, ::-1]
    top = float(change.max()) or 1.0
    height = (0.13 * len(rows) + 0.3) * theme.dpi
    with Page(theme, [3.6 * theme.dpi], [height], path) as page:
        axis = page.axes[0, 0]
        look = {"aspect": "auto", "interpolation": "nearest", "cmap": theme.weights()}
        extent = (0.5, n_routes + 0.5, len(rows) - 0.5, -0.5)
        axis.imshow(rows, vmin=0, vmax=top, extent=extent, **look)
        labels = [f"block {block + 1}" for block in range(n_blocks)]
        axis.set_yticks(np.arange(n_blocks) * n_heads + (n_heads - 1) / 2, labels)
        axis.tick_params(axis="y", length=0)
        for edge in range(1, n_blocks):
            axis.axhline(edge * n_heads - 0.5, color=theme.background, linewidth=1.5)
        axis.set_xlabel("routes of each head (a row each), most changed first")
        none = "" if change.any() else ": none, they are fixed"
        page.title(title)
        page.head(axis, f"change of the queries from {cases[0]} to {cases[1]}", none)
        page.bar([axis], theme.weights(), (0.0, top), "relative change")
    return QueryChange(*page.drawn, change)


@dataclass(frozen=True)
class Spectrum(Drawing):
    """The figure and, per model and block, how many routes carry the matrix.

    The effective rank is the least number of singular values that hold 99 % of the squared sum,
    its mean over heads.
    """

    effective_rank: dict[str, tuple[float, ...]]


def effective_rank(values: Float[np.ndarray, "... M"]) -> np.ndarray:
    """Return how many of the largest singular values hold 99 % of the sum of squares."""
    energy = np.cumsum(np.asarray(values, float) ** 2, axis=-1)
    return (energy < _LARGEST_SHARE * energy[..., -1:] * (1 - 1e-12)).sum(-1) + 1


def plot_spectrum(
    spectra: Mapping[str, Float[np.ndarray, "blocks heads M"]],
    *,
    title: str | None = None,
    theme: Theme = LIGHT,
    path: Paths = None,
) -> Spectrum:
    """Draw singular values of routing matrices over their number relative to M, block by block.

    Lines are the geometric mean over heads, bands reach from the least to the greatest head;
    values below 1e-8 of the largest are drawn at 1e-8. The figure says so.

    `spectra` has an array (blocks, heads, M) for each model, the largest first, as
    ``inference.routing_spectra`` returns it; other arguments are as in :func:`plot_comparison`.

    Examples
    --------
    >>> values = np.geomspace(1, 1e-2, 16) * np.ones((2, 4, 1))
    >>> plot_spectrum({"FLARE++": values}, theme=Theme(dpi=50)).effective_rank
    {'FLARE++': (8.0, 8.0)}
    """
    if not spectra:
        raise ValueError("spectra is empty; give at least one array by the name of its model")
    spectra = {name: np.asarray(values, float) for name, values in spectra.items()}
    for name, values in spectra.items():
        sound = values.ndim == 3 and values.size and np.isfinite(values).all() and values.min() >= 0
        ordered = sound and (np.diff(values, axis=-1) <= 1e-9 * values[..., :1]).all()
        if not ordered or not (values[..., 0] > 0).all():
            raise ValueError(
                f"the spectrum of {name!r} has shape {values.shape}; expected (blocks, heads, M) "
                "finite singular values, the largest first and positive"
            )
    n_blocks = max(len(values) for values in spectra.values())
    shares = {name: values / values[..., :1] for name, values in spectra.items()}
    lowest = min(float(values.min()) for values in shares.values())
    ranks = {n: tuple(effective_rank(v).mean(-1).tolist()) for n, v in spectra.items()}
    width = 2.2 if n_blocks > 1 else 3.8
    with Page(theme, [width * theme.dpi] * n_blocks, [2.2 * theme.dpi], path) as page:
        axes, colors = page.axes[0], colors_by_name(spectra, theme)
        for name, values in shares.items():
            n_routes = values.shape[-1]
            place = np.arange(1, n_routes + 1) / n_routes
            for axis, heads in zip(axes, np.maximum(values, _FLOOR), strict=False):
                axis.plot(place, np.exp(np.log(heads).mean(0)), color=colors[name])
                low, high = heads.min(0), heads.max(0)
                axis.fill_between(place, low, high, color=colors[name], alpha=0.2, linewidth=0)
        for block, axis in enumerate(axes):
            axis.set_xlim(0, 1)
            axis.set_ylim(min(0.5, max(lowest, _FLOOR)) * 0.7, 1.5)
            log_numbers(axis)
            axis.set_title(f"block {block + 1}")
            axis.set_xlabel("index of the value / M")
        axes[0].set_ylabel("singular value / largest")
        key = {f"{n}, M = {v.shape[-1]}": {"color": colors[n]} for n, v in spectra.items()}
        page.key(key, title)
        page.note(f"{_BAND}\n{_AT_THE_FLOOR}" if lowest < _FLOOR else _BAND)
    return Spectrum(*page.drawn, ranks)
