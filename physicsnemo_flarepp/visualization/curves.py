"""What figures of lines and points share: axes side by side on one sheet."""

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from .sheets import Sheet
from .theme import Theme

# Inches around axes for tick labels and titles, and the height of axes over their width.
_LEFT, _RIGHT, _TOP, _BOTTOM = 0.62, 0.22, 0.32, 0.46


def axes_in_a_row(
    n: int, theme: Theme, *, width: float = 3.0, height: float = 2.2, above: float = 0.0
) -> tuple[Sheet, list[Axes]]:
    """Give a sheet with `n` empty axes of this size in inches, with more room `above` if asked.

    Use within :func:`~physicsnemo_flarepp.visualization.sheets.styled`.
    """
    inch = theme.dpi
    cell = (_LEFT + width + _RIGHT) * inch
    top = _TOP + above
    sheet = Sheet(round(n * cell), round((top + height + _BOTTOM) * inch), theme)
    places = [i * cell + _LEFT * inch for i in range(n)]
    return sheet, [sheet.axes(x, top * inch, width * inch, height * inch) for x in places]


def log_numbers(axis: Axes) -> None:
    """Count a logarithmic y axis in plain numbers, with 1, 2, 5 where it spans few decades."""
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 200 * low else (1,)))
    if 1e-4 < low and high < 1e5:
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())


def few_ticks(axis: Axes) -> None:
    """Keep the numbers of the x axis apart."""
    axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
