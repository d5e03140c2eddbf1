"""Which part of the picture plane each camera shows, and how large."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .cameras import CAR_CAMERAS, PLAN, Camera, resolve_cameras
from .canvases import Canvas, Crop
from .rendering import MeshRenderer
from .theme import Theme

_MARGIN = 0.02  # of the extent, around surfaces
TALLEST = 1.6  # height of a panel over its width, at most


@dataclass(frozen=True)
class View:
    """A camera and its window.

    Parameters
    ----------
    camera : Camera
        Where to look from.
    window : tuple of float
        (left, right, bottom, top) along the camera's right and up axes.

    Examples
    --------
    >>> View(PLAN, (0.0, 2.0, 0.0, 1.0)).pixels(50.0)
    (100, 50)
    """

    camera: Camera
    window: tuple[float, float, float, float]

    @property
    def span(self) -> tuple[float, float]:
        """Width and height in units of length."""
        left, right, bottom, top = self.window
        return right - left, top - bottom

    def pixels(self, per_unit: float) -> tuple[int, int]:
        """Return width and height in pixels."""
        width, height = self.span
        return max(1, round(width * per_unit)), max(1, round(height * per_unit))


def make_views(
    canvas: Canvas, cameras: Sequence[str | Camera] | None, crop: Crop | None
) -> list[View]:
    """Return the views of the cameras, with windows that show everything, or the crop.

    Parameters
    ----------
    canvas : Canvas
        What is drawn.
    cameras : sequence of str or Camera, optional
        Views of a surface; ``CAR_CAMERAS`` by default. A flat canvas has one view.
    crop : tuple of float, optional
        Window on a flat canvas.
    """
    if canvas.flat:
        if cameras is not None:
            raise ValueError(f"cameras is {cameras}, but the mesh is planar and has one view")
        chosen = (PLAN,)
    else:
        chosen = resolve_cameras(CAR_CAMERAS if cameras is None else cameras)
    if crop is not None:
        return [View(PLAN, tuple(map(float, crop)))]
    return [View(camera, _window(canvas, camera)) for camera in chosen]


def _window(canvas: Canvas, camera: Camera) -> tuple[float, float, float, float]:
    extent = camera.extent(canvas.faces.points)
    if canvas.hidden is not None:
        others = camera.extent(canvas.hidden.points)
        extent[:, 0] = np.minimum(extent[:, 0], others[:, 0])
        extent[:, 1] = np.maximum(extent[:, 1], others[:, 1])
    margin = 0.0 if canvas.flat else _MARGIN * np.ptp(extent[:2], axis=1).max()
    (left, right), (bottom, top) = extent[:2] + (-margin, margin)
    return float(left), float(right), float(bottom), float(top)


def pixels_per_unit(views: Sequence[View], theme: Theme, height: float | None = None) -> float:
    """Return pixels per unit of length: the widest view fills a panel, all share one scale.

    Parameters
    ----------
    views : sequence of View
        The views.
    theme : Theme
        Gives the width of a panel.
    height : float, optional
        Pixels that no view may exceed in height; 1.6 times the width of a panel by default.

    Examples
    --------
    >>> theme = Theme(dpi=100, panel_width=2.0)
    >>> [pixels_per_unit([View(PLAN, (0, 1, 0, top))], theme) for top in (1, 100)]
    [200.0, 3.2]
    """
    width = theme.panel_width * theme.dpi
    height = TALLEST * width if height is None else height
    scale = width / max(view.span[0] for view in views)
    return min(scale, height / max(view.span[1] for view in views))


def open_renderer(
    canvas: Canvas, views: Sequence[View], per_unit: float, theme: Theme
) -> MeshRenderer:
    """Return the renderer of a canvas; bare points are about as large as closes the surface."""
    area = max(view.span[0] * view.span[1] for view in views) * per_unit**2
    # Half of the points face the viewer.
    spacing = np.sqrt(area / max(1, canvas.faces.n_points / 2))
    return MeshRenderer(
        canvas.faces,
        theme,
        flat=canvas.flat,
        hidden=canvas.hidden,
        point_size=float(np.clip(2.3 * spacing, 2.0, 16.0)),
    )
