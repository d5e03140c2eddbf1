"""How figures look, and pages in Matplotlib's constrained layout with pictures of exact size."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import matplotlib.style
import numpy as np
from jaxtyping import UInt8
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, LinearSegmentedColormap, Normalize, to_rgb
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator, ScalarFormatter
from PIL import Image

from ..files import whole_file
from ..texts import printable

Paths = str | os.PathLike | Sequence[str | os.PathLike] | None
Pixels = UInt8[np.ndarray, "height width 3"]
Rectangle = tuple[int, int, int, int]
FORMATS = (".png", ".pdf", ".svg")
# Odd numbers of entries: the middle of a scale is a colour of its own, not the seam of two.
N_COLORS = 257
_OKABE_ITO = "#0072b2 #d55e00 #009e73 #cc79a7 #e69f00 #56b4e9 #000000"  # colour-blind-safe

_PAD = 0.06  # inches around everything
LOWEST = 0.66  # inches of a row of pictures, as much as the words beside it need
_WIDEST_BAR, _BAR_HEIGHT = 3.6, 0.09  # inches
_INCHES_PER_TICK = 0.4
_PLAIN_POWERS = (-3, 5)  # numbers beyond these powers of ten get a common factor
_SMALLEST_FONT = 5.5
_ROUNDS = 4  # of the layout at most; each leaves about 5 % of what the sizes are off
_WITHOUT_DATE = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}


@dataclass(frozen=True)
class Theme:
    """How figures look; pass another one instead of style arguments.

    Examples
    --------
    >>> DARK.background, LIGHT.errors()(0.5) == DARK.errors()(0.5)
    ('#14171c', False)
    """

    background: str = "#ffffff"
    foreground: str = "#1a1a1a"  #: text and lines
    no_data: str = "#b4b4b4"  #: masked cells, voids, the outside of a flat domain
    surface: str = "#e4e7ec"  #: geometry that carries no field
    edges: str = "#5a6270"  #: of that geometry
    field_map: str = "viridis"  #: of Matplotlib; safe in greyscale and for the colour-blind
    #: Of errors from the negative to the positive limit: an odd number, the middle one neutral.
    error_colors: tuple[str, ...] = ("#0b3a73", "#3b82bd", "#f7f7f7", "#cb4b45", "#6b0d1e")
    #: Of weights above 0; a weight of 0 has the colour of the surface.
    weight_colors: tuple[str, ...] = ("#8cbce0", "#4a84c4", "#4250a6", "#4a1486")
    cycle: tuple[str, ...] = tuple(_OKABE_ITO.split())  #: curves and points
    font: str = "DejaVu Sans"
    font_size: float = 8.0  #: points of labels; titles have one more
    dpi: int = 200
    panel_width: float = 2.4  #: inches
    shading: float = 0.3  #: share of the light on 3-D surfaces that depends on direction
    error_shading: float = 0.12  #: less, so that no error is never taken for no data

    def __post_init__(self) -> None:
        if not (self.dpi > 0 and self.panel_width > 0):
            raise ValueError(f"dpi is {self.dpi}, panel_width {self.panel_width}; both must be > 0")

    def fields(self) -> Colormap:
        """Return the colour map of fields, with ``N_COLORS`` entries."""
        return matplotlib.colormaps[self.field_map].resampled(N_COLORS)

    def errors(self) -> Colormap:
        """Return the colour map of signed errors, neutral in the middle."""
        return LinearSegmentedColormap.from_list("errors", list(self.error_colors), N=N_COLORS)

    def weights(self) -> Colormap:
        """Return the colour map of non-negative weights, from the surface's colour to full ones."""
        colors = [self.surface, *self.weight_colors]
        return LinearSegmentedColormap.from_list("weights", colors, N=N_COLORS)

    def settings(self) -> dict[str, object]:
        """Return the settings of Matplotlib that differ from its defaults."""
        inked = ("axes.edgecolor", "axes.labelcolor", "text.color", "xtick.color", "ytick.color")
        thin = ("axes.linewidth", "xtick.major.width", "ytick.major.width")
        return {
            **dict.fromkeys(inked, self.foreground),
            **dict.fromkeys(("axes.facecolor", "figure.facecolor"), self.background),
            **dict.fromkeys(thin, 0.6),
            **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
            **dict.fromkeys(("figure.dpi", "savefig.dpi"), self.dpi),
            **dict.fromkeys(("font.size", "figure.titlesize"), self.font_size),
            **dict.fromkeys(("axes.titlesize", "legend.title_fontsize"), self.font_size + 1),
            "legend.fontsize": self.font_size - 1,
            "font.family": self.font,
            "axes.prop_cycle": matplotlib.cycler(color=list(self.line_colors())),
            "lines.linewidth": 1.3,
            "svg.hashsalt": "physicsnemo_flarepp",
            "svg.fonttype": "none",
            "pdf.fonttype": 42,
        }

    def line_colors(self) -> tuple[str, ...]:
        """Return the cycle without colours that vanish on the background."""
        page = np.array(to_rgb(self.background))
        return tuple(c for c in self.cycle if np.abs(np.array(to_rgb(c)) - page).max() > 0.3)


