"""Parameters of cases in CSV files: one table with a row per case, or one file per case."""

import csv
import glob
import math
import os
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ...files import reading
from ..validation import MissingName, printable
from .case_files import CASE, some

# CSV of DrivAerML beside a surface.
REFERENCE_VALUES = "geo_ref_*.csv"
# Names of columns that hold the ids of cases, where the numbers in several columns would do.
_ID_NAMES = re.compile(r"(?i).*(case|run|id|index|name|design|number|no\.?|geo\w*)|")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


class _NotOfCases(ValueError):
    """A table that is about something else, as far as can be told."""


@dataclass(frozen=True)
class Parameters:
    """Values of the cases."""

    values: Mapping[str, Mapping[str, np.ndarray]] = field(default_factory=dict)
    told: Sequence[str] = ()
    unreadable: Mapping[str, str] = field(default_factory=dict)
    # What would have been read but for a fault, by column, "" for the whole table.
    faults: Mapping[str, str] = field(default_factory=dict)
    # Where every case has a file: below the folder with {case} in its name, or beside the case.
    folder: Path = Path()
    pattern: str | None = None

    def of_case(self, case: str, beside: Path, required: bool) -> dict[str, np.ndarray]:
        """Return the values of a case, whose files are `beside`; without a file, none or an error.

        What is not `required` may be missing.
        """
        if self.pattern is None:
            return dict(self.values.get(case, {}))
        where = self.folder if CASE in self.pattern else beside
        pattern = self.pattern.replace(CASE, glob.escape(case))
        found = sorted(glob.glob(os.path.join(glob.escape(str(where)), pattern)))
        if len(found) == 1:
            values = read_reference_values(Path(found[0]))
            return {name: np.array(value) for name, value in values.items()}
        if not required:
            return {}
        raise MissingName(
            f"{where / pattern} matches {len(found)} files for case {case}, expected one with its "
            "values. Fetch it, correct data.reader.parameters, or name the values in "
            "data.reader.constants"
        )


def read_parameters(
    root: Path,
    given: str | None,
    case_ids: Sequence[str],
    by_position: bool,
    clouds: Collection[Path] = (),
) -> Parameters:
    """Return the parameters of the cases in CSV files: `given`, or the only table in `root`.

    `clouds` are CSV files that hold the points of cases.
    `given` is a table with a row per case, a pattern of one file per case, or empty for none. Rows
    without ids are those of the cases in order if `by_position`.
    """
    folder = root if root.is_dir() else root.parent
    if given == "":
        return Parameters()
    if given is not None and (CASE in given or "*" in given):
        return Parameters(folder=folder, pattern=given)
    if given is not None:
        return _read_cases(folder / given, case_ids, by_position)
    tables = sorted(set(folder.glob("*.csv")) - set(clouds))
    if len(tables) != 1:
        listed = some(table.name for table in tables)
        return Parameters(told=[f"no parameters are read of {listed}"] if tables else [])
    try:
        return _read_cases(tables[0], case_ids, by_position)
    except _NotOfCases as error:
        return Parameters(told=[f"no parameters are read: {error}"])
    except ValueError as error:
        return Parameters(told=[f"no parameters are read: {error}"], faults={"": str(error)})


def reference_values_beside(source: str | Path) -> dict[str, float]:
    """Return all numbers of the only ``geo_ref_*.csv`` beside a surface file; empty without one."""
    tables = sorted(Path(source).parent.glob(REFERENCE_VALUES))
    return read_reference_values(tables[0]) if len(tables) == 1 else {}


def read_reference_values(path: Path) -> dict[str, float]:
    """Return the numbers of a CSV file by column: a header and one row, as ``geo_ref_*.csv``."""
    header, rows = _read_table(path)
    if len(rows) != 1:
        raise ValueError(f"{path} has {len(rows)} rows below its header; expected one of numbers")
    for name, entry in zip(header, rows[0], strict=True):
        if not _is_number(entry):
            raise ValueError(f"{path}: {name} is {entry!r}, expected a number; repair the file")
    return {name: float(entry) for name, entry in zip(header, rows[0], strict=True)}


