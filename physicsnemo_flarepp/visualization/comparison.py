"""Reference, predictions and errors of one case, side by side on shared scales."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyvista as pv
from jaxtyping import Bool, Float, UInt8

from .cameras import CAR_CAMERAS, PLAN, Camera, resolve_cameras
from .rendering import MeshRenderer, require_rendering
from .scales import Limits, check_values, error_limits, field_limits, outside, relative_l2
from .sheets import BAR_STRIP, Paths, Sheet, check_paths, styled, with_units
from .surfaces import Canvas, Crop, make_canvas
from .theme import LIGHT, Theme

# Inches between panels, around the page, and for a line of text.
GAP = 0.10
MARGIN = 0.10
LINE = 0.21
_SIDE_MARGIN_3D = 0.02  # of the extent, around surfaces
_WIDEST_BAR = 3.6
_CONVENTION = """error = prediction − reference,
one scale for all models,
limits: 99.5th percentile
of the largest |error|"""


@dataclass(frozen=True)
class Panel:
    """One picture on the page.

    Parameters
    ----------
    kind : str
        ``field`` or ``error``.
    name : str
        ``reference`` or the name of the prediction.
    camera : str
        Name of the view.
    row, column : int
        Place in the grid of panels.
    rectangle : tuple of int
        (left, top, width, height) in pixels of the image.
    """

    kind: str
    name: str
    camera: str
    row: int
    column: int
    rectangle: tuple[int, int, int, int]


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
        Error of each prediction over all tokens with data, as a fraction.
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
        """Give the pixels of one panel; the first view by default."""
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
    title: str | None = None,
    theme: Theme = LIGHT,
    path: Paths = None,
) -> Comparison:
    """Draw reference and predictions on one scale, and their signed errors on another.

    The paper's conventions: errors are prediction minus reference on a diverging scale centred
    at 0, with limits at the 99.5th percentile of the larger model's error, so that a smaller error
    is an emptier panel; grey where there is no data; true aspect ratio. Limits are those of the
    tokens in the picture, relative L2 errors those of all tokens with data.

    With one view the fields are above and the errors below. With several views each is a row, and
    fields and errors are columns.

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
    (0.1, [('field', 0, 0), ('field', 0, 1), ('error', 1, 1)])
    """
    paths = check_paths(path)
    if not predictions:
        raise ValueError("predictions is empty; give at least one array by the name of its model")
    if "reference" in predictions:
        raise ValueError("a prediction is named 'reference'; give it the name of its model")
    n_tokens = np.shape(reference)[0] if np.ndim(reference) else 0
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
    errors = {n: relative_l2(values[known], reference[known]) for n, values in predictions.items()}

    views = _views(canvas, cameras, crop)
    pictures = _render(canvas, fields, differences, limits, bounds, views, theme)
    with styled(theme):
        page = _Page(views, list(predictions), title, theme)
        page.place(pictures, errors)
        page.bars(
            (limits, with_units(field, units)),
            outside(limits, *(values[shown] for values in fields.values())),
            (bounds, with_units(f"error of {field}", units)),
            outside(bounds, *in_view.values()),
        )
        image, paths = page.sheet.finish(paths)
    names = tuple(view.camera.name for view in views)
    return Comparison(image, tuple(page.panels), limits, bounds, errors, names, paths)


@dataclass(frozen=True)
class _View:
    camera: Camera
    window: tuple[float, float, float, float]
    span: tuple[float, float]

    def pixels(self, per_unit: float) -> tuple[int, int]:
        return tuple(max(1, round(length * per_unit)) for length in self.span)


def _views(
    canvas: Canvas, cameras: Sequence[str | Camera] | None, crop: Crop | None
) -> list[_View]:
    """Give each camera with the window that shows everything, or the crop."""
    if canvas.flat:
        if cameras is not None:
            raise ValueError(f"cameras is {cameras}, but the mesh is planar and has one view")
        chosen = (PLAN,)
    else:
        chosen = resolve_cameras(CAR_CAMERAS if cameras is None else cameras)
    views = []
    for camera in chosen:
        extent = camera.extent(canvas.faces.points)
        if canvas.hidden is not None:
            others = camera.extent(canvas.hidden.points)
            extent = np.stack(
                [np.minimum(extent, others)[:, 0], np.maximum(extent, others)[:, 1]], 1
            )
        margin = 0.0 if canvas.flat else _SIDE_MARGIN_3D * np.ptp(extent[:2], axis=1).max()
        window = (*(extent[0] + (-margin, margin)), *(extent[1] + (-margin, margin)))
        left, right, bottom, top = map(float, crop or window)
        views.append(_View(camera, (left, right, bottom, top), (right - left, top - bottom)))
    return views


def _per_unit(views: Sequence[_View], theme: Theme) -> float:
    """Give pixels per unit of length: the widest view fills a panel, all share one scale."""
    return theme.panel_width * theme.dpi / max(view.span[0] for view in views)


def _render(
    canvas: Canvas,
    fields: Mapping[str, np.ndarray],
    differences: Mapping[str, np.ndarray],
    limits: Limits,
    bounds: Limits,
    views: Sequence[_View],
    theme: Theme,
) -> dict[tuple[str, str, str], np.ndarray]:
    """Give the picture of every (kind, name, camera)."""
    require_rendering()
    per_unit = _per_unit(views, theme)
    jobs = [("field", name, values, theme.fields(), limits) for name, values in fields.items()]
    jobs += [("error", n, values, theme.errors(), bounds) for n, values in differences.items()]
    pictures = {}
    size = _point_size(canvas, views, per_unit)
    renderer = MeshRenderer(
        canvas.faces, theme, flat=canvas.flat, hidden=canvas.hidden, point_size=size
    )
    with renderer:
        for kind, name, values, colors, scale in jobs:
            renderer.paint(canvas.values(values), canvas.association, colors, scale)
            for view in views:
                pictures[kind, name, view.camera.name] = renderer.picture(
                    view.camera, view.window, view.pixels(per_unit)
                )
    return pictures


def _point_size(canvas: Canvas, views: Sequence[_View], per_unit: float) -> float:
    """Give bare points about the size at which they close the surface."""
    area = max(view.span[0] * view.span[1] for view in views) * per_unit**2
    # Half of the points face the viewer.
    return float(np.clip(1.6 * np.sqrt(area / max(1, canvas.faces.n_points / 2)), 2.0, 12.0))


class _Page:
    """Places panels, titles and colour bars; one view goes in two rows, more in one row each."""

    def __init__(
        self, views: Sequence[_View], models: list[str], title: str | None, theme: Theme
    ) -> None:
        self.views, self.models, self.theme, self.title = views, models, theme, title
        self.panels: list[Panel] = []
        inch = theme.dpi
        self.stacked = len(views) == 1
        self.gap, self.line = round(GAP * inch), round(LINE * inch)
        self.strip = round((BAR_STRIP + GAP) * inch)
        self.per_unit = _per_unit(views, theme)
        self.cell = round(theme.panel_width * inch)
        self.left = round(MARGIN * inch) + (0 if self.stacked else self.line)
        self.top = round(MARGIN * inch) + (0 if title is None else self.line)
        self.heights = [view.pixels(self.per_unit)[1] for view in views]
        n_columns = 1 + len(models) if self.stacked else 1 + 2 * len(models)
        width = self.left + n_columns * (self.cell + self.gap) - self.gap + round(MARGIN * inch)
        if self.stacked:
            height = self.top + 2 * (self.line + self.heights[0] + self.strip)
        else:
            height = self.top + self.line + sum(self.heights) + self.gap * len(views) + self.strip
        self.sheet = Sheet(width, height, theme)
        if title is not None:
            middle = self.left, self.top - self.line / 2
            self.sheet.text(title, *middle, room=width - 2 * self.left, align="left")

    def _column(self, column: int) -> int:
        return self.left + column * (self.cell + self.gap)

    def _rows(self) -> list[int]:
        """Give the top of each row of panels."""
        first = self.top + self.line
        if self.stacked:
            return [first, first + self.heights[0] + self.strip + self.line]
        return [first + sum(self.heights[:i]) + self.gap * i for i in range(len(self.views))]

    def place(self, pictures: Mapping[tuple[str, str, str], np.ndarray], errors: dict) -> None:
        """Place the pictures with their titles."""
        order = ["reference", *self.models]
        rows = self._rows()
        for (kind, name, camera), picture in pictures.items():
            number = [view.camera.name for view in self.views].index(camera)
            column = order.index(name) + (
                0 if self.stacked or kind == "field" else len(self.models)
            )
            row = int(kind == "error") if self.stacked else number
            height, width = picture.shape[:2]
            left, top = self._column(column) + (self.cell - width) // 2, rows[row]
            self.sheet.image(picture, left, top)
            self.panels.append(Panel(kind, name, camera, row, column, (left, top, width, height)))
            if number == 0:
                words = name if kind == "field" else f"{name} error, rel. L2 {errors[name]:.2%}"
                self.sheet.text(
                    words,
                    self._column(column) + self.cell / 2,
                    top - self.line / 2,
                    room=self.cell,
                    size=self.theme.font_size + 1,
                )
        if not self.stacked:
            for view, top, height in zip(self.views, rows, self.heights, strict=True):
                self.sheet.text(
                    view.camera.name,
                    self.left - self.line / 2,
                    top + height / 2,
                    room=height + self.gap,
                    vertical=True,
                )
        else:
            self.sheet.text(
                _CONVENTION,
                self._column(0) + self.cell / 2,
                rows[1] + self.heights[0] / 2,
                room=0.95 * self.cell,
            )

    def bars(
        self,
        field: tuple[Limits, str],
        field_beyond: tuple[bool, bool],
        error: tuple[Limits, str],
        error_beyond: tuple[bool, bool],
    ) -> None:
        """Draw the two scales below what they belong to."""
        rows, n = self._rows(), len(self.models)
        if self.stacked:
            places = [(0, n, rows[0] + self.heights[0]), (1, n, rows[1] + self.heights[0])]
        else:
            bottom = rows[-1] + self.heights[-1]
            places = [(0, n, bottom), (n + 1, 2 * n, bottom)]
        scales = [(self.theme.fields(), field, field_beyond)]
        scales.append((self.theme.errors(), error, error_beyond))
        for (first, last, above), (colors, (limits, label), beyond) in zip(
            places, scales, strict=True
        ):
            left, right = self._column(first), self._column(last) + self.cell
            width = min(0.9 * (right - left), _WIDEST_BAR * self.theme.dpi)
            start = (left + right - width) / 2
            self.sheet.bar(colors, limits, label, start, above + self.gap, width, beyond=beyond)
