"""The page of a comparison: panels, titles and colour bars in their places."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .scales import Limits
from .sheets import BAR_STRIP, Sheet
from .theme import Theme
from .views import View, pixels_per_unit

# Inches between panels, around the page, and for a line of text.
GAP = 0.10
MARGIN = 0.10
LINE = 0.21
_WIDEST_BAR = 3.6
_LOWEST = 0.6
_CONVENTION = """error = prediction − reference,
one scale for all models,
limits: 99.5th percentile
of the largest |error|"""
_IN_A_LINE = "error = prediction − reference; limits: 99.5th percentile of the largest |error|"


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


class ComparisonPage:
    """Places panels, titles and colour bars.

    Views are rows, with errors beside the fields; one view of several models has its errors below.

    Parameters
    ----------
    views : sequence of View
        Of each field and error.
    headings : Mapping[str, tuple of str]
        By model, in order of the columns, what follows its name above its error, and further
        lines. The name is cut where there is no room.
    title : str, optional
        First line of the page.
    theme : Theme
        Look of the page.
    """

    def __init__(
        self,
        views: Sequence[View],
        headings: Mapping[str, tuple[str, ...]],
        title: str | None,
        theme: Theme,
    ) -> None:
        models = list(headings)
        self.headings = headings
        self.views, self.models, self.theme, self.title = views, models, theme, title
        self.panels: list[Panel] = []
        inch = theme.dpi
        self.stacked = len(views) == 1 and len(models) > 1
        self.gap, self.line = round(GAP * inch), round(LINE * inch)
        self.head = self.line * max(len(lines) for lines in headings.values())
        self.strip = round((BAR_STRIP + GAP) * inch)
        self.per_unit = pixels_per_unit(views, theme)
        self.cell = round(theme.panel_width * inch)
        self.left = round(MARGIN * inch) + (self.line if len(views) > 1 else 0)
        self.top = round(MARGIN * inch) + (0 if title is None else self.line)
        self.heights = [view.pixels(self.per_unit)[1] for view in views]
        if self.stacked:  # the words beside the errors need as much
            self.heights = [max(self.heights[0], round(_LOWEST * inch))]
        n_columns = 1 + len(models) if self.stacked else 1 + 2 * len(models)
        width = self.left + n_columns * (self.cell + self.gap) - self.gap + round(MARGIN * inch)
        if self.stacked:
            height = self.top + self.line + self.head + 2 * (self.heights[0] + self.strip)
        else:
            height = self.top + self.head + sum(self.heights) + self.gap * len(views) + self.strip
            height += round(0.6 * self.line)
        self.sheet = Sheet(width, height, theme)
        if title is not None:
            middle = self.left, self.top - self.line / 2
            self.sheet.text(title, *middle, room=width - 2 * self.left, align="left")

    def _column(self, column: int) -> int:
        return self.left + column * (self.cell + self.gap)

    def _rows(self) -> list[int]:
        """Return the top of each row of panels."""
        if self.stacked:
            first = self.top + self.line
            return [first, first + self.heights[0] + self.strip + self.head]
        first = self.top + self.head
        return [first + sum(self.heights[:i]) + self.gap * i for i in range(len(self.views))]

    def place(self, pictures: Mapping[tuple[str, str, str], np.ndarray]) -> None:
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
            left = self._column(column) + (self.cell - width) // 2
            top = rows[row] + (self.heights[number] - height) // 2
            self.sheet.image(picture, left, top)
            self.panels.append(Panel(kind, name, camera, row, column, (left, top, width, height)))
            if number == 0:
                tails = self.headings[name] if kind == "error" else ("",)
                for line, tail in enumerate(tails):
                    above = len(tails) - 1 - line
                    self.sheet.text(
                        "" if line else name,
                        self._column(column) + self.cell / 2,
                        rows[row] - (above + 0.32) * self.line,
                        tail=tail,
                        room=self.cell,
                        size=self.theme.font_size + 1,
                        valign="baseline",
                    )
        if not self.stacked:
            self.sheet.text(
                _IN_A_LINE,
                self.left,
                self.sheet.height - 0.6 * self.line,
                room=self.sheet.width - 2 * self.left,
                size=self.theme.font_size - 1,
                align="left",
            )
            named = zip(self.views, rows, self.heights, strict=True) if len(self.views) > 1 else ()
            for view, top, height in named:
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
