"""What goes in and what comes out, one column per benchmark."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyvista as pv
from jaxtyping import Float, UInt8

from .cameras import Camera
from .canvases import Crop, make_canvas
from .files import Paths, check_paths
from .scales import Limits, check_values, field_limits, outside
from .sheets import BAR_STRIP, Sheet, styled
from .theme import LIGHT, Theme
from .views import make_views, open_renderer, pixels_per_unit

GAP = 0.12
MARGIN = 0.10
LINE = 0.21
_TALLEST = 1.0  # height of a panel over its width
_ROOM_FOR_EDGES = 8  # pixels per token; denser meshes would be all edge


@dataclass(frozen=True)
class Exhibit:
    """One column of a gallery.

    Parameters
    ----------
    title : str
        Name of the benchmark or run.
    mesh : pyvista.DataSet
        Mesh of a case.
    target : numpy.ndarray
        The field to predict, (N,).
    target_label : str
        Its name, with units where it has some.
    source : numpy.ndarray, optional
        The input field, (N,). None where the input is the geometry alone, which is then shown.
    source_label : str
        Name of the input.
    association : str
        ``point``, ``cell`` or ``auto``.
    camera : str or Camera
        View of a surface; planar meshes have their own.
    crop : tuple of float, optional
        Part of a planar mesh to look at.
    case : str, optional
        Name of the case, below the title.
    """

    title: str
    mesh: pv.DataSet
    target: Float[np.ndarray, " N"]
    target_label: str
    source: Float[np.ndarray, " N"] | None = None
    source_label: str = "geometry"
    association: str = "auto"
    camera: str | Camera = "three-quarter"
    crop: Crop | None = None
    case: str | None = None


@dataclass(frozen=True)
class Gallery:
    """The figure and its numbers.

    Parameters
    ----------
    image : numpy.ndarray
        The page, (height, width, 3).
    rectangles : dict
        (left, top, width, height) of the picture of each (title, ``input`` or ``target``).
    limits : dict
        Colour limits of the same; None for a geometry.
    paths : tuple of Path
        Files written.
    """

    image: UInt8[np.ndarray, "height width 3"]
    rectangles: dict[tuple[str, str], tuple[int, int, int, int]]
    limits: dict[tuple[str, str], Limits | None]
    paths: tuple[Path, ...]


def plot_gallery(
    exhibits: Sequence[Exhibit], *, theme: Theme = LIGHT, path: Paths = None
) -> Gallery:
    """Draw input above and target below for each benchmark, each on its own scale.

    Parameters
    ----------
    exhibits : sequence of Exhibit
        The columns.
    theme, path
        As in :func:`plot_comparison`.

    Examples
    --------
    >>> grid = pv.ImageData(dimensions=(9, 9, 1))
    >>> values = np.arange(81.0)
    >>> column = Exhibit("Darcy", grid, values, "u", source=values > 40, source_label="a")
    >>> sorted(plot_gallery([column], theme=Theme(dpi=50, panel_width=1.0)).rectangles)
    [('Darcy', 'input'), ('Darcy', 'target')]
    """
    paths = check_paths(path)
    titles = [exhibit.title for exhibit in exhibits]
    if not titles or len(set(titles)) < len(titles):
        raise ValueError(f"exhibits need at least one column, titles of their own; got {titles}")
    with styled(theme):
        inch = theme.dpi
        gap, line, margin = (round(x * inch) for x in (GAP, LINE, MARGIN))
        cell, strip = round(theme.panel_width * inch), round((BAR_STRIP + GAP) * inch)
        drawn = [_render(exhibit, theme, _TALLEST * cell) for exhibit in exhibits]
        height = max(picture.shape[0] for column in drawn for picture, _, _, _ in column)
        row = height + strip
        head = line * (1 + any(exhibit.case is not None for exhibit in exhibits))
        width = 2 * margin + line + len(drawn) * (cell + gap) - gap
        sheet = Sheet(width, 2 * margin + head + 2 * row, theme)
        rectangles, limits = {}, {}
        for number, (exhibit, column) in enumerate(zip(exhibits, drawn, strict=True)):
            left = margin + line + number * (cell + gap)
            sheet.text(
                exhibit.title,
                left + cell / 2,
                margin + 0.68 * line,
                room=cell,
                size=theme.font_size + 1,
                valign="baseline",
            )
            if exhibit.case is not None:
                words = f"case {exhibit.case}"
                sheet.text(words, left + cell / 2, margin + 1.5 * line, room=cell)
            for place, (kind, (picture, scale, label, beyond)) in enumerate(
                zip(("input", "target"), column, strict=True)
            ):
                h, w = picture.shape[:2]
                top = margin + head + place * row + height - h
                corner = left + (cell - w) // 2
                sheet.image(picture, corner, top)
                rectangles[exhibit.title, kind] = (corner, top, w, h)
                limits[exhibit.title, kind] = scale
                below = top + h + gap
                if scale is None:
                    sheet.text(label, left + cell / 2, below + line / 2, room=cell)
                else:
                    bar = 0.86 * cell
                    start = left + (cell - bar) / 2
                    sheet.bar(
                        theme.fields(), scale, label, start, below, bar, beyond=beyond, room=cell
                    )
        for place, kind in enumerate(("input", "target")):
            sheet.text(
                kind,
                margin + line / 3,
                margin + head + place * row + height / 2,
                room=height,
                size=theme.font_size + 1,
                vertical=True,
            )
        image, paths = sheet.finish(paths)
    return Gallery(image, rectangles, limits, paths)


def _render(exhibit: Exhibit, theme: Theme, tallest: float) -> list[tuple]:
    """Return picture, limits, label and values beyond the limits, of input and target."""
    n_tokens = len(exhibit.target)
    canvas = make_canvas(exhibit.mesh, n_tokens, association=exhibit.association, crop=exhibit.crop)
    views = make_views(canvas, None if canvas.flat else [exhibit.camera], exhibit.crop)
    per_unit = pixels_per_unit(views, theme, tallest)
    size = views[0].pixels(per_unit)
    rows = []
    with open_renderer(canvas, views, per_unit, theme) as renderer:
        for name, values, label in (
            ("input", exhibit.source, exhibit.source_label),
            ("target", exhibit.target, exhibit.target_label),
        ):
            if values is None:
                room = size[0] * size[1] / max(1, canvas.shown.sum())
                renderer.paint_plain(
                    theme.surface, edges=theme.edges if room > _ROOM_FOR_EDGES else None
                )
                scale, beyond = None, None
            else:
                values = np.asarray(values)
                values = values.astype(float) if values.dtype == bool else values
                values = check_values(f"{name} of {exhibit.title}", values, n_tokens)
                scale = field_limits(values[canvas.shown])
                beyond = outside(scale, values[canvas.shown])
                renderer.paint(canvas.values(values), canvas.association, theme.fields(), scale)
            picture = renderer.picture(views[0].camera, views[0].window, size)
            rows.append((picture, scale, label, beyond))
    return rows
