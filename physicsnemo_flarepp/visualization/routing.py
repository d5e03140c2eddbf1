"""Where latent routes draw from and return to on the geometry."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import pyvista as pv
from jaxtyping import Float, Int, UInt8

from .cameras import ALL_AROUND, Camera
from .canvases import Canvas, Crop, make_canvas
from .files import Paths, check_paths
from .scales import Limits, check_values, outside
from .sheets import BAR_STRIP, Sheet, styled
from .theme import LIGHT, Theme
from .views import View, make_views, open_renderer, pixels_per_unit

GAP = 0.08
MARGIN = 0.10
LINE = 0.21
_PERCENTILE = 99.5
_LOWEST = 0.66


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
    weights : sequence of HeadWeights
        One entry per head, such as ``inference.routing_weights`` gives; arrays or CPU tensors.
    association, crop
        As in :func:`plot_comparison`.
    cameras : sequence of str or Camera
        Views of a surface, one below the other; by default two that see all of it.
    title, theme, path
        As in :func:`plot_comparison`.
    """
    paths = check_paths(path)
    if not weights:
        raise ValueError("weights is empty; give the weights of at least one head")
    n_tokens = np.shape(weights[0].encode)[-1]
    maps = _checked_maps(weights, n_tokens)
    canvas = make_canvas(mesh, n_tokens, association=association, crop=crop)
    limits, beyond = {}, {}
    for kind in ("encode", "decode"):
        seen = [values[canvas.shown] for key, values in maps.items() if key[3] == kind]
        limits[kind] = (0.0, _top(seen))
        beyond[kind] = outside(limits[kind], *seen)
    views = make_views(canvas, None if canvas.flat else cameras, crop)
    pictures = _render(canvas, maps, limits, views, theme)
    with styled(theme):
        sheet, rectangles = _lay_out(pictures, weights, limits, beyond, title, theme)
        image, paths = sheet.finish(paths)
    return RoutingMaps(image, rectangles, limits, paths)


def _checked_maps(weights: Sequence[HeadWeights], n_tokens: int) -> dict[tuple, np.ndarray]:
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


def _top(maps: list[np.ndarray]) -> float:
    return float(np.percentile(np.concatenate(maps), _PERCENTILE)) or 1.0


def _render(
    canvas: Canvas,
    maps: dict[tuple, np.ndarray],
    limits: dict[str, Limits],
    views: Sequence[View],
    theme: Theme,
) -> dict[tuple, np.ndarray]:
    """Return the picture of every map, its views one below the other."""
    per_unit = pixels_per_unit(views, theme, theme.panel_width * theme.dpi)
    widest = max(view.pixels(per_unit)[0] for view in views)
    pictures = {}
    with open_renderer(canvas, views, per_unit, theme) as renderer:
        for key, values in maps.items():
            renderer.paint(
                canvas.values(values), canvas.association, theme.weights(), limits[key[3]]
            )
            parts = []
            for view in views:
                width, height = view.pixels(per_unit)
                # A few pixels of the page make all views equally wide.
                window = _widened(view.window, widest / width)
                parts.append(renderer.picture(view.camera, window, (widest, height)))
            pictures[key] = np.concatenate(parts)
    return pictures


def _widened(window: tuple[float, ...], factor: float) -> tuple[float, ...]:
    left, right, bottom, top = window
    more = (factor - 1) * (right - left) / 2
    return left - more, right + more, bottom, top


def _lay_out(
    pictures: dict[tuple, np.ndarray],
    weights: Sequence[HeadWeights],
    limits: dict[str, Limits],
    beyond: dict[str, tuple[bool, bool]],
    title: str | None,
    theme: Theme,
) -> tuple[Sheet, dict]:
    inch = theme.dpi
    gap, line, margin = (round(x * inch) for x in (GAP, LINE, MARGIN))
    height, width = next(iter(pictures.values())).shape[:2]
    n_columns = max(len(entry.routes) for entry in weights)
    left = margin + 2 * line
    top = margin + (line if title else 0)
    tall = max(height, round(_LOWEST * inch))  # the words beside a row need as much
    row = tall + gap
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
        sheet.text(label, margin + line / 3, start + line + row, room=2 * row, vertical=True)
        for place, kind in enumerate(("encode", "decode")):
            y = start + line + place * row
            words = {"encode": "draws from", "decode": "returns to"}[kind]
            sheet.text(words, left - line / 2, y + tall / 2, room=tall, vertical=True)
            for column, route in enumerate(np.asarray(entry.routes).tolist()):
                key = (entry.block, entry.head, route, kind)
                x = left + column * (width + gap)
                middle = y + (tall - height) // 2
                sheet.image(pictures[key], x, middle)
                rectangles[key] = (x, middle, width, height)
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
        sheet.bar(
            theme.weights(),
            limits[kind],
            label,
            begin,
            bottom,
            0.84 * half,
            beyond=beyond[kind],
            room=0.96 * half,
        )
    return sheet, rectangles