LIGHT = Theme()
DARK = Theme(
    background="#14171c",
    foreground="#e8e8e8",
    no_data="#5c6068",
    surface="#3a3f47",
    edges="#9aa3b0",
    weight_colors=("#4c6fa5", "#5aa6d8", "#a5dcf0", "#f4fbff"),
    error_colors=("#c6e3f7", "#4a9bd0", "#1f2126", "#e2763c", "#ffd2b0"),
)


@dataclass(frozen=True)
class Drawing:
    """A page (height, width, 3) and the files written; each kind adds the numbers that it shows."""

    image: Pixels
    paths: tuple[Path, ...]


@dataclass(frozen=True)
class PictureDrawing(Drawing):
    """A figure of meshes, with (left, top, width, height) of each picture in the image."""

    rectangles: dict[tuple, Rectangle]

    def panel(self, *key: str | int) -> Pixels:
        """Return the pixels of the first picture whose key begins like this."""
        for known, (left, top, width, height) in self.rectangles.items():
            if known[: len(key)] == key:
                return self.image[top : top + height, left : left + width]
        raise ValueError(f"there is no panel {key}; there are {list(self.rectangles)}")


def with_units(name: str, units: str | None) -> str:
    """Return the label of a quantity: ``p [Pa]``, or its name alone if it has no units."""
    return f"{name} [{units}]" if units else name


def plain_label(name: str) -> str:
    """Return a name from a file as a label that shows it as it is, dollars included."""
    return printable(name).replace("$", r"\$")


def padded(picture: Pixels, width: int, height: int, theme: Theme, *, low: bool = False) -> Pixels:
    """Return a picture in the middle of a larger one, or at its lower edge if `low`."""
    page = np.round(255 * np.array(to_rgb(theme.background))).astype(np.uint8)
    whole = np.tile(page, (height, width, 1))
    left, top = _corner(picture, width, height, low)
    whole[top : top + picture.shape[0], left : left + picture.shape[1]] = picture
    return whole


def _corner(picture: Pixels, width: int, height: int, low: bool) -> tuple[int, int]:
    above = height - picture.shape[0]
    return (width - picture.shape[1]) // 2, above if low else above // 2


