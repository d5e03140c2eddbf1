"""What the arrays of a case are taken for: as a config says, or guessed and reported."""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...meshes import ASSOCIATIONS, PolygonMesh
from ...meshes.measures import MEASURE_NAMES
from ..specs import TABLE_NAMES
from ..validation import MissingName, printable
from .array_files import LazyArray, Rowwise
from .case_files import some
from .contents import Contents, is_connectivity

# Choices of `weights` that are not names of arrays.
NO_WEIGHTS, MEASURE = "none", "measure"
# Coordinates of arrays that form a grid and come with none: its indices, scaled to [0, 1].
GRID = "grid"
GROUPS = ("coordinates", "features", "fields", "globals")
# Arguments of readers that have their own place in the config.
NAMES = (*GROUPS, "association")
# What is computed of a mesh, by its kind, unless an array of the file has the name.
TO_BODY = ("distance", "direction")
GEOMETRY = ("normals", "areas", "volumes", *TO_BODY)
_PICK = re.compile(r"(?P<array>.+?)\[(?P<start>\d*)(?P<range>:)?(?P<stop>\d*)\]")
_MOST_AXES = 3
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


@dataclass(frozen=True)
class Pick:
    """An array, or some of its columns."""

    array: str
    columns: slice | None = None
    text: str | None = field(default=None, compare=False)

    @classmethod
    def parse(cls, text: str) -> "Pick":
        """Return what ``name``, ``name[2]`` or ``name[1:4]`` stands for."""
        found = _PICK.fullmatch(str(text))
        if found is None:
            return cls(str(text))
        start, stop = (int(found[key]) if found[key] else None for key in ("start", "stop"))
        if found["range"] is None:
            if start is None:
                raise ValueError(f"{text!r} picks no column; write name[0] or name[1:4]")
            stop = start + 1
        return cls(found["array"], slice(start, stop), str(text))

    def __str__(self) -> str:
        """Return the text that :meth:`parse` takes."""
        return self.text or self.array

    def width(self, width: int) -> int:
        """Return how many of `width` columns are picked."""
        return len(range(width)[self.columns or slice(None)])


