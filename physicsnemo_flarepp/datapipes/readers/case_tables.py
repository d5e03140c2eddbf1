"""Contents of a case as a table of tokens, by the names that its arrays were given."""

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from ...meshes import ASSOCIATIONS, CellMesh, PolygonMesh
from ...meshes.measures import (
    EFFECTIVE_MEASURE,
    MEASURE_NAMES,
    MEASURE_WEIGHTS,
    distance_to_body,
    stored_measure,
)
from ...meshes.polygons import Rows, unit_vectors
from ..specs import TABLE_AREAS
from ..validation import MissingName, printable
from .base import MEASURE, NO_WEIGHTS, LazyArray, Rowwise, TokenTable, point_areas
from .case_files import some
from .contents import Contents
from .names import Names, Pick

# What is computed of a mesh, by its kind, unless an array of the file has the name.
TO_BODY = ("distance", "direction")
GEOMETRY = ("normals", "areas", "volumes", *TO_BODY)
# A value of the whole case with more numbers is an array of tokens that was named by mistake.
_MOST_VALUES = 4096
_MOST_AXES = 3


def find_place(contents: Contents, names: Names) -> str:
    """Return where on a mesh the tokens are: where all named arrays are, cells or points."""
    wanted = [
        pick.array
        for picks in (names.fields, names.features)
        for pick in (picks or {}).values()
        if pick.array not in GEOMETRY
    ]
    wanted += [] if names.weights in (NO_WEIGHTS, MEASURE) else [names.weights]
    allowed = ASSOCIATIONS if names.association is None else (names.association,)
    present = {place: _column_names(contents, place) for place in ASSOCIATIONS}
    fitting = [place for place in allowed if all(name in present[place] for name in wanted)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise ValueError(
            f"{contents.source} holds {', '.join(wanted) or 'nothing that tells'} for cells and "
            "for points alike; set data.association to 'cells' or 'points'"
        )
    told = []
    for name in dict.fromkeys(wanted):
        places = [place for place in ASSOCIATIONS if name in present[place]]
        if not places:
            raise _missing(contents, name)
        told.append(f"{name} is {' and '.join(places)} data")
    asked = "" if names.association is None else f", but data.association is {names.association}s"
    raise ValueError(
        f"{contents.source}: {', '.join(told)}{asked}; fields, features and weights of a case "
        "must all be of cells or all of points. Name others, or convert them, for example with "
        "pyvista's cell_data_to_point_data()"
    )


def _column_names(contents: Contents, place: str) -> Collection[str]:
    n = contents.count(place)
    fitting = [name for name, array in contents.arrays.items() if array.shape[:1] == (n,)]
    return {*contents.mesh.array_names().get(place, ()), *fitting}


def _missing(contents: Contents, name: str) -> MissingName:
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
    told = f"{files[0]} has no array {name!r}"
    if len(files) > 1:
        told = f"none of {some(map(str, files))} has an array {name!r}"
    return MissingName(
        f"{told}{n_tokens}; present: "
        f"{', '.join(sorted(present)) or 'none'}. Name one of these in data.fields, data.features, "
        "data.globals, data.coordinates or data.weights, or leave the case out of data.splits"
    )


def token_shape(contents: Contents, names: Names) -> tuple[int, tuple[int, ...] | None]:
    """Return the number of tokens in files of arrays, and the shape of their grid if they have one.

    Coordinates (N, d) are of points; (rows, columns, d), or one array (rows, columns) per
    coordinate, of a grid. A grid without coordinates has the shape of its fields.
    """
    arrays = []
    for pick in (names.coordinates or {}).values():
        if pick.array not in contents.arrays:
            raise _missing(contents, pick.array)
        arrays.append(contents.arrays[pick.array])
    if names.grid is not None:
        return math.prod(names.grid), names.grid
    if not arrays:
        shape = _grid_of_fields(contents, names)
        return math.prod(shape), shape
    shape = tuple(arrays[0].shape)
    if len(arrays) == 1:
        of_tokens = shape if len(shape) == 1 else shape[:-1]
    else:
        of_tokens = shape[:-1] if len(shape) > 1 and shape[-1] == 1 else shape
    if not of_tokens:
        name = next(iter(names.coordinates))
        raise ValueError(
            f"{contents.source}: {name} (of the coordinates) has shape {shape}, expected "
            "(points, dimensions) or, on a grid, (rows, columns, dimensions)"
        )
    _check_dimensions(contents, names.coordinates, len(of_tokens))
    return math.prod(of_tokens), of_tokens if len(of_tokens) > 1 else None


def _check_dimensions(contents: Contents, picks: Mapping[str, Pick], token_axes: int) -> None:
    """Raise if points would have more than three coordinates."""
    shapes = {pick.array: tuple(contents.arrays[pick.array].shape) for pick in picks.values()}
    width = sum(p.width(math.prod(shapes[p.array][token_axes:])) for p in picks.values())
    if width > _MOST_AXES:
        name, shape = next(iter(shapes.items()))
        turned = f" Transposed? Then save it as {shape[::-1]}." if shape[0] <= _MOST_AXES else ""
        raise ValueError(
            f"{contents.source_of(name)}: {', '.join(shapes)} with shape {shape} would give each "
            f"point {width} coordinates; points have at most {_MOST_AXES}.{turned} Or name others "
            "as data.coordinates"
        )


def _grid_of_fields(contents: Contents, names: Names) -> tuple[int, ...]:
    stored = [pick.array for pick in (names.fields or {}).values()]
    for name in stored:
        if name not in contents.arrays:
            raise _missing(contents, name)
    shapes = [tuple(contents.arrays[name].shape) for name in stored] or [
        tuple(array.shape) for array in contents.arrays.values() if len(array.shape) >= 2
    ]
    # A last axis of channels, of the vectors among them, is longer than the grid of the scalars.
    shape = min(shapes, key=len, default=())
    if len(shape) < 2:
        raise ValueError(
            f"{contents.source}: the fields have the shape {shape}, which is not a grid; name the "
            "coordinates of the points as data.coordinates"
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
            found[name] = _flat(array, n, shape[len(grid) :])
        elif shape[:1] == (n,) and len(shape) <= 2:
            found[name] = array
    return found


def _flat(array: Rowwise, n: int, channels: tuple[int, ...]) -> Rowwise:
    return LazyArray(
        (n, *channels), lambda rows: np.asarray(array[slice(None)]).reshape(n, *channels)[rows]
    )


def _picked(contents: Contents, name: str, pick: Pick, column: Rowwise) -> Rowwise:
    """Return the columns of an array that a name stands for."""
    if pick.columns is None:
        return column
    width = math.prod(column.shape[1:])
    kept = pick.width(width)
    if kept == 0 or (pick.columns.stop or 0) > width:
        raise ValueError(
            f"{contents.source}: {name} is {pick}, but {pick.array} has shape "
            f"{tuple(column.shape)}: {width} columns, counted from 0"
        )
    n = column.shape[0]

    def compute(rows: Rows) -> np.ndarray:
        values = np.asarray(column[rows]).reshape(-1, width)[:, pick.columns]
        return values[:, 0] if kept == 1 else values

    return LazyArray((n,) if kept == 1 else (n, kept), compute)


def make_table(contents: Contents, names: Names) -> TokenTable:
    """Return a case as a table of tokens."""
    if contents.mesh is not None:
        place = find_place(contents, names)
        n, grid = contents.count(place), None
        if n == 0:
            raise ValueError(f"{contents.source} has no {place}s")
        geometry, measure = _mesh_geometry(contents.mesh, place)
        measure = _noted_measure(contents.mesh, place, measure)
        points = geometry.pop("coordinates")
        coordinates = _mesh_coordinates(contents, names, points)
        arrays = contents.columns(place)
        to_body = _body_columns(contents, {"xyz": points}, n)
        columns = {**to_body, **geometry, **token_columns(arrays, n, None)}
    else:
        place = "point"
        n, grid = token_shape(contents, names)
        arrays = contents.arrays
        columns = token_columns(arrays, n, grid)
        coordinates = _coordinates(contents, names, columns, n, grid)
        measure = None
        columns = {**_body_columns(contents, coordinates, n), **columns}
        if EFFECTIVE_MEASURE in columns:
            measure = columns[EFFECTIVE_MEASURE]
        elif TABLE_AREAS in columns:
            measure = _times(columns[TABLE_AREAS], columns.get(MEASURE_WEIGHTS))
        elif sum(math.prod(c.shape[1:]) for c in coordinates.values()) == 2:
            measure = point_areas(coordinates, n, grid if grid and len(grid) == 2 else None)

    def group(picks: Mapping[str, Pick]) -> dict[str, Rowwise]:
        return {
            name: _picked(contents, name, pick, _column(contents, arrays, columns, pick.array, n))
            for name, pick in picks.items()
        }

    weights = {} if measure is None else {MEASURE: measure}
    if names.weights not in (NO_WEIGHTS, MEASURE):
        weights[names.weights] = _column(contents, arrays, columns, names.weights, n)
    return TokenTable(
        contents.source,
        n,
        coordinates,
        group(names.fields),
        features=group(names.features),
        global_values=_globals(contents, names.globals),
        association=place,
        weights=weights,
        checked=contents.checked,
        # Distances to a body are too costly to compute at all tokens for a draw of some.
        decoded=contents.decoded and contents.body is None,
        held=contents.held,
    )


def _noted_measure(
    mesh: PolygonMesh | CellMesh, place: str, computed: Rowwise | None
) -> Rowwise | None:
    """Return what tokens stand for: as PhysicsNeMo's pipes noted it, or else as computed."""
    at_tokens, at_cells = (mesh.data.get(p, {}) for p in (place, "cell"))
    if EFFECTIVE_MEASURE in at_tokens:
        return at_tokens[EFFECTIVE_MEASURE]
    if place == "cell":
        return computed if computed is None else _times(computed, at_cells.get(MEASURE_WEIGHTS))
    shared = None if at_cells.keys().isdisjoint(MEASURE_NAMES) else stored_measure(mesh, place)
    return computed if shared is None else shared


def _times(areas: Rowwise, factors: Rowwise | None) -> Rowwise:
    if factors is None:
        return areas

    def compute(rows: Rows) -> np.ndarray:
        return np.asarray(areas[rows]).reshape(-1) * np.asarray(factors[rows]).reshape(-1)

    return LazyArray((areas.shape[0],), compute)


def _column(
    contents: Contents,
    arrays: Mapping[str, Rowwise],
    columns: Mapping[str, Rowwise],
    name: str,
    n: int,
) -> Rowwise:
    if name in columns:
        return columns[name]
    if name in TO_BODY and contents.body is None and name not in arrays:
        raise ValueError(
            f"{contents.source}: {name} is measured to the surface of a body, which is not known; "
            "name its files as data.reader.body, such as '{case}/body_*.stl', or, to predict, "
            "with --body"
        )
    if name in GEOMETRY and contents.mesh is not None:
        kind = "volume" if isinstance(contents.mesh, CellMesh) else "surface"
        raise ValueError(
            f"{contents.source} is a mesh of a {kind}, which has no {name}; leave {name} out of "
            "data.features"
        )
    stored = arrays.get(name, contents.arrays.get(name))
    if stored is None:
        raise _missing(contents, name)
    raise ValueError(
        f"{contents.source_of(name)}: {name} has shape {tuple(stored.shape)}, expected ({n},) or "
        f"({n}, channels), one row for each of the {n} tokens. Name another array, or other "
        "coordinates"
    )


def _mesh_geometry(
    mesh: PolygonMesh | CellMesh, place: str
) -> tuple[dict[str, Rowwise], Rowwise | None]:
    """Return coordinates and what else is computed of a mesh, and what its tokens stand for."""
    if isinstance(mesh, PolygonMesh):
        columns = _cell_columns(mesh) if place == "cell" else _point_columns(mesh)
        return columns, columns["areas"]
    n = mesh.n_cells if place == "cell" else len(mesh.points)
    read = mesh.cell_centres if place == "cell" else lambda rows: np.asarray(mesh.points)[rows]
    columns: dict[str, Rowwise] = {"coordinates": LazyArray((n, 3), read)}
    if mesh.sizes is None:
        return columns, None
    sizes = mesh.sizes if place == "cell" else mesh.point_sizes
    return {**columns, "volumes": sizes}, sizes


def _mesh_coordinates(contents: Contents, names: Names, points: Rowwise) -> dict[str, Rowwise]:
    """Return the coordinates of a mesh, or those of x, y, z that are named."""
    if not names.coordinates:
        return {"xyz": points}
    asked = [pick.array for pick in names.coordinates.values()]
    if not set(asked) <= set("xyz"):
        raise ValueError(
            f"{contents.source} is a mesh, which has its own coordinates; data.coordinates is "
            f"[{', '.join(asked)}], expected some of x, y, z, or null for all"
        )
    axes = ["xyz".index(axis) for axis in asked]
    shape = (points.shape[0], len(axes))
    return {"".join(asked): LazyArray(shape, lambda rows: np.asarray(points[rows])[:, axes])}


def _for_same_rows(compute: Callable[[Rows], Any]) -> Callable[[Rows], Any]:
    """Return a function that keeps its last result.

    The columns of one sample ask for the same rows object one after the other.
    """
    last: list = [None, None]

    def kept(rows: Rows) -> Any:
        if last[0] is not rows:
            last[:] = [rows, compute(rows)]
        return last[1]

    return kept


def _cell_columns(mesh: PolygonMesh) -> dict[str, Rowwise]:
    """Return coordinates, normals and areas of the cells, computed for the rows asked for."""
    geometry = _for_same_rows(mesh.cell_geometry)
    n = mesh.n_cells
    return {
        "coordinates": LazyArray((n, 3), lambda rows: geometry(rows)[0]),
        "normals": LazyArray((n, 3), lambda rows: unit_vectors(geometry(rows)[1])),
        "areas": LazyArray((n,), lambda rows: np.linalg.norm(geometry(rows)[1], axis=1)),
    }


def _point_columns(mesh: PolygonMesh) -> dict[str, Rowwise]:
    n = len(mesh.points)
    return {
        "coordinates": LazyArray((n, 3), lambda rows: mesh.points[rows]),
        "normals": LazyArray((n, 3), lambda rows: unit_vectors(mesh.vertex_areas[0][rows])),
        "areas": LazyArray((n,), lambda rows: mesh.vertex_areas[1][rows]),
    }


def _body_columns(
    contents: Contents, coordinates: Mapping[str, Rowwise], n: int
) -> dict[str, Rowwise]:
    """Return the signed distance of tokens to the body of a case and the direction to it."""
    if contents.body is None:
        return {}
    body = contents.body

    def points_of(rows: Rows) -> np.ndarray:
        parts = [np.asarray(column[rows]) for column in coordinates.values()]
        points = np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)
        if points.shape[1] != 3:
            raise ValueError(
                f"{contents.source} has points of dimension {points.shape[1]}; distances to the "
                "surface of a body need three"
            )
        return points

    measured = _for_same_rows(lambda rows: distance_to_body(points_of(rows), body))
    return {
        "distance": LazyArray((n,), lambda rows: measured(rows)[0]),
        "direction": LazyArray((n, 3), lambda rows: measured(rows)[1]),
    }


def _coordinates(
    contents: Contents,
    names: Names,
    columns: Mapping[str, Rowwise],
    n: int,
    grid: tuple[int, ...] | None,
) -> dict[str, Rowwise]:
    if names.coordinates:
        return {
            name: _picked(
                contents, name, pick, _column(contents, contents.arrays, columns, pick.array, n)
            )
            for name, pick in names.coordinates.items()
        }

    def indices(rows: Rows) -> np.ndarray:
        chosen = np.arange(n)[rows]
        axes = np.unravel_index(chosen, grid)
        scaled = [i / max(length - 1, 1) for i, length in zip(axes, grid, strict=True)]
        return np.stack(scaled, axis=1)

    return {"grid": LazyArray((n, len(grid)), indices)}


def _globals(contents: Contents, picks: Mapping[str, Pick]) -> dict[str, np.ndarray]:
    """Return the values of the case by name."""
    values = {}
    for name, pick in picks.items():
        stored = contents.values.get(pick.array, contents.arrays.get(pick.array))
        if stored is None and pick.array in contents.names():
            raise ValueError(
                f"{contents.source}: {name} of data.globals is {contents.names()[pick.array]}, "
                "expected a value of the whole case; arrays of tokens belong into data.features"
            )
        if stored is None:
            absent = _missing(contents, pick.array)
            raise MissingName(f"{absent}, or give its value as data.reader.constants.{name}")
        value = np.asarray(stored[...]).reshape(-1)
        value = value[pick.columns or slice(None)]
        if value.size == 0 or value.size > _MOST_VALUES:
            raise ValueError(
                f"{contents.source}: {name} of data.globals has {value.size} numbers, in an array "
                f"of shape {tuple(stored.shape)}; a value of the whole case has 1 to "
                f"{_MOST_VALUES}. An array of tokens belongs into data.features"
            )
        values[name] = value
    return values
