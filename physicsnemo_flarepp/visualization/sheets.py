"""Figures laid out in whole pixels: pictures keep theirs, text stays crisp, nothing overlaps."""

import os
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
from matplotlib.ticker import FuncFormatter, MaxNLocator
from PIL import Image

from .theme import Theme

Paths = str | os.PathLike | Sequence[str | os.PathLike] | None
FORMATS = (".png", ".pdf", ".svg")
# Height of a colour bar, of its ticks and of its label, in inches.
BAR_HEIGHT = 0.09
BAR_STRIP = 0.52
_SMALLEST_FONT = 5.0


def styled(theme: Theme) -> AbstractContextManager:
    """Draw by the theme and Matplotlib's defaults, whatever the user has set."""
    return matplotlib.style.context(["default", theme.settings()])


def with_units(name: str, units: str | None) -> str:
    """Give the label of a quantity.

    Examples
    --------
    >>> with_units("p", "Pa"), with_units("Mach", None)
    ('p [Pa]', 'Mach')
    """
    return f"{name} [{units}]" if units else name


def decimal_exponent(limits: tuple[float, float]) -> int:
    """Give the power of ten to take out of tick labels: 0 where plain numbers are short enough.

    Examples
    --------
    >>> decimal_exponent((0, 2.5e-4)), decimal_exponent((-300, 20)), decimal_exponent((0, 4e6))
    (-4, 0, 6)
    """
    size = max(abs(limits[0]), abs(limits[1]))
    if size == 0 or 1e-2 <= size < 1e5:
        return 0
    return int(np.floor(np.log10(size)))


def _number(value: float) -> str:
    return f"{value:.6g}".replace("-", "\N{MINUS SIGN}")


def ticks_that_fit(limits: tuple[float, float], exponent: int, inches: float) -> list[float]:
    """Give round numbers within `limits` whose labels fit side by side.

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
        # A digit is about 0.065 inches wide; labels stay a digit and a half apart.
        needed = sum(0.065 * (len(_number(t / 10.0**exponent)) + 1.5) for t in found)
        if needed <= inches * (found[-1] - found[0]) / span + 0.4:
            break
    return found


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
    ) -> None:
        """Write words at a place.

        Words that need more than `room` pixels get a smaller font, and are cut when that is not
        enough.
        """
        artist = self.figure.text(
            x / self.width,
            1 - y / self.height,
            words,
            size=size or self.theme.font_size,
            ha=align,
            va=valign,
            rotation=90 if vertical else 0,
            linespacing=1.35,
        )

        def needed() -> float:
            box = artist.get_window_extent(self.canvas.get_renderer())
            return box.height if vertical else box.width

        if needed() > room:
            artist.set_size(max(_SMALLEST_FONT, artist.get_size() * room / needed()))
        while needed() > room and len(words) > 1:
            words = words[:-1]
            artist.set_text(f"{words}…")

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
        """
        axes = self.axes(left, top, width, BAR_HEIGHT * self.theme.dpi)
        extend = {(0, 0): "neither", (1, 0): "min", (0, 1): "max", (1, 1): "both"}[
            tuple(map(int, beyond))
        ]
        exponent = decimal_exponent(limits)
        bar = self.figure.colorbar(
            ScalarMappable(Normalize(*limits), colors),
            cax=axes,
            orientation="horizontal",
            extend=extend,
            extendfrac=0.03,
            ticks=ticks_that_fit(limits, exponent, width / self.theme.dpi),
            format=FuncFormatter(lambda value, _: _number(value / 10.0**exponent)),
        )
        bar.outline.set_linewidth(0.5)
        axes.tick_params(length=2.5, pad=1.5, labelsize=self.theme.font_size - 0.5)
        factor = f"  (×10$^{{{exponent}}}$)" if exponent else ""
        axes.set_xlabel(label + factor, labelpad=2.0)

    def pixels(self) -> UInt8[np.ndarray, "height width 3"]:
        """Give the page as an image."""
        self.canvas.draw()
        return np.asarray(self.canvas.buffer_rgba())[..., :3].copy()

    def finish(self, path: Paths) -> tuple[UInt8[np.ndarray, "height width 3"], tuple[Path, ...]]:
        """Give the page as an image and write it to one or several files."""
        pixels = self.pixels()
        paths = check_paths(path)
        for target in paths:
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.suffix == ".png":
                image = Image.fromarray(pixels)
                image.save(target, optimize=True, dpi=(self.theme.dpi, self.theme.dpi))
            else:
                # Dates would make two runs differ.
                date = {".pdf": "CreationDate", ".svg": "Date"}[target.suffix]
                self.figure.savefig(target, metadata={date: None})
        return pixels, paths


def check_paths(path: Paths) -> tuple[Path, ...]:
    """Give the files to write; raise on a format that figures cannot have.

    Examples
    --------
    >>> check_paths("a.png") == (Path("a.png"),)
    True
    """
    paths = () if path is None else [path] if isinstance(path, str | os.PathLike) else path
    paths = tuple(map(Path, paths))
    for target in paths:
        if target.suffix not in FORMATS:
            raise ValueError(f"path {str(target)!r} must end in one of {FORMATS}")
    return paths
