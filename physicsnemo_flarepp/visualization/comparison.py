"""Pictures of meshes: predictions and errors side by side, inputs and targets, signed values."""

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
)
from .pages import (
    LIGHT,
    LOWEST,
    Page,
    Paths,
    PictureDrawing,
    Pixels,
    Theme,
    with_units,
)
from .rendering import MeshRenderer
from .views import Camera, View, make_views

_CONVENTION = "error = prediction − reference; limits: 99.5th percentile of the largest |error|"
_IN_A_CELL = """error = prediction − reference,
one scale for all models,
limits: 99.5th percentile
of the largest |error|"""
_TOKENS, _INTEGRAL = "rel. L2: sums over all {}s", "rel. L2: integrals"
_ROOM_FOR_EDGES = 8  # pixels per token; denser meshes would be all edge


@dataclass(frozen=True)
class Comparison(PictureDrawing):
    """The figure, its two colour scales, the error above each panel, and the views in order.

    `rectangles` are by (``field`` or ``error``, name, camera), where the name is ``reference`` or
    that of a prediction; errors are fractions, over all tokens with data.
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
    is an emptier panel; grey where there is no data; true aspect ratio. Limits come from the
    tokens in the picture, relative L2 errors from all tokens with data.

    Views are rows, fields and errors columns. One view of several models has the fields above and
    the errors below. Raises :class:`RenderingUnavailable` without OpenGL.

    Parameters
    ----------
    mesh : pyvista.DataSet
        Structured grid, triangle mesh, surface, or point cloud of the whole case. Planar clouds
        are triangulated without bridging voids.
    reference : numpy.ndarray
        Values of the tokens, shape (N,).
    predictions : Mapping[str, numpy.ndarray]
        One array of the same shape per model, in the order of the columns.
    field, units : str
        Name of the quantity and, optionally, its units.
    association : str
        Whether tokens are the ``point`` or ``cell`` of the mesh; ``auto`` tells by their number.
    cameras : sequence of str or Camera, optional
        Views of a 3-D surface (names in ``CAMERAS``); three-quarter, side, top and rear by
        default. Planar meshes have one view.
    mask : numpy.ndarray, optional
        True where a token has data, shape (N,).
    crop : tuple of float, optional
        (x_min, x_max, y_min, y_max) to look at; planar meshes only.
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

    Examples
    --------
    >>> grid = pv.ImageData(dimensions=(9, 5, 1))
    >>> truth = np.linspace(0, 1, 45)
    >>> small = Theme(dpi=50, panel_width=1.0)
    >>> drawn = plot_comparison(grid, truth, {"FLARE++": truth + 0.1}, field="u", theme=small)
    >>> round(drawn.error_limits[1], 6), list(drawn.rectangles)[-1]
    (0.1, ('error', 'FLARE++', 'plan'))
    """
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
    canvas = make_canvas(mesh, n_tokens, association=association, mask=mask, crop=crop)
    reference = check_values("reference", reference, n_tokens, mask)
    predictions = {
        name: check_values(f"the prediction of {name!r}", values, n_tokens, mask)
        for name, values in predictions.items()
    }
    known = slice(None) if mask is None else np.asarray(mask)
    norm, measure = _TOKENS.format(association), None
    if weights is not None:
        norm, measure = _INTEGRAL, torch.from_numpy(np.asarray(weights)[known])[None]
    truth, *guesses = (
        torch.from_numpy(values[known])[None, :, None]
        for values in (reference, *predictions.values())
    )
    off = [relative_l2(guess, truth, token_weights=measure).item() for guess in guesses]
    errors = dict(zip(predictions, off, strict=True))
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
    stacked = len(views) == 1 and len(predictions) > 1
    n_columns = 1 + len(predictions) * (1 if stacked else 2)
    with _panels(theme, n_columns, [*views] * (1 + stacked), path) as page:
        above, below = _lay_out(page, pictures, views, headings, norm, stacked)
        page.title(title)
        shown = [values[canvas.shown] for values in fields.values()]
        page.bar(above, theme.fields(), limits, with_units(field, units), shown)
        label = with_units(f"error of {field}", units)
        page.bar(below, theme.errors(), bounds, label, list(seen.values()))
    names = tuple(view.camera.name for view in views)
    return Comparison(*page.drawn, page.rectangles, limits, bounds, errors, names)