class Page:
    """A grid of axes of given sizes in pixels, as large as its words need.

    Within its context figures are drawn by the theme and Matplotlib's defaults, whatever the user
    has set; at its end the page is `drawn`: an image, and the files written.
    """

    def __init__(
        self, theme: Theme, widths: Sequence[float], heights: Sequence[float], path: Paths = None
    ) -> None:
        paths = () if path is None else [path] if isinstance(path, str | os.PathLike) else path
        self.paths = tuple(map(Path, paths))
        for target in self.paths:
            if target.suffix not in FORMATS:
                raise ValueError(f"path {str(target)!r} must end in one of {FORMATS}")
        self.theme = theme
        self.widths, self.heights = ([round(x) for x in sizes] for sizes in (widths, heights))

    def __enter__(self) -> Self:
        self._style = matplotlib.style.context(["default", self.theme.settings()])
        self._style.__enter__()
        theme = self.theme
        room = 4 * theme.dpi  # for words; the first layout must not squeeze the axes to nothing
        size = [(sum(lengths) + room) / theme.dpi for lengths in (self.widths, self.heights)]
        layout = ConstrainedLayoutEngine(w_pad=_PAD, h_pad=_PAD, wspace=0, hspace=0)
        self.figure = Figure(figsize=size, dpi=theme.dpi, layout=layout)
        self.canvas = FigureCanvasAgg(self.figure)
        ratios = {"width_ratios": self.widths, "height_ratios": self.heights}
        shape = len(self.heights), len(self.widths)
        self.axes = self.figure.subplots(*shape, squeeze=False, gridspec_kw=ratios)
        self.rectangles: dict[tuple, Rectangle] = {}
        self._pictures: list[tuple[tuple, Pixels, int, int, bool]] = []
        self._lines: list[Text] = []  # above and below all axes, from the left of the first
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        try:
            if kind is None:
                self.drawn = self._finish()
        finally:
            self._style.__exit__(None, None, None)

    def picture(
        self, key: tuple, picture: Pixels, row: int, column: int, *, low: bool = False
    ) -> Axes:
        """Show a picture pixel for pixel, in the middle of its axes or at their lower edge."""
        self._pictures.append((key, picture, row, column, low))
        return self.blank(row, column)

    def blank(self, row: int, column: int) -> Axes:
        """Return axes without ticks and frame."""
        axis = self.axes[row, column]
        axis.set(xticks=[], yticks=[])
        axis.spines[:].set_visible(False)
        return axis

    def fit(self, text: Text, room: float, tail: str = "") -> None:
        """Shrink a text to `room` pixels; if that is not enough, cut its words but not its tail."""
        words = text.get_text().removesuffix(tail)
        length = "height" if text.get_rotation() == 90 else "width"

        def too_long() -> bool:
            return getattr(text.get_window_extent(self.canvas.get_renderer()), length) > room

        # Step by step: hinted glyphs do not shrink in proportion to their size.
        while too_long() and text.get_size() > _SMALLEST_FONT:
            text.set_size(max(_SMALLEST_FONT, 0.97 * text.get_size()))
        while too_long() and len(words) > 1:
            words = words[:-1]
            text.set_text(f"{words}…{tail}")

    def head(self, axis: Axes, words: str, tail: str = "", size: float = 1.0) -> None:
        """Write words above axes, `size` points larger than labels."""
        title = axis.set_title(words + tail, size=self.theme.font_size + size)
        self.fit(title, self._width_of([axis]), tail)

    def beside(self, axis: Axes, words: str) -> None:
        """Write words upright at the left of axes."""
        row = np.argwhere(self.axes == axis)[0, 0]
        self.fit(axis.set_ylabel(words), self.heights[row])

    def title(self, words: str | None) -> None:
        """Write the first line of the page."""
        if words is not None:
            self._line(self.figure.suptitle(words, ha="left"))

    def note(self, words: str | None) -> None:
        """Write the last lines of the page."""
        if words is not None:
            size = self.theme.font_size - 1
            self._line(self.figure.supxlabel(words, ha="left", size=size))

    def _line(self, text: Text) -> None:
        self._lines.append(text)
        self.fit(text, sum(self.widths))

    def key(self, lines: Mapping[str, Mapping[str, Any]], title: str | None) -> None:
        """Write the title and, a line each, names with samples of their curves above all axes."""
        samples = [Line2D([], [], **style) for style in lines.values()]
        place = {"loc": "outside upper left", "alignment": "left", "borderpad": 0}
        legend = self.figure.legend(samples, lines, title=title, **place)
        for text in [legend.get_title(), *legend.get_texts()]:
            self.fit(text, sum(self.widths))

    def _width_of(self, axes: Sequence[Axes]) -> int:
        columns = {int(np.argwhere(self.axes == axis)[0, 1]) for axis in axes}
        return sum(self.widths[column] for column in columns)

    def bar(
        self,
        axes: Sequence[Axes],
        colors: Colormap,
        limits: tuple[float, float],
        label: str,
        shown: Sequence[np.ndarray] = (),
    ) -> None:
        """Draw a colour bar below axes; its ends are pointed where values `shown` lie beyond."""
        below = any(bool(values.min() < limits[0]) for values in shown)
        above = any(bool(values.max() > limits[1]) for values in shown)
        room = self._width_of(axes)
        inches = min(0.9 * room / self.theme.dpi, _WIDEST_BAR)
        most = max(1, int(inches / _INCHES_PER_TICK))
        numbers = ScalarFormatter(useMathText=True)
        numbers.set_powerlimits(_PLAIN_POWERS)
        bar = self.figure.colorbar(
            ScalarMappable(Normalize(*limits), colors),
            ax=list(axes),
            location="bottom",
            shrink=inches * self.theme.dpi / room,
            aspect=inches / _BAR_HEIGHT,
            extend=["neither", "min", "max", "both"][below + 2 * above],
            extendfrac=0.03,
            ticks=MaxNLocator(most, steps=[1, 2, 5, 10], min_n_ticks=1),
            format=numbers,
        )
        bar.outline.set_linewidth(0.5)
        bar.ax.tick_params(length=2.5, pad=1.5, labelsize=self.theme.font_size - 0.5)
        # What the numbers have in common stands in the label: beside the bar it would touch them.
        ticks = bar.ax.xaxis
        ticks.get_offset_text().set_visible(False)
        numbers.set_locs(ticks.get_majorticklocs())
        common = f"  ({numbers.get_offset()})" if numbers.get_offset() else ""
        bar.set_label(label + common, labelpad=2.5)
        start = label.rfind(" [") if label.endswith("]") else len(label)
        self.fit(ticks.label, room, label[start:] + common)

    def _settle(self) -> None:
        """Make the page as large as it must be, then put the axes on whole pixels."""
        figure, dpi = self.figure, self.theme.dpi
        wanted = np.array([sum(self.widths), sum(self.heights)])
        # An axis that shows nothing has a box of its own to be found in every layout.
        for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
            axis.set_visible(bool(axis.label.get_text() or len(axis.get_ticklocs())))
        layout = figure.get_layout_engine()
        for _ in range(_ROUNDS):
            layout.execute(figure)  # without a drawing, which takes half as long again
            found = [sum(axis.get_window_extent().width for axis in self.axes[0])]
            found += [sum(axis.get_window_extent().height for axis in self.axes[:, 0])]
            pixels = figure.get_size_inches() * dpi + wanted - found
            size = np.ceil(np.round(pixels, 2)) / dpi
            if np.array_equal(size, figure.get_size_inches()):
                break
            figure.set_size_inches(size)
        else:
            layout.execute(figure)
        figure.set_layout_engine("none")
        page = np.round(figure.get_size_inches() * dpi)
        for (row, column), axis in np.ndenumerate(self.axes):
            box = axis.get_window_extent()
            size = self.widths[column], self.heights[row]
            axis.set_position((*(np.round([box.x0, box.y0]) / page), *(size / page)))
        for line in self._lines:
            line.set_x(self.axes[0, 0].get_position().x0)
        for key, picture, row, column, low in self._pictures:
            axis, size = self.axes[row, column], (self.widths[column], self.heights[row])
            whole = padded(picture, *size, self.theme, low=low)
            axis.imshow(whole, interpolation="none", aspect="auto")
            box, (left, top) = axis.get_window_extent(), _corner(picture, *size, low)
            corner = round(box.x0) + left, round(page[1]) - round(box.y1) + top
            self.rectangles[key] = (*corner, picture.shape[1], picture.shape[0])

    def _finish(self) -> tuple[Pixels, tuple[Path, ...]]:
        """Return the page as an image and write it to files."""
        self._settle()
        self.canvas.draw()
        pixels = np.asarray(self.canvas.buffer_rgba())[..., :3].copy()
        for target in self.paths:
            target.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(target) as draft:
                if target.suffix == ".png":
                    image = Image.fromarray(pixels)
                    image.save(draft, dpi=(self.theme.dpi, self.theme.dpi))
                else:  # dates would make two runs differ
                    self.figure.savefig(draft, metadata=_WITHOUT_DATE[target.suffix])
        return pixels, self.paths
