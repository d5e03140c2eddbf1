"""What figures of lines and points share: axes side by side on one sheet, with words around."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    LogFormatterSciNotation,
    MaxNLocator,
    NullFormatter,
)

from .sheets import Sheet
from .theme import Theme

# Inches above axes that have a title of their own, and without one.
TITLED, UNTITLED = 0.32, 0.14
# Inches around axes for tick labels, of a line of text, and of the sample of a curve.
_LEFT, _RIGHT, _BOTTOM = 0.62, 0.22, 0.46
_LINE, _MARGIN, _SAMPLE = 0.17, 0.12, 0.28
_FEWEST_TICKS, _MOST_TICKS = 4, 10
_WIDEST_GAP = 0.3  # of a logarithmic axis without a number


def axes_in_a_row(
    n: int,
    theme: Theme,
    *,
    width: float = 3.0,
    height: float = 2.2,
    above: float = TITLED,
    title: str | None = None,
    key: Mapping[str, Mapping[str, Any]] | None = None,
    notes: Sequence[str] = (),
) -> tuple[Sheet, list[Axes]]:
    """Return a sheet with `n` empty axes, and with words above and below where no curve can be.

    Use within :func:`~physicsnemo_flarepp.visualization.sheets.styled`.

    Parameters
    ----------
    n : int
        Number of axes.
    theme : Theme
        Look of the sheet.
    width, height : float
        Size of axes in inches.
    above : float
        Inches between the words and the axes.
    title : str, optional
        First line of the page.
    key : Mapping[str, Mapping], optional
        Names of curves, a line each below the title, with the properties of their ``Line2D``.
    notes : sequence of str
        Lines below the axes.
    """
    inch, key = theme.dpi, key or {}
    cell = (_LEFT + width + _RIGHT) * inch
    lines = len(key) + (title is not None)
    top = above + (_MARGIN + _LINE * lines if lines else 0)
    below = _BOTTOM + (_MARGIN + _LINE * len(notes) if notes else 0)
    sheet = Sheet(round(n * cell), round((top + height + below) * inch), theme)
    page, small = sheet.width / inch, theme.font_size - 1

    def write(words: str, left: float, middle: float, size: float) -> None:
        room = (page - left - _MARGIN) * inch
        sheet.text(words, left * inch, middle * inch, room=room, size=size, align="left")

    middle = _MARGIN + _LINE / 2
    if title is not None:
        write(title, _MARGIN, middle, theme.font_size + 1)
        middle += _LINE
    for name, style in key.items():
        ends = np.array([_MARGIN, _MARGIN + _SAMPLE]) / page
        level = 1 - middle * inch / sheet.height
        sheet.figure.add_artist(Line2D(ends, [level, level], **style))
        write(name, _MARGIN + _SAMPLE + 0.08, middle, small)
        middle += _LINE
    for number, words in enumerate(notes):
        write(words, _MARGIN, top + height + _BOTTOM + _LINE * (number + 0.5), small)
    places = [i * cell + _LEFT * inch for i in range(n)]
    return sheet, [sheet.axes(x, top * inch, width * inch, height * inch) for x in places]


def log_ticks(low: float, high: float) -> list[float]:
    """Return at least four round numbers between two positive ones, for a logarithmic axis.

    Examples
    --------
    >>> log_ticks(10.5, 68), log_ticks(0.3, 4e3), log_ticks(8.6, 11.1)
    ([15.0, 20.0, 30.0, 40.0, 60.0], [1.0, 10.0, 100.0, 1000.0], [9.0, 9.5, 10.0, 10.5, 11.0])
    """
    powers = np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)) + 1)
    for steps in ((1,), (1, 3), (1, 2, 5), (1, 2, 3, 5, 7), (1, 1.5, 2, 3, 4, 6, 8)):
        ticks = (10.0 ** powers[:, None] * steps).ravel()
        ticks = ticks[(low <= ticks) & (ticks <= high)]
        gaps = np.diff(np.log10([low, *ticks, high]))
        if len(ticks) >= _FEWEST_TICKS and gaps.max() <= _WIDEST_GAP * gaps.sum():
            return ticks[:: -(-len(ticks) // _MOST_TICKS)].tolist()
    # Where the axis spans so little, equal distances are nearly equal ratios.
    ticks = MaxNLocator(_MOST_TICKS, steps=[1, 2, 5, 10]).tick_values(low, high)
    return ticks[(low <= ticks) & (ticks <= high)].tolist()


def log_numbers(axis: Axes) -> None:
    """Make the y axis logarithmic, with enough numbers to read values, plain ones if they can be.

    Set limits and draw curves before; an axis without a curve stays as it is.
    """
    if not any(np.size(line.get_ydata()) for line in axis.lines):
        return
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    axis.yaxis.set_major_locator(FixedLocator(log_ticks(low, high)))
    if 1e-4 < low and high < 1e5:
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.12g}"))
    else:
        everywhere = (np.inf, np.inf)
        axis.yaxis.set_major_formatter(LogFormatterSciNotation(minor_thresholds=everywhere))
    axis.yaxis.set_minor_formatter(NullFormatter())


def few_ticks(axis: Axes) -> None:
    """Keep the numbers of the x axis apart."""
    axis.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))
