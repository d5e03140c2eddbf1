"""Which files make up the cases of a folder, and the parameters of the cases in CSV files."""

import csv
import glob
import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ...files import reading
from ...meshes import SUFFIXES as MESH_SUFFIXES
from ..validation import MissingName, printable
from .contents import STORE_SUFFIXES, SUFFIXES

CASE = "{case}"
_GEOMETRY_SUFFIXES = (".stl", ".ply", ".obj")
# Arrays in these may hold all cases.
_SET_SUFFIXES = (".npz", ".h5", ".hdf5", ".zarr", ".npy")
SPLIT_DIRECTORIES = ("train", "val", "valid", "validation", "test")
# Cases are the files of the first kind that is present; geometry alone has no fields.
_PREFERRED = (
    ".foam",  # the folder of an OpenFOAM case may hold files of other formats
    *MESH_SUFFIXES,
    *(".pdmsh", ".pmsh", *_SET_SUFFIXES, ".csv"),
)
# CSV of DrivAerML beside a surface.
REFERENCE_VALUES = "geo_ref_*.csv"
# Names of columns that hold the ids of cases, where the numbers in several columns would do.
_ID_NAMES = re.compile(r"(?i).*(case|run|id|index|name|design|number|no\.?|geo\w*)|")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


@dataclass(frozen=True)
class CaseFiles:
    """The files of all cases of a folder."""

    cases: Mapping[str, tuple[Path, ...]]
    shared: tuple[Path, ...] = ()
    told: tuple[str, ...] = ()
    whole_set: bool = False


def find_files(root: Path, patterns: Sequence[str] | None, layout: str = "auto") -> CaseFiles:
    """Return the files of the cases under `root`: by patterns with ``{case}``, or by looking."""
    if layout not in ("auto", "files", "set"):
        raise ValueError(f"data.reader.layout is {layout!r}, expected 'auto', 'files' or 'set'")
    if not root.exists():
        raise FileNotFoundError(f"data.root {root} does not exist; give a folder or file of cases")
    if root.suffix.lower() in SUFFIXES:
        if root.suffix.lower() in _SET_SUFFIXES and layout != "files":
            return CaseFiles({}, (root,), whole_set=True)
        return CaseFiles({root.stem: (root,)})
    looked = patterns is None
    found = _by_looking(root, layout) if looked else _by_patterns(root, patterns, layout)
    for case, paths in found.cases.items():
        # An id is a line of a list, an entry of JSON, and with `flarepp prepare` a folder.
        if not case.isprintable() or case in (".", ".."):
            raise ValueError(
                f"{printable(paths[0])} would be the case {case!r}, which cannot be printed or is "
                "not a name; rename the file"
            )
    return found


def _pattern_expression(pattern: str) -> re.Pattern:
    """Return the regular expression of a glob with ``{case}``, which is the same each time."""
    known = {"**/": "(?:.*/)?", "*": "[^/]*", "?": "[^/]"}
    expression, case = "", "(?P<case>[^/]+?)"
    for part in re.split(r"(\{case\}|\*\*/|\*|\?)", pattern):
        if part == CASE:
            expression, case = expression + case, "(?P=case)"
        else:
            expression += known.get(part, re.escape(part))
    return re.compile(expression)


