"""Parameters of cases in CSV files: one table with a row per case, or one file per case."""

import csv
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ...files import reading
from .case_files import CASE, some
from .surfaces import read_reference_values


def read_parameters(
    root: Path, given: str | None, case_ids: Sequence[str], by_position: bool
) -> tuple[dict[str, dict[str, np.ndarray]], list[str]]:
    """Return the parameters of each case in CSV files, and what was taken for what.

    Parameters
    ----------
    root : Path
        Folder of the cases.
    given : str or None
        A table with a row per case, or, with ``{case}``, one file per case; both below `root` or
        absolute. None looks for a single table in `root` in which the cases are found.
    case_ids : Sequence[str]
        All cases.
    by_position : bool
        Whether rows without ids are those of the cases in order.
    """
    folder = root if root.is_dir() else root.parent
    if given is not None and CASE in given:
        return {
            case: {
                name: np.array(value)
                for name, value in read_reference_values(folder / given.replace(CASE, case)).items()
            }
            for case in case_ids
        }, []
    if given is None:
        tables = sorted(folder.glob("*.csv"))
        if len(tables) != 1:
            return {}, [
                f"no parameters are read of {some(t.name for t in tables)}"
            ] if tables else []
        try:
            found = _read_table(tables[0], case_ids, by_position)
        except ValueError as error:
            return {}, [f"no parameters are read: {error}"]
        return found, [f"parameters of the cases are in {tables[0].name}"]
    return _read_table(folder / given, case_ids, by_position), []


def _read_table(
    path: Path, case_ids: Sequence[str], by_position: bool
) -> dict[str, dict[str, np.ndarray]]:
    if not path.is_file():
        raise FileNotFoundError(f"data.reader.parameters {path} does not exist")
    with reading(path), path.open(newline="", encoding="utf-8-sig") as file:
        rows = [
            {str(key).strip(" #"): (value or "").strip() for key, value in row.items()}
            for row in csv.DictReader(file)
        ]
    if not rows:
        raise ValueError(f"{path} has no rows below its header")
    column, match = _id_column(rows, case_ids)
    if column is None:
        if not (by_position and len(rows) == len(case_ids)):
            raise ValueError(
                f"{path}: no column holds the cases {some(case_ids, 3)}; its columns are "
                f"{some(rows[0])}, its first row is {some(rows[0].values())}. Add a column with "
                "the ids"
            )
        match = dict(zip(case_ids, rows, strict=True))
    numeric = [n for n in rows[0] if n != column and all(_is_number(row[n]) for row in rows)]
    return {
        case: {name: np.array(float(row[name])) for name in numeric} for case, row in match.items()
    }


def _id_column(
    rows: Sequence[Mapping[str, str]], case_ids: Sequence[str]
) -> tuple[str | None, dict[str, Mapping[str, str]]]:
    """Return the column that holds all ids, or else the numbers in them, and the row of each."""
    numbers = {case: re.findall(r"\d+", case) for case in case_ids}
    by_number = {case: str(int(found[-1])) for case, found in numbers.items() if found}
    if len(set(by_number.values())) < len(case_ids):
        by_number = {}
    for keys in ({case: case for case in case_ids}, by_number):
        for column in rows[0] if keys else ():
            entries = {
                _plain(row[column]) if keys is by_number else row[column]: row for row in rows
            }
            if all(key in entries for key in keys.values()) and len(entries) == len(rows):
                return column, {case: entries[key] for case, key in keys.items()}
    return None, {}


def _plain(text: str) -> str:
    found = re.findall(r"\d+", text)
    return str(int(found[-1])) if found and not re.search(r"\d\.\d", text) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
