"""Figures laid out in whole pixels: pictures keep theirs, text stays crisp, nothing overlaps."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import matplotlib.style
import numpy as np
from jaxtyping import UInt8
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, MaxNLocator
from PIL import Image

from ..files import whole_file
from .files import Paths, check_paths
from .theme import Theme

# Height of a colour bar, of its ticks and of its label, in inches.
BAR_HEIGHT = 0.09
BAR_STRIP = 0.52
_SMALLEST_FONT = 5.0


def styled(theme: Theme) -> AbstractContextManager:
    """Draw by the theme and Matplotlib's defaults, whatever the user has set."""
    return matplotlib.style.context(["default", theme.settings()])


def with_units(name: str, units: str | None) -> str:
    """Return the label of a quantity.

    Examples
    --------
    >>> with_units("p", "Pa"), with_units("Mach", None)
    ('p [Pa]', 'Mach')
    """
    return f"{name} [{units}]" if units else name


def _split_units(label: str) -> tuple[str, str]:
    """Take a label of :func:`with_units` apart: units stay where a name must be cut."""
    start = label.rfind(" [") if label.endswith("]") else -1
    return (label, "") if start < 0 else (label[:start], label[start:])


def decimal_exponent(limits: tuple[float, float]) -> int:
    """Return the power of ten to take out of tick labels: 0 where plain numbers are short enough.

    Examples
    --------
    >>> decimal_exponent((0, 2.5e-4)), decimal_exponent((-300, 20)), decimal_exponent((0, 4e6))
    (-4, 0, 6)
    """
    size = max(abs(limits[0]), abs(limits[1]))
    if size == 0 or 1e-2 <= size < 1e5:
        return 0
    return int(np.floor(np.log10(size)))


def common_offset(limits: tuple[float, float]) -> float:
    """Return the number to take off tick labels: 0 unless they would differ in late digits only.

    Examples
    --------
    >>> common_offset((101325.1, 101326.2)), common_offset((990.0, 1010.0))
    (101320.0, 0.0)
    """
    span = limits[1] - limits[0]
    if span >= 1e-3 * max(abs(limits[0]), abs(limits[1])):
        return 0.0
    power = int(np.ceil(np.log10(span)))
    return round(float(np.floor(limits[0] / 10.0**power)) * 10.0**power, max(0, -power))


def tick_labels(ticks: Sequence[float], exponent: int, offset: float = 0.0) -> list[str]:
    """Return the labels of evenly spaced ticks, with the digits that their distance needs.

    Examples
    --------
    >>> tick_labels([0.0, 2.5, 5.0], 0), tick_labels([101325.2, 101325.4], 0, 101320.0)
    (['0.0', '2.5', '5.0'], ['5.2', '5.4'])
    """
    values = [(tick - offset) / 10.0**exponent for tick in ticks]
    if len(values) < 2:
        words = [f"{value:.4g}" for value in values]
    else:
        step = values[1] - values[0]
        steps = (
            abs(step * 10.0**n - round(step * 10.0**n)) < 1e-3 * step * 10.0**n for n in range(9)
        )
        digits = next((n for n, whole in enumerate(steps) if whole), 9)
        words = [f"{round(value, digits) + 0.0:.{digits}f}" for value in values]
    return [word.replace("-", "\N{MINUS SIGN}") for word in words]


def _inches_of(label: str, font_size: float) -> float:
    """Return the width of a number in the default font, where a digit is 0.64 of its size."""
    ems = {"\N{MINUS SIGN}": 0.84, ".": 0.32}
    return sum(ems.get(sign, 0.64) for sign in label) * font_size / 72


def ticks_that_fit(
    limits: tuple[float, float],
    exponent: int,
    inches: float,
    *,
    offset: float = 0.0,
    font_size: float = 7.5,
) -> list[float]:
    """Return round numbers within `limits` whose labels fit side by side.

    Examples
    --------
    >>> [round(t, 6) for t in ticks_that_fit((0, 0.0145), 0, 2.0)]
    [0.0, 0.005, 0.01]
    """
    span = limits[1] - limits[0]
    found = [float(limit) for limit in limits]
    for most in range(7, 0, -1):
        ticks = MaxNLocator(most, steps=[1, 2, 2.5, 5, 10]).tick_values(*limits)
        slack = 1e-9 * span
        ticks = [float(t) for t in ticks if limits[0] - slack <= t <= limits[1] + slack]
        found = ticks or found
        widths = [_inches_of(label, font_size) for label in tick_labels(found, exponent, offset)]
        # Neighbours stay a digit and a half apart.
        apart = _inches_of("00", font_size) * 0.75
        if all(
            (one + other) / 2 + apart <= inches * (right - left) / span
            for one, other, left, right in zip(widths, widths[1:], found, found[1:], strict=False)
        ):
            return found
    return found[:1]