def _by_patterns(root: Path, patterns: Sequence[str], layout: str) -> CaseFiles:
    found: dict[str, list[Path]] = defaultdict(list)
    shared, counts = [], {}
    for pattern in patterns:
        paths = sorted(root.glob(pattern.replace(CASE, "*")))
        if not paths:
            raise FileNotFoundError(
                f"nothing in {root} matches data.reader.files {pattern!r}; it holds {_held(root)}"
            )
        for path in (path for path in paths if path.suffix.lower() not in SUFFIXES):
            raise ValueError(
                f"{path} matches {pattern!r}, but does not end in one of {', '.join(SUFFIXES)}; "
                "make the pattern narrower"
            )
        if CASE in pattern:
            expression = _pattern_expression(pattern)
            matches = {p: expression.fullmatch(p.relative_to(root).as_posix()) for p in paths}
            ids = {path: match["case"] for path, match in matches.items() if match}
        elif "*" in pattern or "?" in pattern:
            ids = _ids(root, paths)
        else:
            shared += paths
            continue
        counts[pattern] = set(ids.values())
        for path, case in ids.items():
            found[case].append(path)
    every = set().union(*counts.values())
    for pattern, ids in counts.items():
        if absent := sorted(every - ids):
            raise FileNotFoundError(
                f"{root}: {len(absent)} of {len(every)} cases have no file {pattern!r}: "
                f"{some(absent)}. Fetch them, or move their other files away"
            )
    if layout == "set" or (not found and layout == "auto"):
        every_file = (*shared, *(path for paths in found.values() for path in paths))
        return CaseFiles({}, every_file, whole_set=True)
    return CaseFiles({case: tuple(found[case]) for case in in_order(found)}, tuple(shared))


def _by_looking(root: Path, layout: str) -> CaseFiles:
    by_suffix: dict[str, list[Path]] = defaultdict(list)
    for path in _walk(root):
        by_suffix[path.suffix.lower()].append(path)
    if not by_suffix:
        raise FileNotFoundError(
            f"{root} has no file of {', '.join(SUFFIXES)}; it holds {_held(root)}. OpenFOAM cases "
            "need an empty file, as for ParaView: touch CASE/case.foam"
        )
    geometry = next((s for s in _GEOMETRY_SUFFIXES if s in by_suffix), None)
    if geometry is not None:
        by_suffix.pop(".csv", None)  # tables of parameters
    fields = [s for s in _PREFERRED if s in by_suffix and s not in _GEOMETRY_SUFFIXES]
    suffix = fields[0] if fields else None
    if suffix is None:
        suffix, geometry = geometry, None
    paths = by_suffix[suffix]
    without_numbers = [re.sub(r"\d+", "", path.stem) for path in paths]
    if suffix == ".csv":
        # Cases are the files whose names differ in numbers or folders only, unlike a table.
        ((usual, _),) = Counter(without_numbers).most_common(1)
        paths = [path for path, name in zip(paths, without_numbers, strict=True) if name == usual]
    if suffix in _SET_SUFFIXES and layout != "files" and geometry is None:
        one_each = len(set(without_numbers)) == len(paths) and {p.parent for p in paths} == {root}
        if layout == "set" or len(paths) == 1 or (suffix == ".npy" and one_each):
            return CaseFiles({}, tuple(paths), whole_set=True)
    cases: dict[str, list[Path]] = defaultdict(list)
    for path, case in _ids(root, paths).items():
        cases[case].append(path)
    used = [suffix]
    if geometry is not None and suffix in _SET_SUFFIXES:
        shapes = {case: path for path, case in _ids(root, by_suffix[geometry]).items()}
        if shapes.keys() >= cases.keys():
            used.insert(0, geometry)
            for case, files in cases.items():
                files.insert(0, shapes[case])
    told = [f"{len(cases)} cases, each a file {' and a file '.join(used)}: {some(in_order(cases))}"]
    others = [f"{len(p)} {s}" for s, p in by_suffix.items() if s not in (*used, ".csv")]
    if others:
        listed = ", ".join(others)
        told.append(f"left aside are {listed} files; name them in data.reader.files to read them")
    ordered = {case: tuple(cases[case]) for case in in_order(cases)}
    return CaseFiles(ordered, told=tuple(told))


def _held(folder: Path) -> str:
    return some(path.name for path in sorted(folder.iterdir()))


def _walk(folder: Path, above: tuple[Path, ...] = ()) -> Iterator[Path]:
    """Yield files and stores of known formats, also broken links: no case is lost silently."""
    above = (*above, folder.resolve())
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        suffix = path.suffix.lower()
        if suffix in SUFFIXES and (suffix in STORE_SUFFIXES or not path.is_dir()):
            yield path
        elif path.is_dir():
            if path.is_symlink() and path.resolve() in above:
                raise ValueError(f"{path} is a link to a folder that it is in; remove it")
            yield from _walk(path, above)


