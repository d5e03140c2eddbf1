"""What figures of lines and points share: axes side by side on one sheet."""

from matplotlib.axes import Axes

from .sheets import Sheet
from .theme import Theme

# Inches around axes for tick labels and titles, and the height of axes over their width.
_LEFT, _RIGHT, _TOP, _BOTTOM = 0.62, 0.15, 0.32, 0.46


def axes_in_a_row(
    n: int, theme: Theme, *, width: float = 3.0, height: float = 2.2
) -> tuple[Sheet, list[Axes]]:
    """Give a sheet with `n` empty axes of this size in inches.

    Use within :func:`~physicsnemo_flarepp.visualization.sheets.styled`.
    """
    inch = theme.dpi
    cell = (_LEFT + width + _RIGHT) * inch
    sheet = Sheet(round(n * cell), round((_TOP + height + _BOTTOM) * inch), theme)
    places = [i * cell + _LEFT * inch for i in range(n)]
    return sheet, [sheet.axes(x, _TOP * inch, width * inch, height * inch) for x in places]
