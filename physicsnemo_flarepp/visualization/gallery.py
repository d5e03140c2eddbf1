"""What goes in and what comes out, one column per benchmark."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyvista as pv
from jaxtyping import Float

from .canvases import Crop, Limits, check_values, field_limits, make_canvas, outside
from .pages import Page, Paths, PictureDrawing, Pixels, check_paths, styled
from .rendering import MeshRenderer
from .theme import LIGHT, Theme
from .views import Camera, make_views

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
class Gallery(PictureDrawing):
    """The figure and its numbers.

    Parameters
    ----------
    rectangles : dict
        (left, top, width, height) of the picture of each (title, ``input`` or ``target``).
    limits : dict
        Colour limits of the same; None for a geometry.
    """

    limits: dict[tuple[str, str], Limits | None]


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
    drawn = [_render(exhibit, theme) for exhibit in exhibits]
    height = max(entry.picture.shape[0] for column in drawn for entry in column.values())
    limits, named = {}, any(exhibit.case is not None for exhibit in exhibits)
    with styled(theme):
        page = Page(theme, [theme.panel_width * theme.dpi] * len(drawn), [height, height])
        for column, (exhibit, entries) in enumerate(zip(exhibits, drawn, strict=True)):
            for row, (kind, entry) in enumerate(entries.items()):
                key = exhibit.title, kind
                limits[key] = entry.limits
                axis = page.picture(key, entry.picture, row, column, low=True)
                if entry.limits is None:
                    page.fit(axis.set_xlabel(entry.label), page.widths[column])
                else:
                    page.bar([axis], theme.fields(), entry.limits, entry.label, entry.beyond)
            case = "" if exhibit.case is None else f"case {exhibit.case}"
            page.head(page.axes[0, column], exhibit.title, f"\n{case}" if named else "")
        for axis, kind in zip(page.axes[:, 0], ("input", "target"), strict=True):
            page.beside(axis, kind)
        image, paths = page.finish(paths)
    return Gallery(image, paths, page.rectangles, limits)


@dataclass(frozen=True)
class _Entry:
    picture: Pixels
    label: str
    limits: Limits | None = None
    beyond: tuple[bool, bool] = (False, False)


def _render(exhibit: Exhibit, theme: Theme) -> dict[str, _Entry]:
    """Return the pictures of input and target."""
    n_tokens = len(exhibit.target)
    canvas = make_canvas(exhibit.mesh, n_tokens, association=exhibit.association, crop=exhibit.crop)
    cameras = None if canvas.flat else [exhibit.camera]
    views = make_views(canvas, theme, cameras, exhibit.crop, tallest=1.0)
    (view,) = views
    entries = {}
    with MeshRenderer(canvas, views, theme) as renderer:
        for name, values, label in (
            ("input", exhibit.source, exhibit.source_label),
            ("target", exhibit.target, exhibit.target_label),
        ):
            if values is None:
                room = view.size[0] * view.size[1] / max(1, canvas.shown.sum())
                edges = theme.edges if room > _ROOM_FOR_EDGES else None
                renderer.paint_plain(theme.surface, edges)
                entries[name] = _Entry(renderer.picture(view), label)
                continue
            values = np.asarray(values)
            values = values.astype(float) if values.dtype == bool else values
            values = check_values(f"{name} of {exhibit.title}", values, n_tokens)
            seen = values[canvas.shown]
            limits = field_limits(seen)
            renderer.paint(values, theme.fields(), limits)
            entries[name] = _Entry(renderer.picture(view), label, limits, outside(limits, seen))
    return entries
