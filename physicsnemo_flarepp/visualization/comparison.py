"""Reference, predictions and errors of one case, side by side on shared scales."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyvista as pv
import torch
from jaxtyping import Bool, Float
from matplotlib.axes import Axes

from ..ops.errors import relative_l2
from .canvases import (
    Crop,
    Limits,
    association_of,
    check_values,
    error_limits,
    field_limits,
    make_canvas,
    outside,
)
from .pages import LOWEST, Page, Paths, PictureDrawing, Pixels, check_paths, styled, with_units
from .rendering import MeshRenderer
from .theme import LIGHT, Theme
from .views import Camera, View, make_views

_CONVENTION = "error = prediction − reference; limits: 99.5th percentile of the largest |error|"
_IN_A_CELL = """error = prediction − reference,
one scale for all models,
limits: 99.5th percentile
of the largest |error|"""
_TOKENS, _INTEGRAL = "rel. L2: sums over all {}s", "rel. L2: integrals"


@dataclass(frozen=True)
class Comparison(PictureDrawing):
    """The figure and the numbers it shows.

    Parameters
    ----------
    rectangles : dict
        (left, top, width, height) of each (``field`` or ``error``, name, camera), where the name
        is ``reference`` or that of a prediction.
    field_limits, error_limits : tuple of float
        The two colour scales.
    relative_l2 : dict
        Error of what is shown of each prediction as it is written above its panel, as a fraction:
        over all tokens with data.
    cameras : tuple of str
        Views, in order.
    """

    field_limits: Limits
    error_limits: Limits
    relative_l2: dict[str, float]
    cameras: tuple[str, ...]


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
    weights: Float[np.ndarray, " N"] | None = None,
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
    weights : numpy.ndarray, optional
        What each token stands for, shape (N,): relative L2 errors are integrals instead of sums
        over tokens. The figure says which.
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
        If OpenGL is unavailable.

    Examples
    --------
    >>> grid = pv.ImageData(dimensions=(9, 5, 1))
    >>> truth = np.linspace(0, 1, 45)
    >>> small = Theme(dpi=50, panel_width=1.0)
    >>> drawn = plot_comparison(grid, truth, {"FLARE++": truth + 0.1}, field="u", theme=small)
    >>> round(drawn.error_limits[1], 6), list(drawn.rectangles)[-1]
    (0.1, ('error', 'FLARE++', 'plan'))
    """
    paths = check_paths(path)
    if not predictions:
        raise ValueError("predictions is empty; give at least one array by the name of its model")
    if "reference" in predictions:
        raise ValueError("a prediction is named 'reference'; give it the name of its model")
    if field_range is not None and not field_range[0] < field_range[1]:
        raise ValueError(f"field_range is {field_range}, expected (low, high) with low < high")
    if vector_errors is not None and set(vector_errors) != set(predictions):
        raise ValueError(
            f"vector_errors names {sorted(vector_errors)}, but predictions {sorted(predictions)}"
        )
    n_tokens = np.shape(reference)[0] if np.ndim(reference) else 0
    association = association_of(mesh, n_tokens, association, "reference values")
    canvas = make_canvas(mesh, n_tokens, association=association, mask=mask, crop=crop, alpha=alpha)
    reference = check_values("reference", reference, n_tokens, mask)
    predictions = {
        name: check_values(f"the prediction of {name!r}", values, n_tokens, mask)
        for name, values in predictions.items()
    }
    known = slice(None) if mask is None else np.asarray(mask)
    truth = torch.from_numpy(reference[known])[None, :, None]
    norm, measure = _TOKENS.format(association), None
    if weights is not None:
        norm, measure = _INTEGRAL, torch.from_numpy(np.asarray(weights)[known])[None]
    errors = {
        name: relative_l2(
            torch.from_numpy(values[known])[None, :, None], truth, token_weights=measure
        ).item()
        for name, values in predictions.items()
    }

    fields = {"reference": reference, **predictions}
    differences = {name: values - reference for name, values in predictions.items()}
    seen = {name: values[canvas.shown] for name, values in differences.items()}
    limits = field_range or field_limits(reference[canvas.shown])
    bounds = error_limits(seen)
    views = make_views(canvas, theme, cameras, crop)
    pictures = {}
    with MeshRenderer(canvas, views, theme) as renderer:
        for kind, arrays, colors, scale, shading in (
            ("field", fields, theme.fields(), limits, theme.shading),
            ("error", differences, theme.errors(), bounds, theme.error_shading),
        ):
            for name, values in arrays.items():
                renderer.paint(values, colors, scale, shading=shading)
                for view in views:
                    pictures[kind, name, view.camera.name] = renderer.picture(view)
    headings = {n: f" error, rel. L2 {error:.2%}" for n, error in errors.items()}
    if vector_errors is not None:
        headings = {
            n: f" error, rel. L2\nmagnitude {error:.2%}, vector {vector_errors[n]:.2%}"
            for n, error in errors.items()
        }
    with styled(theme):
        page, above, below = _lay_out(pictures, views, headings, norm, theme)
        page.title(title)
        beyond = outside(limits, *(values[canvas.shown] for values in fields.values()))
        page.bar(above, theme.fields(), limits, with_units(field, units), beyond)
        label, beyond = with_units(f"error of {field}", units), outside(bounds, *seen.values())
        page.bar(below, theme.errors(), bounds, label, beyond)
        image, paths = page.finish(paths)
    names = tuple(view.camera.name for view in views)
    return Comparison(image, paths, page.rectangles, limits, bounds, errors, names)


def _lay_out(
    pictures: Mapping[tuple[str, str, str], Pixels],
    views: Sequence[View],
    headings: Mapping[str, str],
    norm: str,
    theme: Theme,
) -> tuple[Page, Sequence[Axes], Sequence[Axes]]:
    """Return the page of panels, and the axes above the bars of the fields and of the errors."""
    order, n_models = ["reference", *headings], len(headings)
    stacked = len(views) == 1 and n_models > 1
    heights = [max(view.size[1], LOWEST * theme.dpi) for view in views] * (1 + stacked)
    n_columns = 1 + n_models if stacked else 1 + 2 * n_models
    page = Page(theme, [theme.panel_width * theme.dpi] * n_columns, heights)
    cameras = [view.camera.name for view in views]
    for (kind, name, camera), picture in pictures.items():
        wrong, view = kind == "error", cameras.index(camera)
        column = order.index(name) + (n_models if wrong and not stacked else 0)
        row = int(wrong) if stacked else view
        axis = page.picture((kind, name, camera), picture, row, column)
        if view == 0:
            page.head(axis, name, headings[name] if wrong else "")
        if column == 0 and len(views) > 1:
            page.beside(axis, camera)
    if stacked:
        page.blank(1, 0).text(
            0.5, 0.5, f"{_IN_A_CELL},\n{norm}", ha="center", va="center", linespacing=1.35
        )
        return page, page.axes[0], page.axes[1, 1:]
    page.note(f"{norm}\n{_CONVENTION}")
    return page, page.axes[-1, : n_models + 1], page.axes[-1, n_models + 1 :]