def _panels(theme: Theme, n_columns: int, views: Sequence[View], path: Paths) -> Page:
    heights = [max(view.size[1], LOWEST * theme.dpi) for view in views]
    return Page(theme, [theme.panel_width * theme.dpi] * n_columns, heights, path)


def _lay_out(
    page: Page,
    pictures: Mapping[tuple[str, str, str], Pixels],
    views: Sequence[View],
    headings: Mapping[str, str],
    norm: str,
    stacked: bool,
) -> tuple[Sequence[Axes], Sequence[Axes]]:
    """Fill the panels; return the axes above the bars of the fields and of the errors."""
    order, n_models = ["reference", *headings], len(headings)
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
        centred = {"ha": "center", "va": "center", "linespacing": 1.35}
        page.blank(1, 0).text(0.5, 0.5, f"{_IN_A_CELL},\n{norm}", **centred)
        return page.axes[0], page.axes[1, 1:]
    page.note(f"{norm}\n{_CONVENTION}")
    return page.axes[-1, : n_models + 1], page.axes[-1, n_models + 1 :]


@dataclass(frozen=True)
class SurfaceFigure(PictureDrawing):
    """The figure, its `rectangles` by (column, camera), and its scale, None without values."""

    limits: Limits | None


def plot_surfaces(
    columns: Mapping[str, tuple[pv.PolyData, Float[np.ndarray, " N"] | None]],
    label: str,
    *,
    signed: bool = True,
    cameras: Sequence[str | Camera] | None = None,
    title: str | None = None,
    note: str | None = None,
    theme: Theme = LIGHT,
    path: Paths = None,
) -> SurfaceFigure:
    """Draw values on surfaces, views as rows, on one scale: diverging about 0, or from 0 on.

    Each column has a surface and values at its points or cells, (N,), or None for the bare surface.
    `label` says what the values are, with units; values that cannot be negative are not `signed`;
    `note` is at the end of the page. Other arguments are as in :func:`plot_comparison`.

    Examples
    --------
    >>> ball = pv.Icosphere(nsub=1)
    >>> small = Theme(dpi=50, panel_width=1.0)
    >>> drawn = plot_surfaces({"z": (ball, ball.points[:, 2])}, "z", cameras=["side"], theme=small)
    >>> list(drawn.rectangles), drawn.limits[0] == -drawn.limits[1]
    ([('z', 'side')], True)
    >>> size = {"|z|": (ball, abs(ball.points[:, 2]))}
    >>> plot_surfaces(size, "|z|", signed=False, cameras=["side"], theme=small).limits[0]
    0.0
    """
    if not columns:
        raise ValueError("columns is empty; give at least one surface by its heading")
    known = {
        name: check_values(name, values, len(values))
        for name, (_, values) in columns.items()
        if values is not None
    }
    limits = error_limits(known) if known else None
    colors, shading = theme.errors(), theme.error_shading
    if limits is not None and not signed:
        limits, colors, shading = (0.0, limits[1]), theme.fields(), theme.shading
    # One scale of lengths: all surfaces together give the views.
    cloud = pv.PolyData(np.concatenate([mesh.points for mesh, _ in columns.values()]))
    views = make_views(make_canvas(cloud, cloud.n_points), theme, cameras)
    with _panels(theme, len(columns), views, path) as page:
        for column, (name, (mesh, _)) in enumerate(columns.items()):
            values = known.get(name)
            canvas = make_canvas(mesh, mesh.n_points if values is None else len(values))
            with MeshRenderer(canvas, views, theme) as renderer:
                if values is None:
                    renderer.paint_plain(theme.surface)
                else:
                    renderer.paint(values, colors, limits, shading=shading)
                for row, view in enumerate(views):
                    key = name, view.camera.name
                    axis = page.picture(key, renderer.picture(view), row, column)
                    if row == 0:
                        page.head(axis, name)
                    if column == 0:
                        page.beside(axis, view.camera.name)
        page.title(title)
        page.note(note)
        if limits is not None:
            page.bar(page.axes[-1], colors, limits, label, list(known.values()))
    return SurfaceFigure(*page.drawn, page.rectangles, limits)


