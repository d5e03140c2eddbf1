"""Reference, predictions and errors of one case, side by side on shared scales."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyvista as pv
import torch
from jaxtyping import Bool, Float, UInt8

from ..ops.errors import relative_l2
from .cameras import Camera
from .canvases import Canvas, Crop, association_of, make_canvas
from .files import Paths, check_paths
from .pages import ComparisonPage, Panel
from .scales import Limits, check_values, error_limits, field_limits, outside
from .sheets import styled, with_units
from .theme import LIGHT, Theme
from .views import View, make_views, open_renderer, pixels_per_unit


@dataclass(frozen=True)
class Comparison:
    """The figure and the numbers it shows.

    Parameters
    ----------
    image : numpy.ndarray
        The page, (height, width, 3).
    panels : tuple of Panel
        Where each picture is.
    field_limits, error_limits : tuple of float
        The two colour scales.
    relative_l2 : dict
        Error of what is shown of each prediction as it is written above its panel, as a fraction:
        over all tokens with data.
    cameras : tuple of str
        Views, in order.
    paths : tuple of Path
        Files written.
    """

    image: UInt8[np.ndarray, "height width 3"]
    panels: tuple[Panel, ...]
    field_limits: Limits
    error_limits: Limits
    relative_l2: dict[str, float]
    cameras: tuple[str, ...]
    paths: tuple[Path, ...]

    def panel(self, kind: str, name: str, camera: str | None = None) -> UInt8[np.ndarray, "h w 3"]:
        """Return the pixels of one panel; the first view by default."""
        camera = camera or self.cameras[0]
        for panel in self.panels:
            if (panel.kind, panel.name, panel.camera) == (kind, name, camera):
                left, top, width, height = panel.rectangle
                return self.image[top : top + height, left : left + width]
        known = [(p.kind, p.name, p.camera) for p in self.panels]
        raise ValueError(f"there is no panel {(kind, name, camera)}; there are {known}")


def plot_comparison(
    mesh: pv.DataSet,
    reference: Float[np.ndarray, " N"],
    predictions: Mapping[str, Float[np.ndarray, " N"]],
    *,
    field: str,
    units: str | None = None,
    association: str = "auto",
    cameras: Sequence[str | Camera] | None = None,
    mask: Bool[np.ndarray, " N"] | None = None,
    crop: Crop | None = None,
    alpha: float | None = None,
    field_range: Limits | None = None,
    vector_errors: Mapping[str, float] | None = None,
    title: str | None = None,
    theme: Theme = LIGHT,
    path: Paths = None,
) -> Comparison:
    """Draw reference and predictions on one scale, and their signed errors on another.

    The paper's conventions: errors are prediction minus reference on a diverging scale centred
    at 0, with limits at the 99.5th percentile of the larger model's error, so that a smaller error
    is an emptier panel; grey where there is no data; true aspect ratio. Limits are those of the
    tokens in the picture, relative L2 errors those of all tokens with data.

    Views are rows, fields and errors columns. One view of several models has the fields above and
    the errors below.

    Parameters
    ----------
    mesh : pyvista.DataSet
        Structured grid, triangle mesh, surface, or point cloud of the whole case. Planar clouds
        are triangulated without bridging voids.
    reference : numpy.ndarray
        Values of the tokens, shape (N,).
    predictions : Mapping[str, numpy.ndarray]
        One array of the same shape per model, in the order of the columns.
    field : str
        Name of the quantity.
    units : str, optional
        Its units.
    association : str
        Whether tokens are the ``point`` or ``cell`` of the mesh; ``auto`` tells by their number.
    cameras : sequence of str or Camera, optional
        Views of a 3-D surface (names in ``CAMERAS``); three-quarter, side, top and front by
        default. Planar meshes have one view.
    mask : numpy.ndarray, optional
        True where a token has data, shape (N,).
    crop : tuple of float, optional
        (x_min, x_max, y_min, y_max) to look at; planar meshes only.
    alpha : float, optional
        Largest circumradius of a face of a point cloud; see :func:`triangulate_cloud`.
    field_range : tuple of float, optional
        Limits of the field scale; percentiles 0.5 and 99.5 of the reference by default.
    vector_errors : Mapping[str, float], optional
        Where the arrays are magnitudes of vectors, the relative L2 error of the vectors by model,
        as a fraction. It is written beside that of the magnitudes, and each is named.
    title : str, optional
        Line above the panels, such as the case.
    theme : Theme
        Look of the figure.
    path : path-like or sequence of path-like, optional
        Where to write it: ``.png``, ``.pdf`` or ``.svg`` (pictures are embedded, text is vectors).

    Returns
    -------
    Comparison
        Image and numbers.

    Raises
    ------
    ValueError
        If an array does not fit the mesh or is not finite; the error names it.
    RenderingUnavailable
        If there is no OpenGL.

    Examples
    --------
    >>> grid = pv.ImageData(dimensions=(9, 5, 1))
    >>> truth = np.linspace(0, 1, 45)
    >>> small = Theme(dpi=50, panel_width=1.0)
    >>> drawn = plot_comparison(grid, truth, {"FLARE++": truth + 0.1}, field="u", theme=small)
    >>> round(drawn.error_limits[1], 6), [(p.kind, p.row, p.column) for p in drawn.panels]
    (0.1, [('field', 0, 0), ('field', 0, 1), ('error', 0, 2)])
    """
    paths = check_paths(path)
    if not predictions:
        raise ValueError("predictions is empty; give at least one array by the name of its model")
    if "reference" in predictions:
        raise ValueError("a prediction is named 'reference'; give it the name of its model")
    if field_range is not None and not field_range[0] < field_range[1]:
        raise ValueError(f"field_range is {field_range}, expected (low, high) with low < high")
    n_tokens = np.shape(reference)[0] if np.ndim(reference) else 0
    association = association_of(mesh, n_tokens, association, "reference values")
    canvas = make_canvas(mesh, n_tokens, association=association, mask=mask, crop=crop, alpha=alpha)
    reference = check_values("reference", reference, n_tokens, mask)
    predictions = {
        name: check_values(f"the prediction of {name!r}", values, n_tokens, mask)
        for name, values in predictions.items()
    }
    known = slice(None) if mask is None else np.asarray(mask)
    shown = canvas.shown
    differences = {name: values - reference for name, values in predictions.items()}
    in_view = {name: values[shown] for name, values in differences.items()}
    fields = {"reference": reference, **predictions}
    limits = field_range or field_limits(reference[shown])
    bounds = error_limits(in_view)
    truth = torch.from_numpy(reference[known])[None, :, None]
    errors = {
        name: relative_l2(torch.from_numpy(values[known])[None, :, None], truth).item()
        for name, values in predictions.items()
    }
    headings = {n: (f" error, rel. L2 {error:.2%}",) for n, error in errors.items()}
    if vector_errors is not None:
        if set(vector_errors) != set(predictions):
            raise ValueError(
                f"vector_errors names {sorted(vector_errors)}, but predictions {sorted(errors)}"
            )
        headings = {
            n: (" error", f"rel. L2: magnitude {error:.2%}, vector {vector_errors[n]:.2%}")
            for n, error in errors.items()
        }

    views = make_views(canvas, cameras, crop)
    pictures = _render(canvas, fields, differences, limits, bounds, views, theme)
    with styled(theme):
        page = ComparisonPage(views, headings, title, theme)
        page.place(pictures)
        page.bars(
            (limits, with_units(field, units)),
            outside(limits, *(values[shown] for values in fields.values())),
            (bounds, with_units(f"error of {field}", units)),
            outside(bounds, *in_view.values()),
        )
        image, paths = page.sheet.finish(paths)
    names = tuple(view.camera.name for view in views)
    return Comparison(image, tuple(page.panels), limits, bounds, errors, names, paths)


def _render(
    canvas: Canvas,
    fields: Mapping[str, np.ndarray],
    differences: Mapping[str, np.ndarray],
    limits: Limits,
    bounds: Limits,
    views: Sequence[View],
    theme: Theme,
) -> dict[tuple[str, str, str], np.ndarray]:
    """Return the picture of every (kind, name, camera)."""
    per_unit = pixels_per_unit(views, theme)
    jobs = [("field", name, values, theme.fields(), limits) for name, values in fields.items()]
    jobs += [("error", n, values, theme.errors(), bounds) for n, values in differences.items()]
    pictures = {}
    with open_renderer(canvas, views, per_unit, theme) as renderer:
        for kind, name, values, colors, scale in jobs:
            shading = theme.error_shading if kind == "error" else theme.shading
            shown = canvas.values(values)
            renderer.paint(shown, canvas.association, colors, scale, shading=shading)
            for view in views:
                pictures[kind, name, view.camera.name] = renderer.picture(
                    view.camera, view.window, view.pixels(per_unit)
                )
    return pictures
