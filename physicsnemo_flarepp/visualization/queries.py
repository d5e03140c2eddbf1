"""How the routing queries of a model follow the case."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, UInt8

from .files import Paths, check_paths
from .sheets import BAR_STRIP, Sheet, styled
from .theme import LIGHT, Theme


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
    """Return how far each query moves between two cases, relative to its mean length.

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
    title: str | None = None,
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
    title : str, optional
        Line above, such as the run.
    theme, path
        As in :func:`plot_comparison`.
    """
    paths = check_paths(path)
    change = query_change(first, second)
    n_blocks, n_heads, n_routes = change.shape
    top = float(change.max()) or 1.0
    with styled(theme):
        inch = theme.dpi
        left, head, width = 0.75 * inch, 0.35 * inch, 3.6 * inch
        above = head + (0 if title is None else 0.2 * inch)
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
        none = "" if change.any() else ": none, they are fixed"
        words = [f"change of the queries from {cases[0]} to {cases[1]}{none}"]
        for number, line in enumerate(words if title is None else [title, *words]):
            middle = head / 2 + number * 0.2 * inch
            room = 0.95 * page[0]
            sheet.text(line, page[0] / 2, middle, room=room, size=theme.font_size + 1)
        label = "relative change"
        sheet.bar(theme.weights(), (0.0, top), label, left, above + height + below, width)
        image, paths = sheet.finish(paths)
    return QueryChange(image, change, paths)