def _read_table(path: Path) -> tuple[list[str], list[list[str]]]:
    """Return the names of the columns and the rows of a CSV file, all as long as the header."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; data.reader.parameters names CSV files")
    try:
        with reading(path), path.open(newline="", encoding="utf-8-sig") as file:
            lines = csv.reader(file)
            rows = [(lines.line_num, [cell.strip() for cell in row]) for row in lines]
    except ValueError as error:
        if isinstance(error.__cause__, UnicodeDecodeError):
            raise ValueError(f"{path} is not UTF-8 text; save it as `CSV UTF-8`") from error
        raise
    rows = [(line, row) for line, row in rows if any(row)]
    if len(rows) < 2:
        raise ValueError(f"{path} has no rows below its header")
    header = [name.strip(" #") for name in rows[0][1]]
    if len(header) == 1 and ";" in header[0]:
        raise ValueError(
            f"{path} is separated by semicolons; save it with commas, and with points in numbers"
        )
    twice = [name for name, count in Counter(header).items() if name and count > 1]
    if twice:
        raise ValueError(f"{path} has two columns {printable(twice[0])!r}; rename one of them")
    for line, row in rows[1:]:
        if len(row) != len(header) and any(row[len(header) :]) or len(row) < len(header):
            raise ValueError(
                f"{path}: line {line} has {len(row)} entries, the header {len(header)}; repair it"
            )
    return header, [row[: len(header)] for _, row in rows[1:]]


def _read_cases(path: Path, case_ids: Sequence[str], by_position: bool) -> Parameters:
    header, rows = _read_table(path)
    columns = {name: [row[i] for row in rows] for i, name in enumerate(header)}
    column, place = _id_column(path, columns, case_ids)
    if column is None:
        if not (by_position and len(rows) == len(case_ids)):
            raise _NotOfCases(
                f"{path}: no column holds the cases {some(case_ids, 3)}; its columns are "
                f"{some(header)}, its first row is {some(rows[0])}. Add a column with the ids"
            )
        place = {case: i for i, case in enumerate(case_ids)}
    told = f"parameters of the cases are in {path.name}, by "
    told += "the order of its rows" if column is None else f"its column {printable(column)!r}"
    unreadable, faults, numeric = {}, {}, []
    for name, entries in columns.items():
        wrong = {case: entries[i] for case, i in place.items() if not _is_number(entries[i])}
        if name in ("", column):
            continue
        if wrong:
            case, entry = next(iter(wrong.items()))
            unreadable[name] = (
                f"{path}: column {printable(name)} has {entry[:40]!r} for case {case}, no number"
            )
            # A column of texts is not a parameter, but one of numbers with a hole would be.
            if any(_NUMBER.fullmatch(entries[i]) for i in place.values()):
                faults[name] = unreadable[name]
        else:
            numeric.append(name)
    values = {
        case: {name: np.array(float(columns[name][i])) for name in numeric}
        for case, i in place.items()
    }
    return Parameters(values, [told], unreadable, faults)


def _id_column(
    path: Path, columns: Mapping[str, Sequence[str]], case_ids: Sequence[str]
) -> tuple[str | None, dict[str, int]]:
    """Return the column that holds all ids, or else the numbers in them, and the row of each."""
    numbers = {case: re.findall(r"\d+", case) for case in case_ids}
    by_number = {case: str(int(found[-1])) for case, found in numbers.items() if found}
    if len(set(by_number.values())) < len(case_ids):
        by_number = {}
    for keys in ({case: case for case in case_ids}, by_number):
        plain = _plain if keys is by_number else str
        fitting = {}
        for name, entries in columns.items() if keys else ():
            places: dict[str, list[int]] = {}
            for i, entry in enumerate(entries):
                places.setdefault(plain(entry), []).append(i)
            missing = [case for case, key in keys.items() if key not in places]
            if not missing:
                fitting[name] = {case: places[key] for case, key in keys.items()}
            elif keys is not by_number and 2 * len(missing) < len(keys):
                raise ValueError(
                    f"{path}: column {printable(name)!r} has no row for {some(missing, 3)}; add "
                    "them, or move the files of these cases away"
                )
        if len(fitting) > 1 and keys is by_number:
            # A parameter of 1, 2, 3 would do as well as the numbers of the runs.
            named = {n: p for n, p in fitting.items() if _ID_NAMES.fullmatch(n)}
            if len(named) != 1:
                raise ValueError(
                    f"{path}: the columns {some(fitting)} could each be the cases; write their "
                    f"ids, such as {printable(case_ids[0])}, into one of them"
                )
            fitting = named
        for name, found in fitting.items():
            twice = [case for case, at in found.items() if len(at) > 1]
            if twice:
                raise ValueError(
                    f"{path}: column {printable(name)!r} has {some(twice, 3)} more than once; "
                    "keep one row per case"
                )
            return name, {case: at[0] for case, at in found.items()}
    return None, {}


def _plain(text: str) -> str:
    found = re.findall(r"\d+", text)
    return str(int(found[-1])) if found and not re.search(r"\d\.\d", text) else text


def _is_number(text: str) -> bool:
    return bool(_NUMBER.fullmatch(text)) and math.isfinite(float(text))
