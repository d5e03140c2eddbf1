"""What the arrays of a case are taken for where a config does not say; never silently.

:func:`complete` returns sentences about all that it took for what.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ...meshes import ASSOCIATIONS, PolygonMesh
from ...meshes.measures import MEASURE_NAMES
from .base import Rowwise
from .case_tables import find_place, token_columns, token_shape
from .contents import Contents, is_connectivity
from .names import GRID, Names, Pick

_COORDINATES = (
    *("coordinates", "coords", "points", "positions", "position", "pos", "xyz", "xy", "nodes"),
    *("vertices", "centers", "centres", "surface_mesh_centers", "cell_centers", "x"),
)
_AXES = (("x", "y", "z"), ("X", "Y", "Z"), ("x1", "x2", "x3"), ("Points_0", "Points_1", "Points_2"))
# Of arrays that describe the geometry, never a result.
_INPUT = re.compile(
    r"normals?|.*_normals?|areas?|.*_areas?|volumes?|sdf|(wall_?)?distance|curvature|mask|.*_mask|"
    r"boundary|material|inlet|(is_)?wall",
    re.IGNORECASE,
)
_NUMBERS = re.compile(r".*(ids?|index|indices|rank|partition|ghosttype)", re.IGNORECASE)
# Of values of a case that are results of it, which would give the answer away.
RESULT = re.compile(
    r"(?i:c_?[dlsm](_?[fr])?|drag|lift|force|moment|coeff(icient)?|error|loss|runtime|iterations?)"
    r"(\b|_|[A-Z0-9]|s\b)"
)
_MOST_VALUES = 64
# As many rows are the values of a case rather than its points.
_FEW_POINTS = 3
# Of OmegaConf, which would put something else in the place of a name that a file gives.
_REFERENCE = "${"


def complete(names: Names, cases: Sequence[Contents]) -> tuple[Names, list[str]]:
    """Return the names with guesses for those that were not given, and what was guessed."""
    first, told = cases[0], []
    if first.mesh is not None:
        place = names.association or _guess_place(first, names)
        if names.association is None:
            told.append(f"tokens are the {place}s of the mesh")
        names = replace(names, association=place)
        columns = token_columns(first.columns(place), first.count(place), None)
    else:
        if names.coordinates is None:
            names = replace(names, coordinates=_guess_coordinates(first, names))
            shown = ", ".join(names.coordinates) or "the indices of the grid"
            told.append(f"coordinates are {shown}")
        n, grid = token_shape(first, names)
        columns = token_columns(first.arrays, n, grid)
    references = [name for name in first.names() if _REFERENCE in name]
    if references:
        told.append(f"left aside are {', '.join(references)}: a config takes them for references")
    columns = {name: column for name, column in columns.items() if name not in references}
    used = {p.array for p in (names.coordinates or {}).values()} | {names.weights, *references}
    used |= set(MEASURE_NAMES)
    for key in ("features", "fields", "globals"):
        used |= {pick.array for pick in (getattr(names, key) or {}).values()}
    if names.fields is None:
        fields = {n: Pick(n) for n in columns if n not in used and _is_result(n, first)}
        if not fields:
            raise ValueError(
                f"{first.source} holds no array that could be predicted; it has "
                f"{_listed(first.names())}. Name one as data.fields=[...]"
            )
        told.append(f"fields to predict are {', '.join(fields)}")
        names, used = replace(names, fields=fields), used | set(fields)
    if names.features is None:
        stored = first.columns(names.association)
        features = {n: Pick(n) for n in columns if n not in used and _is_input(n, stored[n])}
        if isinstance(first.mesh, PolygonMesh) and np.ptp(first.mesh.points, axis=0).all():
            features = {"normals": Pick("normals")} | {
                n: p for n, p in features.items() if not re.fullmatch("(?i).*(normals?|areas?)", n)
            }
        told.append(f"features are {', '.join(features) or 'none'}")
        names, used = replace(names, features=features), used | set(features)
    if names.globals is None:
        values = [_case_values(case, names) for case in cases]
        candidates = {n: Pick(n) for n in values[0] if n not in used}
        parameters = {n: p for n, p in candidates.items() if _is_parameter(n, values)}
        told.append(f"globals are {', '.join(parameters) or 'none'}")
        names = replace(names, globals=parameters)
    return names, told


def _listed(names: Mapping[str, str]) -> str:
    return ", ".join(f"{name} ({place})" for name, place in names.items()) or "no arrays"


def is_coordinates(name: str) -> bool:
    """Return whether an array has one of the usual names of coordinates."""
    plain = name.rpartition("/")[2]
    return plain.lower() in _COORDINATES or any(plain in axes for axes in _AXES)


def _is_input(name: str, array: Rowwise) -> bool:
    """Return whether an array of tokens is an input: by its name, or because it is not real.

    Whole numbers and truths that are the same at all tokens, or number them, tell a model nothing.
    """
    if _INPUT.fullmatch(name):
        return True
    if array.dtype.kind not in "iub" or _NUMBERS.fullmatch(name) or is_connectivity(name, array):
        return False
    values = np.asarray(array[...])
    return bool((values != values.reshape(-1)[:1]).any())


def _is_result(name: str, contents: Contents) -> bool:
    """Return whether an array of tokens may be a result: of real numbers, and not of geometry."""
    if _INPUT.fullmatch(name) or _NUMBERS.fullmatch(name) or name in MEASURE_NAMES:
        return False
    places = [contents.arrays]
    if contents.mesh is not None:
        places += [contents.mesh.data.get(place, {}) for place in ASSOCIATIONS]
    return any(p[name].dtype.kind == "f" for p in places if name in p)


def _guess_place(contents: Contents, names: Names) -> str:
    """Return where the named arrays are, or else where most results are."""
    if names.fields is not None:
        return find_place(contents, names)
    counts = {
        place: sum(_is_result(n, contents) for n in contents.columns(place))
        for place in ASSOCIATIONS
    }
    return max(ASSOCIATIONS, key=lambda place: counts[place])


def _guess_coordinates(contents: Contents, names: Names) -> dict[str, Pick]:
    """Return the first arrays with usual names that fit the others, or none for a grid."""
    candidates = _coordinate_candidates(contents)
    for picks in candidates:
        if _fits(contents, replace(names, coordinates=picks)):
            return picks
    if any(len(array.shape) >= 2 for array in contents.arrays.values()):
        shapes = [a.shape for a in contents.arrays.values() if len(a.shape) >= 2]
        if all(len(shape) >= 2 and min(shape[:2]) > 3 for shape in shapes):
            return {}
    if candidates:
        return candidates[0]
    raise ValueError(
        f"{contents.source} holds no array that looks like coordinates; it has "
        f"{_listed(contents.names())}. Name them as data.coordinates=NAME, as a list of arrays x, "
        f"y, z, or as {GRID!r} for the indices of a grid"
    )


def _coordinate_candidates(contents: Contents) -> list[dict[str, Pick]]:
    """Return arrays with usual names: those with all axes, then one per axis, then one alone."""
    arrays = {n: a for n, a in contents.arrays.items() if a.dtype.kind != "b" and len(a.shape) >= 1}
    whole, lines, axes = [], [], []
    for usual in _COORDINATES:
        for name in (n for n in arrays if n.rpartition("/")[2].lower() == usual):
            several = len(arrays[name].shape) > 1 and arrays[name].shape[-1] > 1 and usual != "x"
            (whole if several else lines).append({name: Pick(name)})
    for names in _AXES:
        found = [n for n in names if n in arrays and names[0] in arrays]
        alike = [n for n in found if arrays[n].shape == arrays[names[0]].shape]
        if len(alike) >= 2:
            axes.append({name: Pick(name) for name in alike})
    return [*whole, *axes, *lines]


def _fits(contents: Contents, names: Names) -> bool:
    """Return whether coordinates leave something to predict that has a row for each point."""
    try:
        n, grid = token_shape(contents, names)
    except ValueError:
        return False
    used = {pick.array for pick in names.coordinates.values()}
    asked = None if names.fields is None else {pick.array for pick in names.fields.values()}
    columns = token_columns(contents.arrays, n, grid).keys() - used
    results = asked or {name for name in columns if _is_result(name, contents)}
    return n > _FEW_POINTS and not columns.isdisjoint(results)


def _case_values(contents: Contents, names: Names) -> dict[str, Rowwise]:
    """Return what is of the whole case: its values, and small arrays that are not of tokens."""
    small = {
        name: array
        for name, array in contents.arrays.items()
        if math.prod(array.shape) <= _MOST_VALUES and not _is_of_tokens(contents, names, array)
    }
    values = {n: v for n, v in contents.values.items() if v.size <= _MOST_VALUES}
    return {**small, **values}


def _is_of_tokens(contents: Contents, names: Names, array: Rowwise) -> bool:
    if contents.mesh is not None:
        return array.shape[:1] in [(contents.count(place),) for place in ASSOCIATIONS]
    n, grid = token_shape(contents, names)
    return array.shape[:1] == (n,) or (grid is not None and array.shape[: len(grid)] == grid)


def _is_parameter(name: str, cases: Sequence[Mapping[str, Rowwise]]) -> bool:
    """Return whether a value of the case may be an input: no result, and not always the same."""
    if RESULT.match(name):
        return False
    found = [values.get(name) for values in cases]
    if any(value is None for value in found):
        return False
    read = [np.asarray(value[...]).reshape(-1) for value in found]
    if any(value.dtype.kind not in "fiub" or len(value) != len(read[0]) for value in read):
        return False
    return len(cases) == 1 or any(not np.array_equal(value, read[0]) for value in read[1:])
