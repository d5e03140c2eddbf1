"""Text for terminals and spreadsheets: printable names, tables, CSV.

Names come from other people's files. Everything here makes them harmless to show: no escape
sequence reaches a terminal, and no cell is a formula to a spreadsheet.
"""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

# How spreadsheets recognise a formula; the quote itself, so that unquoting undoes quoting.
_FORMULA = ("=", "+", "-", "@", "'")
_NUMBER = re.compile(r"[-+]?[\d.,]+(e[-+]?\d+)?|nan|-?inf|-", re.IGNORECASE)


def printable(text: object) -> str:
    r"""Return a text with every character that is not printable escaped.

    >>> print(printable("p\x1b[2J\n"), printable("Größe"))
    p\x1b[2J\n Größe
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(text))


def format_table(rows: Sequence[Sequence[object]], markdown: bool = False) -> str:
    r"""Return rows as a table, the first as its header; columns of numbers are aligned right.

    >>> print(format_table([["field", "mean", "unit"], ["p", 1.25, "Pa"], ["speed", 10.5, "m/s"]]))
    field   mean  unit
    p       1.25  Pa
    speed   10.5  m/s
    >>> print(format_table([["field", "mean"], ["p|q", 1.25]], markdown=True))
    | field | mean |
    |---|---|
    | p\|q | 1.25 |
    """
    texts = [[printable(cell) for cell in row] for row in rows]
    if markdown:
        lines = ["| " + " | ".join(t.replace("|", r"\|") for t in row) + " |" for row in texts]
        return "\n".join([lines[0], "|---" * len(texts[0]) + "|", *lines[1:]])
    columns = []
    for cells, numbers in zip(zip(*texts, strict=True), number_columns(texts), strict=True):
        width = max(map(len, cells))
        columns.append([t.rjust(width) if numbers else t.ljust(width) for t in cells])
    return "\n".join("  ".join(row).rstrip() for row in zip(*columns, strict=True))


def number_columns(rows: Sequence[Sequence[object]]) -> list[bool]:
    """Return which columns hold numbers alone below their header."""
    columns = zip(*rows, strict=True)
    return [all(_NUMBER.fullmatch(str(cell)) for cell in cells) for _, *cells in columns]


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    r"""Return rows as CSV; a text that a spreadsheet would run as a formula is quoted by ``'``.

    >>> csv_text([["case", "p"], ["=1+1", -0.5]])
    "case,p\r\n'=1+1,-0.5\r\n"
    """
    file = io.StringIO(newline="")
    csv.writer(file).writerows([_cell(value) for value in row] for row in rows)
    return file.getvalue()


def _cell(value: object) -> object:
    if not isinstance(value, str):
        return value
    return ("'" if value.startswith(_FORMULA) else "") + printable(value)


def read_csv(path: Path) -> list[list[str]]:
    """Return the rows of a file that holds :func:`csv_text`, with the texts as they were given."""
    with open(path, newline="") as file:
        return [[cell.removeprefix("'") for cell in row] for row in csv.reader(file)]
