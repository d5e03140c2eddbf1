"""Which files make up the cases of a folder: by patterns with ``{case}``, or by what lies there."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...meshes import SUFFIXES as MESH_SUFFIXES
from ..validation import printable
from .contents import STORE_SUFFIXES, SUFFIXES

CASE = "{case}"
_GEOMETRY_SUFFIXES = (".stl", ".ply", ".obj")
# Arrays in these may hold all cases.
_SET_SUFFIXES = (".npz", ".h5", ".hdf5", ".zarr", ".npy")
SPLIT_DIRECTORIES = ("train", "val", "valid", "validation", "test")
# Of several kinds of files the first is taken for the cases; geometry alone has no fields.
_PREFERRED = (
    ".foam",  # the folder of an OpenFOAM case may hold files of other formats
    *MESH_SUFFIXES,
    *(".pdmsh", ".pmsh", *_SET_SUFFIXES, ".csv"),
)


@dataclass(frozen=True)
class CaseFiles:
    """The files of all cases of a folder."""

    cases: Mapping[str, tuple[Path, ...]]
    shared: tuple[Path, ...] = ()
    array_names: Mapping[Path, str] = field(default_factory=dict)
    told: tuple[str, ...] = ()
    whole_set: bool = False


def find_files(root: Path, patterns: Sequence[str] | None, layout: str = "auto") -> CaseFiles:
    """Return the files of the cases under `root`."""
    if layout not in ("auto", "files", "set"):
        raise ValueError(f"data.reader.layout is {layout!r}, expected 'auto', 'files' or 'set'")
    if not root.exists():
        raise FileNotFoundError(
            f"data.root {root} does not exist; give the folder of the cases, or the file with all"
        )
    if root.suffix.lower() in SUFFIXES:
        return _one_file(root, layout)
    if patterns is not None:
        found = _by_patterns(root, patterns, layout)
    else:
        found = _by_looking(root, layout)
    for case, paths in found.cases.items():
        # An id is a line of a list, an entry of JSON, and with `flarepp prepare` a folder.
        if not case.isprintable() or case in (".", ".."):
            raise ValueError(
                f"{printable(paths[0])} would be the case {case!r}, a name that cannot be printed "
                "or is not a name; rename the file"
            )
    return found


def _one_file(path: Path, layout: str) -> CaseFiles:
    names = {path: path.stem} if path.suffix == ".npy" else {}
    if path.suffix.lower() in _SET_SUFFIXES and layout != "files":
        return CaseFiles({}, (path,), names, whole_set=True)
    return CaseFiles({path.stem: (path,)}, array_names=names)


def pattern_expression(pattern: str) -> re.Pattern:
    """Return the regular expression of a glob with ``{case}``.

    Examples
    --------
    >>> expression = pattern_expression("run_{case}/boundary_{case}.vtp")
    >>> expression.fullmatch("run_7/boundary_7.vtp")["case"]
    '7'
    >>> expression.fullmatch("run_7/boundary_8.vtp") is None
    True
    """
    expression, seen = "", False
    for part in re.split(r"(\{case\}|\*\*/|\*|\?)", pattern):
        if part == CASE:
            expression += "(?P=case)" if seen else "(?P<case>[^/]+?)"
            seen = True
        else:
            known = {"**/": "(?:.*/)?", "*": "[^/]*", "?": "[^/]"}
            expression += known.get(part, re.escape(part))
    return re.compile(expression)


def _by_patterns(root: Path, patterns: Sequence[str], layout: str) -> CaseFiles:
    found: dict[str, list[Path]] = defaultdict(list)
    shared, names = [], {}
    counts = {}
    for pattern in patterns:
        glob = pattern.replace(CASE, "*")
        paths = sorted(root.glob(glob))
        if not paths:
            raise FileNotFoundError(
                f"{root} holds nothing that matches data.reader.files {pattern!r}; it holds "
                f"{some(path.name for path in sorted(root.iterdir()))}"
            )
        for path in paths:
            if path.suffix.lower() not in SUFFIXES:
                raise ValueError(
                    f"{path} matches {pattern!r} but is not a file of {', '.join(SUFFIXES)}; make "
                    "the pattern narrower"
                )
        if CASE in pattern:
            expression = pattern_expression(pattern)
            ids = {p: m["case"] for p in paths if (m := expression.fullmatch(_relative(root, p)))}
        elif "*" in pattern or "?" in pattern:
            ids = _ids(root, paths)
        else:
            shared += paths
            names |= _array_names(paths, {})
            continue
        counts[pattern] = set(ids.values())
        names |= _array_names(list(ids), ids)
        for path, case in ids.items():
            found[case].append(path)
    every = set().union(*counts.values())
    for pattern, ids in counts.items():
        if absent := sorted(every - ids):
            raise FileNotFoundError(
                f"{root}: {len(absent)} of {len(every)} cases have no file {pattern!r}: "
                f"{some(absent)}. Fetch them, or move the other files of these cases away"
            )
    whole = layout == "set" or (not found and layout == "auto")
    return CaseFiles(
        {} if whole else {case: tuple(found[case]) for case in in_order(found)},
        tuple(shared) if not whole else (*shared, *(p for paths in found.values() for p in paths)),
        names,
        whole_set=whole,
    )


def _by_looking(root: Path, layout: str) -> CaseFiles:
    by_suffix: dict[str, list[Path]] = defaultdict(list)
    for path in _walk(root):
        by_suffix[path.suffix.lower()].append(path)
    if not by_suffix:
        raise FileNotFoundError(
            f"{root} holds no file of {', '.join(SUFFIXES)}; it holds "
            f"{some(path.name for path in sorted(root.iterdir()))}. Cases of OpenFOAM need an "
            "empty file in them, as for ParaView: touch CASE/case.foam"
        )
    geometry = next((s for s in _GEOMETRY_SUFFIXES if s in by_suffix), None)
    if geometry is not None:
        by_suffix.pop(".csv", None)  # tables of parameters
    fields = [s for s in _PREFERRED if s in by_suffix and s not in _GEOMETRY_SUFFIXES]
    suffix = fields[0] if fields else None
    if suffix is None:
        suffix, geometry = geometry, None
    paths = by_suffix[suffix]
    if suffix == ".csv":
        paths = _alike(paths)
    if suffix in _SET_SUFFIXES and layout != "files" and geometry is None:
        single = len(paths) == 1
        same_names = len({re.sub(r"\d+", "", path.stem) for path in paths}) < len(paths)
        if (
            layout == "set"
            or single
            or (suffix == ".npy" and not same_names and {p.parent for p in paths} == {root})
        ):
            return CaseFiles({}, tuple(paths), _array_names(paths, {}), whole_set=True)
    ids = _ids(root, paths)
    cases: dict[str, list[Path]] = defaultdict(list)
    for path, case in ids.items():
        cases[case].append(path)
    used = [suffix]
    if geometry is not None and suffix in _SET_SUFFIXES:
        shapes = {case: path for path, case in _ids(root, by_suffix[geometry]).items()}
        if shapes.keys() >= cases.keys():
            used.insert(0, geometry)
            for case, files in cases.items():
                files.insert(0, shapes[case])
    told = [f"{len(cases)} cases, each a file {' and a file '.join(used)}: {some(in_order(cases))}"]
    others = {s: len(p) for s, p in by_suffix.items() if s not in (*used, ".csv")}
    if others:
        listed = ", ".join(f"{count} {s}" for s, count in others.items())
        told.append(f"left aside are {listed} files; name them in data.reader.files to read them")
    return CaseFiles(
        {case: tuple(cases[case]) for case in in_order(cases)},
        array_names=_array_names(paths, ids),
        told=tuple(told),
    )


def _alike(paths: Sequence[Path]) -> list[Path]:
    """Return the files whose names differ in numbers or folders only; a table is none of them."""
    groups: dict[str, list[Path]] = defaultdict(list)
    for path in paths:
        groups[re.sub(r"\d+", "", path.stem)].append(path)
    return max(groups.values(), key=len)


def _walk(folder: Path, above: tuple[Path, ...] = ()) -> Iterator[Path]:
    """Return the files of known formats in a folder, and the stores, which are folders.

    Links that lead nowhere are among them, for a case must not be lost without a word.
    """
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
    own_folder = (
        len(parents) > 1
        and root not in parents
        and not any(parent.name in SPLIT_DIRECTORIES for parent in parents)
    )
    alone = len(parents) == len(paths)
    if own_folder and (alone or all(path.suffix == ".npy" for path in paths)):
        ids = {path: path.parent.name for path in paths}
        if len(set(ids.values())) == len(parents):
            return ids
    ids = {path: path.stem for path in paths}
    if len(set(ids.values())) == len(paths):
        return ids
    return {path: _relative(root, path.with_suffix("")).replace("/", "_") for path in paths}


def _array_names(paths: Iterable[Path], ids: Mapping[Path, str]) -> dict[Path, str]:
    """Return the names of the arrays of .npy files: of the file, without the id of the case.

    Examples
    --------
    >>> path = Path("fields/run_7_pressure.npy")
    >>> list(_array_names([path], {path: "run_7"}).values())
    ['pressure']
    """
    names = {}
    for path in paths:
        if path.suffix == ".npy":
            name = path.stem
            if path in ids and ids[path] in name:
                name = name.replace(ids[path], "", 1).strip("_-. ") or "values"
            names[path] = name
    return names


def _relative(root: Path, path: Path) -> str:
    return path.relative_to(root).as_posix()


def in_order(ids: Iterable[str]) -> list[str]:
    """Return ids in the order of the numbers in them.

    Examples
    --------
    >>> in_order(["run_10", "run_9"])
    ['run_9', 'run_10']
    """
    key = lambda text: [int(p) if p.isdigit() else p for p in re.split(r"(\d+)", text)]  # noqa: E731
    return sorted(ids, key=lambda text: [(isinstance(p, str), p) for p in key(text)])


def some(names: Iterable[str], most: int = 8) -> str:
    """Return the first names as text."""
    listed = [printable(name) for name in names]
    return (
        ", ".join(listed[:most]) + (", ..." if len(listed) > most else "") if listed else "nothing"
    )