class Sheet:
    """A page on which things are placed by pixels from its upper left corner.

    Use within :func:`styled`.

    Parameters
    ----------
    width, height : int
        Size in pixels.
    theme : Theme
        Look of the page.
    """

    def __init__(self, width: int, height: int, theme: Theme) -> None:
        self.width, self.height, self.theme = width, height, theme
        self.figure = Figure(figsize=(width / theme.dpi, height / theme.dpi), dpi=theme.dpi)
        self.canvas = FigureCanvasAgg(self.figure)

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        """Add axes in this rectangle."""
        return self.figure.add_axes(
            (
                left / self.width,
                1 - (top + height) / self.height,
                width / self.width,
                height / self.height,
            )
        )

    def image(self, pixels: UInt8[np.ndarray, "h w 3"], left: int, top: int) -> None:
        """Place a picture, pixel for pixel."""
        height, width = pixels.shape[:2]
        axes = self.axes(left, top, width, height)
        axes.set_axis_off()
        axes.imshow(pixels, interpolation="none", aspect="auto")

    def text(
        self,
        words: str,
        x: float,
        y: float,
        *,
        room: float,
        size: float = 0.0,
        align: str = "center",
        valign: str = "center",
        vertical: bool = False,
        tail: str = "",
    ) -> None:
        """Write words and their tail at a place.

        What needs more than `room` pixels gets a smaller font. Where that is not enough the words
        are cut, never the tail.
        """
        artist = self.figure.text(
            x / self.width,
            1 - y / self.height,
            words + tail,
            size=size or self.theme.font_size,
            ha=align,
            va=valign,
            rotation=90 if vertical else 0,
            linespacing=1.35,
        )

        def needed() -> float:
            box = artist.get_window_extent(self.canvas.get_renderer())
            return box.height if vertical else box.width

        # Step by step: hinted glyphs do not shrink in proportion to their size.
        while needed() > room and artist.get_size() > _SMALLEST_FONT:
            artist.set_size(max(_SMALLEST_FONT, 0.97 * artist.get_size()))
        while needed() > room and len(words) > 1:
            words = words[:-1]
            artist.set_text(f"{words}…{tail}")

    def bar(
        self,
        colors: Colormap,
        limits: tuple[float, float],
        label: str,
        left: float,
        top: float,
        width: float,
        *,
        beyond: tuple[bool, bool] = (False, False),
        room: float | None = None,
    ) -> None:
        """Draw a horizontal colour bar with its label below; `BAR_STRIP` inches high in all.

        Parameters
        ----------
        colors, limits
            The scale.
        label : str
            Quantity and units.
        left, top, width : float
            Place in pixels.
        beyond : tuple of bool
            Whether values lie below and above the limits: pointed ends say so.
        room : float, optional
            Pixels that the label may take, centred below the bar; a tenth more than the bar by
            default.
        """
        axes = self.axes(left, top, width, BAR_HEIGHT * self.theme.dpi)
        extend = {(0, 0): "neither", (1, 0): "min", (0, 1): "max", (1, 1): "both"}[
            tuple(map(int, beyond))
        ]
        offset = common_offset(limits)
        exponent = decimal_exponent((limits[0] - offset, limits[1] - offset))
        size = self.theme.font_size - 0.5
        ticks = ticks_that_fit(
            limits, exponent, width / self.theme.dpi, offset=offset, font_size=size
        )
        bar = self.figure.colorbar(
            ScalarMappable(Normalize(*limits), colors),
            cax=axes,
            orientation="horizontal",
            extend=extend,
            extendfrac=0.03,
            ticks=FixedLocator(ticks),
            format=FixedFormatter(tick_labels(ticks, exponent, offset)),
        )
        bar.minorticks_off()
        bar.outline.set_linewidth(0.5)
        length, pad, gap = 2.5, 1.5, 2.0  # points
        axes.tick_params(length=length, pad=pad, labelsize=size)
        below = BAR_HEIGHT + (length + pad + 1.2 * size + gap + 0.85 * self.theme.font_size) / 72
        name, units = _split_units(label)
        tail = units + (f"  (×10$^{{{exponent}}}$)" if exponent else "")
        sign = "\N{MINUS SIGN}" if offset < 0 else "+"
        tail += f"  ({sign}{abs(offset):.12g})" if offset else ""
        self.text(
            name,
            left + width / 2,
            top + below * self.theme.dpi,
            room=1.1 * width if room is None else room,
            valign="baseline",
            tail=tail,
        )

    def pixels(self) -> UInt8[np.ndarray, "height width 3"]:
        """Return the page as an image."""
        self.canvas.draw()
        return np.asarray(self.canvas.buffer_rgba())[..., :3].copy()

    def finish(self, path: Paths) -> tuple[UInt8[np.ndarray, "height width 3"], tuple[Path, ...]]:
        """Return the page as an image and write it to one or several files."""
        pixels = self.pixels()
        paths = check_paths(path)
        for target in paths:
            target.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(target) as draft:
                if target.suffix == ".png":
                    image = Image.fromarray(pixels)
                    image.save(draft, optimize=True, dpi=(self.theme.dpi, self.theme.dpi))
                else:
                    # Dates would make two runs differ.
                    date = {".pdf": "CreationDate", ".svg": "Date"}[target.suffix]
                    self.figure.savefig(draft, metadata={date: None})
        return pixels, paths
