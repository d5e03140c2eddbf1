"""Names from the files of others, in terminals, tables and spreadsheets."""

import csv
import io

import pytest

from physicsnemo_flarepp.commands.dispatch import one_line
from physicsnemo_flarepp.texts import csv_text, format_table, printable, read_csv

HOSTILE = ("\x1b[2Jp", "p\x07\n", "\u202ep", "\x9b31m", "a|b")
FORMULAS = ("=cmd|' /C calc'!A0", "+1", "-1", "@SUM(A1)", "'quoted", "\t=1")


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize(
    "show",
    [
        printable,
        lambda name: format_table([["field", "mean"], [name, 1.0]]),
        lambda name: format_table([[name, "mean"], ["p", 1.0]], markdown=True),
        lambda name: csv_text([["case", name], [name, 1.0]]),
        lambda name: one_line(ValueError(f"no field {name}")),
    ],
    ids=["name", "table", "markdown", "csv", "error"],
)
def test_no_control_character_reaches_a_terminal(show, name):
    shown = show(name)
    assert all(c.isprintable() for line in shown.splitlines() for c in line)
    assert "p" in shown or "b" in shown or "31m" in shown  # shown, not dropped


def test_a_bar_in_a_name_adds_no_column_to_a_markdown_table():
    lines = format_table([["field", "mean"], ["a|b", "1"]], markdown=True).splitlines()
    assert [line.replace(r"\|", "").count("|") for line in lines] == [3, 3, 3]


@pytest.mark.parametrize("name", FORMULAS)
def test_no_text_is_a_formula_and_every_one_is_read_as_written(name, tmp_path):
    (cells,) = csv.reader(io.StringIO(csv_text([[name, -0.5, 3]]), newline=""))
    assert cells[0][0] not in "=+-@\t" and cells[1:] == ["-0.5", "3"]
    path = tmp_path / "table.csv"
    path.write_text(csv_text([["case", name]]), newline="")
    assert read_csv(path) == [["case", printable(name)]]


def test_numbers_are_aligned_right_and_names_left():
    rows = [["run", "error", "note"], ["a", "1.25", "x"], ["long", "-10", "yz"], ["b", "-", ""]]
    assert format_table(rows).splitlines() == [
        "run   error  note",
        "a      1.25  x",
        "long    -10  yz",
        "b         -",
    ]