def distinct_names(argument: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return `names`, or raise if one of them is listed twice."""
    if len(set(names)) < len(names):
        raise ValueError(f"{argument} is {list(names)}; name every array once")
    return tuple(names)


def parse_names(argument: str, given: Any) -> dict[str, Pick] | None:
    """Return {name: pick} of a name, of names, or of {name: array with columns}; None of None."""
    if given is None:
        return None
    if isinstance(given, Mapping):
        return {str(name): Pick.parse(text) for name, text in given.items()}
    texts = [given] if isinstance(given, str) else list(map(str, given))
    named = [re.sub(r"\W+", "_", t).strip("_") if _PICK.fullmatch(t) else t for t in texts]
    distinct_names(argument, named)
    return {name: Pick.parse(text) for name, text in zip(named, texts, strict=True)}


@dataclass(frozen=True)
class Names:
    """What the arrays of a case are taken for."""

    coordinates: Mapping[str, Pick] | None = None
    features: Mapping[str, Pick] | None = None
    fields: Mapping[str, Pick] | None = None
    globals: Mapping[str, Pick] | None = None
    association: str | None = None
    weights: str = NO_WEIGHTS
    grid: tuple[int, ...] | None = None

    @classmethod
    def parse(
        cls,
        *,
        association: str | None = None,
        weights: str = NO_WEIGHTS,
        grid: Sequence[int] | None = None,
        **given: Any,
    ) -> "Names":
        """Return the names of a config: of :data:`GROUPS` what :func:`parse_names` takes."""
        place = None if association in (None, "auto") else str(association).removesuffix("s")
        if place is not None and place not in ASSOCIATIONS:
            raise ValueError(f"data.association is {association!r}, expected cells, points or auto")
        picks = {key: parse_names(key, value) for key, value in given.items()}
        if picks.get("fields") == {}:
            raise ValueError("data.fields is empty; name at least one array to predict")
        if given.get("coordinates") == GRID:
            picks["coordinates"] = {}
        grid = None if grid is None else tuple(grid)
        return cls(**picks, association=place, weights=weights, grid=grid)

    def as_config(self) -> dict[str, Any]:
        """Return the values of a config that :meth:`parse` takes, None for what is not known."""
        found: dict[str, Any] = dict.fromkeys(GROUPS)
        for key in (key for key in GROUPS if getattr(self, key) is not None):
            texts = {name: str(pick) for name, pick in getattr(self, key).items()}
            found[key] = list(texts) if all(n == t for n, t in texts.items()) else texts
        if found["coordinates"] == []:
            found["coordinates"] = GRID
        return found | {"association": self.association and f"{self.association}s"}

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to guess but coordinates, which a mesh has."""
        return None not in (self.features, self.fields, self.globals)

    def arrays(self, *groups: str) -> set[str]:
        """Return the arrays named in some groups, as far as these are known."""
        return {p.array for key in groups or GROUPS for p in (getattr(self, key) or {}).values()}

    def stored(self) -> set[str] | None:
        """Return the names of all arrays that are used, None if they are not known yet."""
        if not self.is_complete:
            return None
        return self.arrays() | ({self.weights} - {NO_WEIGHTS, MEASURE}) | set(MEASURE_NAMES)

    def unused(self, contents: Contents) -> dict[str, str]:
        """Return what a case holds and these names leave unused, with where it is."""
        used = self.stored() or set(MEASURE_NAMES)
        used |= {TABLE_NAMES[name][0] for name in used if name in TABLE_NAMES}
        used |= {name for name, array in contents.arrays.items() if is_connectivity(name, array)}
        return {name: place for name, place in contents.names().items() if name not in used}


def missing(contents: Contents, name: str) -> MissingName:
    """Return the error for a name that a case does not hold, with what it holds."""
    if name in contents.unreadable:
        return MissingName(f"{contents.unreadable[name]}. Repair the file, or name another array")
    present = []
    for other, where in contents.names().items():
        array = contents.arrays.get(other)
        kind = where if array is None else f"array {tuple(array.shape)}"
        present.append(f"{printable(other)} ({kind})")
    n_tokens = ""
    if contents.mesh is not None:
        n_tokens = f" for {contents.count('cell')} cells and {contents.count('point')} points"
    files = list(dict.fromkeys([contents.source, *contents.origins.values()]))
    none = f"{files[0]} has no" if len(files) == 1 else f"none of {some(map(str, files))} has an"
    return MissingName(
        f"{none} array {name!r}{n_tokens}; present: "
        f"{', '.join(sorted(present)) or 'none'}. Name one of these in data.fields, data.features, "
        "data.globals, data.coordinates or data.weights, or leave the case out of data.splits"
    )


def find_place(contents: Contents, names: Names) -> str:
    """Return where on a mesh the tokens are: where all named arrays are, cells or points."""
    groups = (names.fields, names.features)
    wanted = [pick.array for picks in groups for pick in (picks or {}).values()]
    wanted = [name for name in wanted if name not in GEOMETRY]
    wanted += [] if names.weights in (NO_WEIGHTS, MEASURE) else [names.weights]
    allowed = ASSOCIATIONS if names.association is None else (names.association,)
    # A mesh may have arrays that were not read.
    listed = contents.mesh.array_names()
    present = {place: {*contents.columns(place), *listed.get(place, ())} for place in ASSOCIATIONS}
    fitting = [place for place in allowed if all(name in present[place] for name in wanted)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise ValueError(
            f"{contents.source} has {', '.join(wanted) or 'no named arrays'} for cells and for "
            "points alike; set data.association to 'cells' or 'points'"
        )
    told = []
    for name in dict.fromkeys(wanted):
        places = [place for place in ASSOCIATIONS if name in present[place]]
        if not places:
            raise missing(contents, name)
        told.append(f"{name} is {' and '.join(places)} data")
    asked = "" if names.association is None else f", but data.association is {names.association}s"
    raise ValueError(
        f"{contents.source}: {', '.join(told)}{asked}; fields, features and weights must all be at "
        "cells or all at points. Name others, or use pyvista's cell_data_to_point_data()"
    )


def token_shape(contents: Contents, names: Names) -> tuple[int, tuple[int, ...] | None]:
    """Return the number of tokens in files of arrays, and the shape of their grid if they have one.

    Coordinates are (N, d) of points; (rows, columns, d), or (rows, columns) each, of a grid.
    """
    picks = names.coordinates or {}
    for pick in picks.values():
        if pick.array not in contents.arrays:
            raise missing(contents, pick.array)
    shapes = {pick.array: tuple(contents.arrays[pick.array].shape) for pick in picks.values()}
    if names.grid is not None:
        return math.prod(names.grid), names.grid
    if not picks:
        shape = _grid_of_fields(contents, names)
        return math.prod(shape), shape
    array, shape = next(iter(shapes.items()))
    has_channels = len(shape) > 1 and (len(picks) == 1 or shape[-1] == 1)
    of_tokens = shape[:-1] if has_channels else shape
    if not of_tokens:
        raise ValueError(
            f"{contents.source}: {next(iter(picks))} (of the coordinates) has shape {shape}, "
            "expected (points, dimensions) or, on a grid, (rows, columns, dimensions)"
        )
    axes = len(of_tokens)
    width = sum(p.width(math.prod(shapes[p.array][axes:])) for p in picks.values())
    if width > _MOST_AXES:
        turned = f"Transposed? Then save it as {shape[::-1]}, or name" * (shape[0] <= _MOST_AXES)
        raise ValueError(
            f"{contents.source_of(array)}: {', '.join(shapes)} with shape {shape} would give each "
            f"point {width} coordinates. {turned or 'Name'} other data.coordinates"
        )
    return math.prod(of_tokens), of_tokens if axes > 1 else None


def _grid_of_fields(contents: Contents, names: Names) -> tuple[int, ...]:
    stored = [pick.array for pick in (names.fields or {}).values()]
    for name in stored:
        if name not in contents.arrays:
            raise missing(contents, name)
    shapes = [tuple(contents.arrays[name].shape) for name in stored] or [
        tuple(array.shape) for array in contents.arrays.values() if len(array.shape) >= 2
    ]
    # A last axis of channels, of the vectors among them, is longer than the grid of the scalars.
    shape = min(shapes, key=len, default=())
    if len(shape) < 2:
        raise ValueError(
            f"{contents.source}: fields of shape {shape} are not a grid; name data.coordinates"
        )
    return shape


def token_columns(
    arrays: Mapping[str, Rowwise], n: int, grid: tuple[int, ...] | None
) -> dict[str, Rowwise]:
    """Return the arrays that have a row for each of `n` tokens, those of a grid row by row."""
    found = {}
    for name, array in arrays.items():
        shape = tuple(array.shape)
        if grid is not None and shape[: len(grid)] == grid and len(shape) <= len(grid) + 1:
            found[name] = _flat(array, (n, *shape[len(grid) :]))
        elif shape[:1] == (n,) and len(shape) <= 2:
            found[name] = array
    return found


def _flat(array: Rowwise, shape: tuple[int, ...]) -> Rowwise:
    if isinstance(array, np.ndarray):
        return array.reshape(shape)  # a view, so that a memory map stays one
    return LazyArray(shape, lambda rows: np.asarray(array[slice(None)]).reshape(shape)[rows])


def complete(names: Names, cases: Sequence[Contents]) -> tuple[Names, list[str]]:
    """Return the names with guesses for those that were not given, and what was guessed."""
    first, told = cases[0], []
    if first.mesh is not None:
        place = names.association
        if place is None:
            # Where the named arrays are, or else where most results are.
            results = {p: sum(_is_result(n, first) for n in first.columns(p)) for p in ASSOCIATIONS}
            known = names.fields is not None
            place = find_place(first, names) if known else max(results, key=results.get)
            told.append(f"tokens are the {place}s of the mesh")
        names = replace(names, association=place)
        columns = token_columns(first.columns(place), first.count(place), None)
    else:
        if names.coordinates is None:
            names = replace(names, coordinates=_guess_coordinates(first, names))
            shown = ", ".join(names.coordinates) or "the indices of the grid"
            told.append(f"coordinates are {shown}")
        columns = token_columns(first.arrays, *token_shape(first, names))
    references = [name for name in first.names() if _REFERENCE in name]
    if references:
        told.append(f"left aside are {', '.join(references)}: a config takes them for references")
    used = {*names.arrays(), names.weights, *references, *MEASURE_NAMES}

    def take(key: str, what: str, chosen: Collection[str]) -> None:
        nonlocal names, used
        told.append(f"{what} are {', '.join(chosen) or 'none'}")
        names, used = replace(names, **{key: {n: Pick(n) for n in chosen}}), used | set(chosen)

    if names.fields is None:
        fields = [n for n in columns if n not in used and _is_result(n, first)]
        if not fields:
            raise ValueError(
                f"{first.source} has no array that could be predicted, only "
                f"{some(first.names())}. Name one as data.fields=[...]"
            )
        take("fields", "fields to predict", fields)
    if names.features is None:
        stored = first.columns(names.association)
        features = [n for n in columns if n not in used and _is_input(n, stored[n])]
        if isinstance(first.mesh, PolygonMesh) and np.ptp(first.mesh.points, axis=0).all():
            others = [n for n in features if not re.fullmatch("(?i).*(normals?|areas?)", n)]
            features = ["normals", *others]
        take("features", "features", features)
    if names.globals is None:
        values = [_case_values(case, names) for case in cases]
        found = [n for n in values[0] if n not in used and _is_parameter(n, values)]
        take("globals", "globals", found)
    return names, told


def is_coordinates(name: str) -> bool:
    """Return whether an array has one of the usual names of coordinates."""
    plain = name.rpartition("/")[2]
    return plain.lower() in _COORDINATES or any(plain in axes for axes in _AXES)


def _is_input(name: str, array: Rowwise) -> bool:
    """Return whether an array of tokens is an input: by its name, or by whole numbers that vary."""
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


def _guess_coordinates(contents: Contents, names: Names) -> dict[str, Pick]:
    """Return the first arrays with usual names that fit the others, or none for a grid."""
    candidates = [{n: Pick(n) for n in found} for found in _coordinate_candidates(contents)]
    for picks in candidates:
        if _fits(contents, replace(names, coordinates=picks)):
            return picks
    shapes = [a.shape for a in contents.arrays.values() if len(a.shape) >= 2]
    if shapes and all(min(shape[:2]) > 3 for shape in shapes):
        return {}
    if candidates:
        return candidates[0]
    raise ValueError(
        f"{contents.source} holds no array that looks like coordinates, only "
        f"{some(contents.names())}. Set data.coordinates to a name, a list of arrays x, y, z, "
        f"or {GRID!r} for the indices of a grid"
    )


def _coordinate_candidates(contents: Contents) -> list[list[str]]:
    """Return arrays with usual names: those with all axes, then one per axis, then one alone."""
    arrays = {n: a for n, a in contents.arrays.items() if a.dtype.kind != "b" and len(a.shape) >= 1}
    whole, lines, axes = [], [], []
    for usual in _COORDINATES:
        for name in (n for n in arrays if n.rpartition("/")[2].lower() == usual):
            several = len(arrays[name].shape) > 1 and arrays[name].shape[-1] > 1 and usual != "x"
            (whole if several else lines).append([name])
    for names in _AXES:
        found = [n for n in names if n in arrays and names[0] in arrays]
        alike = [n for n in found if arrays[n].shape == arrays[names[0]].shape]
        axes += [alike] if len(alike) >= 2 else []
    return [*whole, *axes, *lines]


def _fits(contents: Contents, names: Names) -> bool:
    """Return whether coordinates leave something to predict that has a row for each point."""
    try:
        n, grid = token_shape(contents, names)
    except ValueError:
        return False
    columns = token_columns(contents.arrays, n, grid).keys() - names.arrays("coordinates")
    results = names.arrays("fields") or {name for name in columns if _is_result(name, contents)}
    return n > _FEW_POINTS and not columns.isdisjoint(results)


def _case_values(contents: Contents, names: Names) -> dict[str, Rowwise]:
    """Return what is of the whole case: its values, and small arrays that are not of tokens."""
    small = {n: a for n, a in contents.arrays.items() if math.prod(a.shape) <= _MOST_VALUES}
    if small and contents.mesh is not None:
        of_tokens = [(contents.count(place),) for place in ASSOCIATIONS]
    elif small:
        n_tokens, grid = token_shape(contents, names)
        of_tokens = [(n_tokens,), *([] if grid is None else [grid])]
    values = {n: v for n, v in contents.values.items() if v.size <= _MOST_VALUES}
    return {
        n: a for n, a in small.items() if not any(a.shape[: len(s)] == s for s in of_tokens)
    } | values


def _is_parameter(name: str, cases: Sequence[Mapping[str, Rowwise]]) -> bool:
    """Return whether a value of the case may be an input: no result, and not always the same."""
    if RESULT.match(name) or any(name not in values for values in cases):
        return False
    read = [np.asarray(values[name][...]).reshape(-1) for values in cases]
    if any(value.dtype.kind not in "fiub" or len(value) != len(read[0]) for value in read):
        return False
    return len(cases) == 1 or any(not np.array_equal(value, read[0]) for value in read[1:])
