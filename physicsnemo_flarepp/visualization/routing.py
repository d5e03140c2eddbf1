"""Where latent routes draw from and return to, and how routing queries follow the case."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import pyvista as pv
from jaxtyping import Float, Int, UInt8

from .cameras import Camera
from .scales import Limits, check_values
from .sheets import BAR_STRIP, Paths, Sheet, check_paths, styled
from .surfaces import Canvas, Crop, make_canvas
from .theme import LIGHT, Theme
from .views import View, make_views, open_renderer, pixels_per_unit

GAP = 0.08
MARGIN = 0.10
LINE = 0.21
_PERCENTILE = 99.5


class HeadWeights(Protocol):
    """Weights of some routes of one head, as ``inference.routing_weights`` gives them."""

    block: int
    head: int
    routes: Int[np.ndarray, " R"]
    masses: Float[np.ndarray, " R"]
    encode: Float[np.ndarray, "R N"]
    decode: Float[np.ndarray, "R N"]


@dataclass(frozen=True)
class RoutingMaps:
    """The figure and its numbers.

    Parameters
    ----------
    image : numpy.ndarray
        The page, (height, width, 3).
    rectangles : dict
        (left, top, width, height) of each (block, head, route, ``encode`` or ``decode``).
    limits : dict
        Colour limits of ``encode`` and ``decode``, shared by all their panels.
    paths : tuple of Path
        Files written.
    """

    image: UInt8[np.ndarray, "height width 3"]
    rectangles: dict[tuple[int, int, int, str], tuple[int, int, int, int]]
    limits: dict[str, Limits]
    paths: tuple[Path, ...]


def plot_routing(
    mesh: pv.DataSet,
    weights: Sequence[HeadWeights],
    *,
    association: str = "auto",
    camera: str | Camera = "three-quarter",
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
    weights : sequence of HeadWeights
        One entry per head, such as ``inference.routing_weights`` gives; arrays or CPU tensors.
    association, crop
        As in :func:`plot_comparison`.
    camera : str or Camera
        View of a surface.
    title, theme, path
        As in :func:`plot_comparison`.
    """
    paths = check_paths(path)
    if not weights:
        raise ValueError("weights is empty; give the weights of at least one head")
    n_tokens = np.shape(weights[0].encode)[-1]
    maps = _checked_maps(weights, n_tokens)
    canvas = make_canvas(mesh, n_tokens, association=association, crop=crop)
    limits = {
        kind: (0.0, _top([m for key, m in maps.items() if key[3] == kind], canvas.shown))
        for kind in ("encode", "decode")
    }
    views = make_views(canvas, None if canvas.flat else [camera], crop)
    pictures = _render(canvas, maps, limits, views[0], theme)
    with styled(theme):
        sheet, rectangles = _lay_out(pictures, weights, limits, title, theme)
        image, paths = sheet.finish(paths)
    return RoutingMaps(image, rectangles, limits, paths)


def _checked_maps(weights: Sequence[HeadWeights], n_tokens: int) -> dict[tuple, np.ndarray]:
    """Give relative encode and decode weights by (block, head, route, kind)."""
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


def _top(maps: list[np.ndarray], shown: np.ndarray) -> float:
    return float(np.percentile(np.concatenate([m[shown] for m in maps]), _PERCENTILE)) or 1.0


def _render(
    canvas: Canvas,
    maps: dict[tuple, np.ndarray],
    limits: dict[str, Limits],
    view: View,
    theme: Theme,
) -> dict[tuple, np.ndarray]:
    per_unit = pixels_per_unit([view], theme, theme.panel_width * theme.dpi)
    size = view.pixels(per_unit)
    pictures = {}
    with open_renderer(canvas, [view], per_unit, theme) as renderer:
        for key, values in maps.items():
            renderer.paint(
                canvas.values(values), canvas.association, theme.weights(), limits[key[3]]
            )
            pictures[key] = renderer.picture(view.camera, view.window, size)
    return pictures


def _lay_out(
    pictures: dict[tuple, np.ndarray],
    weights: Sequence[HeadWeights],
    limits: dict[str, Limits],
    title: str | None,
    theme: Theme,
) -> tuple[Sheet, dict]:
    inch = theme.dpi
    gap, line, margin = (round(x * inch) for x in (GAP, LINE, MARGIN))
    height, width = next(iter(pictures.values())).shape[:2]
    n_columns = max(len(entry.routes) for entry in weights)
    left = margin + 2 * line
    top = margin + (line if title else 0)
    row = height + gap
    head = line + 2 * row + gap
    strip = round((BAR_STRIP + GAP) * inch)
    # Two scales side by side need room for their labels.
    page = max(left + n_columns * (width + gap) - gap + margin, round(4.6 * inch))
    sheet = Sheet(page, top + len(weights) * head + strip + margin, theme)
    if title:
        sheet.text(title, left, top - line / 2, room=page - left, align="left")
    rectangles = {}
    for number, entry in enumerate(weights):
        start = top + number * head
        label = f"block {entry.block + 1}, head {entry.head + 1}"
        middle = start + line + row
        sheet.text(label, margin + line / 3, middle, room=2 * row, vertical=True)
        for place, kind in enumerate(("encode", "decode")):
            y = start + line + place * row
            words = {"encode": "draws from", "decode": "returns to"}[kind]
            sheet.text(words, left - line / 2, y + height / 2, room=height, vertical=True)
            for column, route in enumerate(np.asarray(entry.routes).tolist()):
                key = (entry.block, entry.head, route, kind)
                x = left + column * (width + gap)
                sheet.image(pictures[key], x, y)
                rectangles[key] = (x, y, width, height)
                if place == 0:
                    mass = float(entry.masses[column])
                    words = f"route {route + 1}, mass {mass:.1%}"
                    sheet.text(words, x + width / 2, start + line / 2, room=width)
    bottom = top + len(weights) * head
    half = (page - left - margin) / 2
    for place, (kind, label) in enumerate(
        (("encode", "draws from: weight × N"), ("decode", "returns to: share of the route"))
    ):
        begin = left + place * half + 0.07 * half
        above = limits[kind]
        sheet.bar(theme.weights(), above, label, begin, bottom, 0.84 * half, beyond=(False, True))
    return sheet, rectangles