@dataclass(frozen=True)
class Exhibit:
    """One column of a gallery; `association` and `crop` are as in :func:`plot_comparison`."""

    title: str  #: name of the benchmark or run
    mesh: pv.DataSet
    target: Float[np.ndarray, " N"]  #: the field to predict
    target_label: str  #: its name, with units
    source: Float[np.ndarray, " N"] | None = None  #: the input field; None shows the geometry
    source_label: str = "geometry"
    association: str = "auto"
    camera: str | Camera = "three-quarter"  #: view of a surface
    crop: Crop | None = None
    case: str | None = None  #: written below the title


@dataclass(frozen=True)
class Gallery(PictureDrawing):
    """The figure, `rectangles` and colour limits by (title, ``input`` or ``target``).

    The limits of a geometry are None.
    """

    limits: dict[tuple[str, str], Limits | None]


def plot_gallery(
    exhibits: Sequence[Exhibit], *, theme: Theme = LIGHT, path: Paths = None
) -> Gallery:
    """Draw input above and target below for each benchmark, each on its own scale.

    Exhibits are the columns; `theme` and `path` are as in :func:`plot_comparison`.

    Examples
    --------
    >>> grid = pv.ImageData(dimensions=(9, 9, 1))
    >>> values = np.arange(81.0)
    >>> column = Exhibit("Darcy", grid, values, "u", source=values > 40, source_label="a")
    >>> sorted(plot_gallery([column], theme=Theme(dpi=50, panel_width=1.0)).rectangles)
    [('Darcy', 'input'), ('Darcy', 'target')]
    """
    titles = [exhibit.title for exhibit in exhibits]
    if not titles or len(set(titles)) < len(titles):
        raise ValueError(f"exhibits need at least one column, titles of their own; got {titles}")
    drawn = [_exhibited(exhibit, theme) for exhibit in exhibits]
    height = max(len(picture) for column in drawn for picture, *_ in column.values())
    limits, named = {}, any(exhibit.case is not None for exhibit in exhibits)
    widths = [theme.panel_width * theme.dpi] * len(drawn)
    with Page(theme, widths, [height, height], path) as page:
        for column, (exhibit, entries) in enumerate(zip(exhibits, drawn, strict=True)):
            for row, (kind, (picture, label, scale, seen)) in enumerate(entries.items()):
                key = exhibit.title, kind
                limits[key] = scale
                axis = page.picture(key, picture, row, column, low=True)
                if scale is None:
                    page.fit(axis.set_xlabel(label), page.widths[column])
                else:
                    page.bar([axis], theme.fields(), scale, label, seen)
            case = "" if exhibit.case is None else f"case {exhibit.case}"
            page.head(page.axes[0, column], exhibit.title, f"\n{case}" if named else "")
        for axis, kind in zip(page.axes[:, 0], ("input", "target"), strict=True):
            page.beside(axis, kind)
    return Gallery(*page.drawn, page.rectangles, limits)


def _exhibited(
    exhibit: Exhibit, theme: Theme
) -> dict[str, tuple[Pixels, str, Limits | None, list[np.ndarray]]]:
    """Return picture, label, limits and values shown of ``input`` and ``target``."""
    n_tokens = len(exhibit.target)
    canvas = make_canvas(exhibit.mesh, n_tokens, association=exhibit.association, crop=exhibit.crop)
    cameras = None if canvas.flat else [exhibit.camera]
    (view,) = make_views(canvas, theme, cameras, exhibit.crop, tallest=1.0)
    entries = {}
    with MeshRenderer(canvas, [view], theme) as renderer:
        for name, values, label in (
            ("input", exhibit.source, exhibit.source_label),
            ("target", exhibit.target, exhibit.target_label),
        ):
            limits, seen = None, []
            if values is None:
                room = view.size[0] * view.size[1] / max(1, canvas.shown.sum())
                renderer.paint_plain(theme.surface, theme.edges if room > _ROOM_FOR_EDGES else None)
            else:
                values = np.asarray(values)
                values = values.astype(float) if values.dtype == bool else values
                values = check_values(f"{name} of {exhibit.title}", values, n_tokens)
                seen = [values[canvas.shown]]
                limits = field_limits(*seen)
                renderer.paint(values, theme.fields(), limits)
            entries[name] = (renderer.picture(view), label, limits, seen)
    return entries
