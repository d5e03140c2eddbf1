"""Surfaces side by side with signed values on one scale: sensitivities, changes of shape."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyvista as pv
from jaxtyping import Float

from .canvases import Limits, check_values, error_limits, make_canvas, outside
from .pages import LOWEST, Page, Paths, PictureDrawing, check_paths, styled
from .rendering import MeshRenderer
from .theme import LIGHT, Theme
from .views import Camera, make_views


@dataclass(frozen=True)
class SurfaceFigure(PictureDrawing):
    """The figure and the limits of its scale, None without values.

    `rectangles` has (left, top, width, height) of each (column, camera).
    """

    limits: Limits | None


def plot_surfaces(
    columns: Mapping[str, tuple[pv.PolyData, Float[np.ndarray, " N"] | None]],
    label: str,
    *,
    cameras: Sequence[str | Camera] | None = None,
    title: str | None = None,
    note: str | None = None,
    theme: Theme = LIGHT,
    path: Paths = None,
) -> SurfaceFigure:
    """Draw signed values on surfaces, views as rows, on one diverging scale about 0.

    Parameters
    ----------
    columns : Mapping[str, tuple]
        By the heading of its column, a surface and values at its points or cells, (N,); None
        shows the bare surface.
    label : str
        What the values are, with units.
    cameras, title, theme, path
        As in :func:`plot_comparison`.
    note : str, optional
        Last lines of the page.

    Examples
    --------
    >>> ball = pv.Icosphere(nsub=1)
    >>> small = Theme(dpi=50, panel_width=1.0)
    >>> drawn = plot_surfaces({"z": (ball, ball.points[:, 2])}, "z", cameras=["side"], theme=small)
    >>> list(drawn.rectangles), drawn.limits[0] == -drawn.limits[1]
    ([('z', 'side')], True)
    """
    paths = check_paths(path)
    if not columns:
        raise ValueError("columns is empty; give at least one surface by its heading")
    shown = {
        name: None if values is None else check_values(name, values, len(values))
        for name, (_, values) in columns.items()
    }
    known = {name: values for name, values in shown.items() if values is not None}
    limits = error_limits(known) if known else None
    # One scale of lengths: the views are those of all surfaces together.
    cloud = pv.PolyData(np.concatenate([mesh.points for mesh, _ in columns.values()]))
    views = make_views(make_canvas(cloud, cloud.n_points), theme, cameras)
    with styled(theme):
        heights = [max(view.size[1], LOWEST * theme.dpi) for view in views]
        page = Page(theme, [theme.panel_width * theme.dpi] * len(columns), heights)
        for column, (name, (mesh, _)) in enumerate(columns.items()):
            values = shown[name]
            canvas = make_canvas(mesh, mesh.n_points if values is None else len(values))
            with MeshRenderer(canvas, views, theme) as renderer:
                if values is None:
                    renderer.paint_plain(theme.surface)
                else:
                    renderer.paint(values, theme.errors(), limits, shading=theme.error_shading)
                for row, view in enumerate(views):
                    key = name, view.camera.name
                    axis = page.picture(key, renderer.picture(view), row, column)
                    if row == 0:
                        page.head(axis, name)
                    if column == 0:
                        page.beside(axis, view.camera.name)
        page.title(title)
        if note is not None:
            page.note(note)
        if limits is not None:
            beyond = outside(limits, *known.values())
            page.bar(page.axes[-1], theme.errors(), limits, label, beyond)
        image, paths = page.finish(paths)
    return SurfaceFigure(image, paths, page.rectangles, limits)