@dataclass(frozen=True)
class QueryChange:
    """The figure and the changes it shows.

    Parameters
    ----------
    image : numpy.ndarray
        The page, (height, width, 3).
    change : numpy.ndarray
        Relative change of every query, (blocks, heads, M).
    paths : tuple of Path
        Files written.
    """

    image: UInt8[np.ndarray, "height width 3"]
    change: Float[np.ndarray, "blocks heads M"]
    paths: tuple[Path, ...]


def query_change(
    first: Float[np.ndarray, "blocks heads M D"], second: Float[np.ndarray, "blocks heads M D"]
) -> Float[np.ndarray, "blocks heads M"]:
    """Give how far each query moves between two cases, relative to its mean length.

    Examples
    --------
    >>> one = np.ones((1, 1, 2, 3))
    >>> query_change(one, one * [[[[1], [3]]]]).tolist()
    [[[0.0, 1.0]]]
    """
    first, second = np.asarray(first, float), np.asarray(second, float)
    if first.shape != second.shape or first.ndim != 4:
        raise ValueError(
            f"queries have shapes {first.shape} and {second.shape}, expected (blocks, heads, M, D) "
            "twice, from one model"
        )
    length = (np.linalg.norm(first, axis=-1) + np.linalg.norm(second, axis=-1)) / 2
    distance = np.linalg.norm(first - second, axis=-1)
    return np.divide(distance, length, out=np.zeros_like(distance), where=length > 0)


def plot_query_change(
    first: Float[np.ndarray, "blocks heads M D"],
    second: Float[np.ndarray, "blocks heads M D"],
    *,
    cases: tuple[str, str],
    theme: Theme = LIGHT,
    path: Paths = None,
) -> QueryChange:
    """Draw how much the routing queries of a model differ between two cases.

    Fixed queries (FLARE) do not change at all; synthesised ones (FLARE++) show which heads and
    routes follow the input. Within a head routes are in order of their change.

    Parameters
    ----------
    first, second : numpy.ndarray
        Queries of both cases, such as ``inference.routing_queries`` gives.
    cases : tuple of str
        Names of the cases.
    theme, path
        As in :func:`plot_comparison`.
    """
    paths = check_paths(path)
    change = query_change(first, second)
    n_blocks, n_heads, n_routes = change.shape
    top = float(change.max()) or 1.0
    with styled(theme):
        inch = theme.dpi
        left, above, width = 0.75 * inch, 0.35 * inch, 3.6 * inch
        height = round((0.13 * n_blocks * n_heads + 0.3) * inch)
        below = 0.6 * inch
        page = round(left + width + 0.2 * inch), round(above + height + below + BAR_STRIP * inch)
        sheet = Sheet(*page, theme)
        axis = sheet.axes(left, above, width, height)
        rows = np.sort(change.reshape(-1, n_routes), axis=1)[:, ::-1]
        axis.imshow(
            rows,
            aspect="auto",
            cmap=theme.weights(),
            vmin=0,
            vmax=top,
            interpolation="nearest",
            extent=(0.5, n_routes + 0.5, len(rows) - 0.5, -0.5),
        )
        axis.set_yticks(np.arange(n_blocks) * n_heads + (n_heads - 1) / 2)
        axis.set_yticklabels([f"block {b + 1}" for b in range(n_blocks)])
        axis.tick_params(axis="y", length=0)
        for edge in range(1, n_blocks):
            axis.axhline(edge * n_heads - 0.5, color=theme.background, linewidth=1.5)
        axis.set_xlabel("routes of each head (a row each), most changed first")
        sheet.text(
            f"change of the queries from {cases[0]} to {cases[1]}",
            page[0] / 2,
            above / 2,
            room=0.95 * page[0],
            size=theme.font_size + 1,
        )
        label = "relative change"
        sheet.bar(theme.weights(), (0.0, top), label, left, above + height + below, width)
        image, paths = sheet.finish(paths)
    return QueryChange(image, change, paths)