def _ids(root: Path, paths: Sequence[Path]) -> dict[Path, str]:
    """Return the id of each file's case: the name of its folder if it has one of its own."""
    parents = {path.parent for path in paths}
    splits = any(parent.name in SPLIT_DIRECTORIES for parent in parents)
    own_folder = len(parents) > 1 and root not in parents and not splits
    alone = len(parents) == len(paths)
    if own_folder and (alone or all(path.suffix == ".npy" for path in paths)):
        ids = {path: path.parent.name for path in paths}
        if len(set(ids.values())) == len(parents):
            return ids
    ids = {path: path.stem for path in paths}
    if len(set(ids.values())) == len(paths):
        return ids
    below = {path: path.with_suffix("").relative_to(root).as_posix() for path in paths}
    return {path: name.replace("/", "_") for path, name in below.items()}


def in_order(ids: Iterable[str]) -> list[str]:
    """Return ids in the order of the numbers in them."""

    def key(text: str) -> list[tuple[bool, int | str]]:
        parts = [int(p) if p.isdigit() else p for p in re.split(r"(\d+)", text)]
        return [(isinstance(part, str), part) for part in parts]

    return sorted(ids, key=key)


def some(names: Iterable[str], most: int = 8) -> str:
    """Return the first names as text."""
    listed = [printable(name) for name in names]
    return ", ".join([*listed[:most], *(["..."] if len(listed) > most else [])]) or "nothing"


class _NotOfCases(ValueError):
    """A table that seems to be about something else."""


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
        """Return the values of a case, whose files are `beside`; a `required` file must exist."""
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
            f"{where / pattern} matches {len(found)} files for case {case}, expected one. Fetch "
            "it, correct data.reader.parameters, or give the values as data.reader.constants"
        )


def read_parameters(
    root: Path,
    given: str | None,
    case_ids: Sequence[str],
    by_position: bool,
    clouds: Collection[Path] = (),
) -> Parameters:
    """Return the parameters of the cases in CSV files: `given`, or the only table in `root`.

    `given` is a table, a pattern of one file per case, or empty for none. Rows without ids are in
    the order of the cases if `by_position`. `clouds` are CSV files with the points of cases.
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
    except ValueError as error:
        faults = {} if isinstance(error, _NotOfCases) else {"": str(error)}
        return Parameters(told=[f"no parameters are read: {error}"], faults=faults)


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
        raise ValueError(f"{path} has semicolons; save it with commas, and with decimal points")
    twice = [name for name, count in Counter(header).items() if name and count > 1]
    if twice:
        raise ValueError(f"{path} has two columns {printable(twice[0])!r}; rename one of them")
    for line, row in rows[1:]:
        if len(row) != len(header) and any(row[len(header) :]) or len(row) < len(header):
            raise ValueError(
                f"{path}: line {line} has {len(row)} entries, the header {len(header)}"
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
        if name in ("", column):
            continue
        case = next((case for case, i in place.items() if not _is_number(entries[i])), None)
        if case is None:
            numeric.append(name)
            continue
        entry, shown = entries[place[case]][:40], printable(name)
        unreadable[name] = f"{path}: column {shown} has {entry!r} for case {case}, no number"
        # A column of texts is not a parameter, but one of numbers with a hole would be.
        if any(_NUMBER.fullmatch(entries[i]) for i in place.values()):
            faults[name] = unreadable[name]
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
                    f"{path}: the columns {some(fitting)} could each be the cases; write ids "
                    f"such as {printable(case_ids[0])} into one of them"
                )
            fitting = named
        for name, found in fitting.items():
            twice = [case for case, at in found.items() if len(at) > 1]
            if twice:
                raise ValueError(
                    f"{path}: column {printable(name)!r} has {some(twice, 3)} more than once"
                )
            return name, {case: at[0] for case, at in found.items()}
    return None, {}


def _plain(text: str) -> str:
    found = re.findall(r"\d+", text)
    return str(int(found[-1])) if found and not re.search(r"\d\.\d", text) else text


def _is_number(text: str) -> bool:
    return bool(_NUMBER.fullmatch(text)) and math.isfinite(float(text))
