"""A case as a table of tokens: lazy columns, found by the names that its arrays were given."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ...files import reading
from ...meshes import CellMesh, PolygonMesh
from ...meshes.measures import (
    EFFECTIVE_MEASURE,
    MEASURE_WEIGHTS,
    cloud_areas,
    distance_to_body,
    grid_areas,
    stored_measure,
)
from ...meshes.polygons import Rows, unit_vectors
from ..specs import TABLE_AREAS
from ..validation import MissingName, check_weights, invalid_weights, missing_name
from .array_files import LazyArray, Rowwise
from .contents import Contents
from .names import (
    GEOMETRY,
    MEASURE,
    NO_WEIGHTS,
    TO_BODY,
    Names,
    Pick,
    find_place,
    missing,
    token_columns,
    token_shape,
)

COLUMN_GROUPS = ("coordinates", "features", "fields")
# Of cells without area: they are tokens like others, and 0 would remove them.
_TINY = float(np.finfo(np.float32).tiny)
# Tokens up to which all columns of a case are computed at once, to keep them.
_WHOLE_TOKENS = 1 << 20
# A value of the whole case with more numbers is an array of tokens that was named by mistake.
_MOST_VALUES = 4096


def channel_names(widths: Mapping[str, int]) -> list[str]:
    """Return one name per channel of named arrays; parts of a vector have their own names."""
    channels = []
    for name, width in widths.items():
        parts = "xyz"[:width] if width <= 3 else range(width)
        channels += [name] if width == 1 else [f"{name}_{part}" for part in parts]
    return channels


def parameter_names(widths: Mapping[str, int]) -> list[str]:
    """Return one name per number of the values of a case, which need not be vectors in space."""
    return [
        name if width == 1 else f"{name}_{i}"
        for name, width in widths.items()
        for i in range(1, width + 1)
    ]


@dataclass(frozen=True)
class TokenTable:
    """One case before anything is read: lazy columns by name, all with the token axis first."""

    source: Path | str
    n_tokens: int
    coordinates: Mapping[str, Rowwise]
    fields: Mapping[str, Rowwise]
    features: Mapping[str, Rowwise] = field(default_factory=dict)
    global_values: Mapping[str, np.ndarray] = field(default_factory=dict)
    association: str = "point"
    weights: Mapping[str, Rowwise] = field(default_factory=dict)
    shuffled: bool = False
    checked: bool = False
    # Whether all columns are in memory or computed from what is, and are worth keeping; and the
    # bytes of decoded files behind them.
    decoded: bool = False
    held: int = 0
    # Of a kept case: groups without NaN or infinity as :meth:`read` gives them, and the weights
    # that are as :meth:`read_weights` gives them. Neither is checked again.
    joined: Mapping[str, np.ndarray] = field(default_factory=dict)
    valid_weights: str | None = None

    def __post_init__(self) -> None:
        n = self.n_tokens
        for group in (*COLUMN_GROUPS, "weights"):
            for name, column in getattr(self, group).items():
                shape, scalar = tuple(column.shape), group == "weights"
                if shape[:1] != (n,) or len(shape) > 2 or scalar and math.prod(shape) != n:
                    expected = f"({n},)" if scalar else f"({n},) or ({n}, channels)"
                    raise ValueError(
                        f"{self.source}: {name} (of the {group}) has shape {shape}, expected "
                        f"{expected} for {n} tokens. Repair the file, or name another array"
                    )

    def widths(self) -> dict[str, dict[str, int]]:
        """Return the number of channels of each column and each value of the case, by group."""
        widths = {
            key: {name: math.prod(column.shape[1:]) for name, column in getattr(self, key).items()}
            for key in COLUMN_GROUPS
        }
        return widths | {"globals": {n: value.size for n, value in self.global_values.items()}}

    def channels(self) -> dict[str, list[str]]:
        """Return the names of the channels of ``fields``, ``features`` and ``globals``."""
        return self._channels

    @cached_property
    def kind(self) -> dict[str, Any]:
        """What all cases of a set have in common: where values are, dimension, channels."""
        dimension = sum(self.widths()["coordinates"].values())
        return {"association": self.association, "dimension": dimension, **self.channels()}

    @cached_property
    def _channels(self) -> dict[str, list[str]]:
        widths = self.widths()
        named = {key: channel_names(widths[key]) for key in ("fields", "features")}
        return named | {"globals": parameter_names(widths["globals"])}

    def to_keep(self, weights: str) -> tuple["TokenTable", int]:
        """Return the case as it is kept in memory, lazy if it is very large, and its bytes."""
        if not self.decoded or self.n_tokens > _WHOLE_TOKENS:
            return self, self.held
        rows = slice(0, self.n_tokens)  # one object: geometry is computed once for its columns
        with reading(self.source):
            joined = {name: self.read(name, rows) for name in COLUMN_GROUPS if getattr(self, name)}
        kept = {name: self._views(name, values) for name, values in joined.items()}
        finite = {name: values for name, values in joined.items() if np.isfinite(values).all()}
        size = sum(values.nbytes for values in joined.values())
        used = self._read_weights(weights, rows) if weights in self.weights else None
        if used is None or len(invalid_weights(used)):  # which a draw of bad ones reports
            return replace(self, **kept, joined=finite), size + self.held * bool(self.weights)
        used = _positive(weights, used)
        size += used.nbytes + self.held * (len(self.weights) > 1)
        weighted = {"weights": {**self.weights, weights: used}, "valid_weights": weights}
        return replace(self, **kept, **weighted, joined=finite), size

    def _views(self, group: str, joined: np.ndarray) -> dict[str, np.ndarray]:
        """Return the columns of a group as views of the whole group."""
        columns = getattr(self, group)
        ends = np.cumsum([math.prod(column.shape[1:]) for column in columns.values()])
        parts = np.split(joined, ends[:-1], axis=1)
        return {n: part.reshape(columns[n].shape) for n, part in zip(columns, parts, strict=True)}

    def read(self, name: str, rows: Rows) -> np.ndarray:
        """Return the rows of column group `name` as float32, (n, channels)."""
        if name in self.joined:
            return _copied_rows(self.joined[name], rows)
        parts = [np.asarray(column[rows]) for column in getattr(self, name).values()]
        parts = [part[:, None] if part.ndim == 1 else part for part in parts]
        # concatenate copies, so the sample never aliases a read-only memory map. A number too large
        # for float32 becomes infinite, which the caller reports with the name of the file.
        with np.errstate(over="ignore"):
            return np.concatenate(parts, axis=1, dtype=np.float32, casting="same_kind")

    def read_weights(self, name: str, rows: Rows, case_id: str) -> np.ndarray:
        """Return rows of a column of weights, checked, float64 (n,); an area of 0 becomes tiny."""
        if name == self.valid_weights:
            return _copied_rows(self.weights[name], rows)
        if name not in self.weights:
            if name == MEASURE:
                raise ValueError(
                    f"{self.source}: the area that each token stands for is not known. Set "
                    "data.weights=none training.norm=tokens, or data.weights to a stored array"
                )
            raise missing_name(self.source, "array of weights", name, self.weights)
        weights = self._read_weights(name, rows)
        check_weights(self.source, case_id, name, weights, rows)
        return _positive(name, weights)

    def _read_weights(self, name: str, rows: Rows) -> np.ndarray:
        with reading(self.source):
            return np.asarray(self.weights[name][rows], dtype=np.float64).reshape(-1)

    def read_globals(self) -> np.ndarray:
        """Return the global values as float32, (g,)."""
        parts = [np.reshape(value, -1) for value in self.global_values.values()]
        return np.concatenate(parts, dtype=np.float32, casting="same_kind")


def _copied_rows(values: np.ndarray, rows: Rows) -> np.ndarray:
    return values[rows].copy() if isinstance(rows, slice) else values.take(rows, 0)


def _positive(name: str, weights: np.ndarray) -> np.ndarray:
    """Return weights that stay positive as float32; a cell without area has a tiny one."""
    positive = (weights > 0) | (name == MEASURE)
    return np.where(positive, np.maximum(weights, _TINY), 0.0)


def make_table(contents: Contents, names: Names) -> TokenTable:
    """Return a case as a table of tokens."""
    if contents.mesh is not None:
        place = find_place(contents, names)
        n, grid = contents.count(place), None
        if n == 0:
            raise ValueError(f"{contents.source} has no {place}s")
        arrays = contents.columns(place)
        geometry, measure = _mesh_geometry(contents.mesh, place)
        points = geometry.pop("coordinates")
        coordinates = _mesh_coordinates(contents, names, points)
        columns = {**_body_columns(contents, [points], n), **geometry}
        columns |= token_columns(arrays, n, None)
    else:
        place, arrays = "point", contents.arrays
        n, grid = token_shape(contents, names)
        columns = token_columns(arrays, n, grid)

    def group(picks: Mapping[str, Pick]) -> dict[str, Rowwise]:
        return {
            name: _picked(contents, name, pick, _column(contents, arrays, columns, pick.array, n))
            for name, pick in picks.items()
        }

    if contents.mesh is None:
        coordinates = group(names.coordinates) if names.coordinates else {"grid": _indices(n, grid)}
        columns = {**_body_columns(contents, coordinates.values(), n), **columns}
        measure = columns.get(EFFECTIVE_MEASURE)
        if measure is None and TABLE_AREAS in columns:
            parts = [columns[name] for name in (TABLE_AREAS, MEASURE_WEIGHTS) if name in columns]
            measure = LazyArray((n,), lambda rows: _joined(parts, rows).prod(axis=1))
        elif measure is None and sum(math.prod(c.shape[1:]) for c in coordinates.values()) == 2:
            measure = _plane_areas(coordinates, n, grid if grid and len(grid) == 2 else None)
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
            f"{contents.source}: {name} needs the surface of the body; name its files as "
            "data.reader.body, such as '{case}/body_*.stl', or, to predict, with --body"
        )
    if name in GEOMETRY and contents.mesh is not None:
        kind = "volume" if isinstance(contents.mesh, CellMesh) else "surface"
        raise ValueError(
            f"{contents.source} is a {kind} and has no {name}; leave it out of data.features"
        )
    stored = arrays.get(name, contents.arrays.get(name))
    if stored is None:
        raise missing(contents, name)
    raise ValueError(
        f"{contents.source_of(name)}: {name} has shape {tuple(stored.shape)}, expected ({n},) or "
        f"({n}, channels) for {n} tokens. Name another array, or other coordinates"
    )


def _picked(contents: Contents, name: str, pick: Pick, column: Rowwise) -> Rowwise:
    """Return the columns of an array that a name stands for."""
    if pick.columns is None:
        return column
    n, width = column.shape[0], math.prod(column.shape[1:])
    kept = pick.width(width)
    if kept == 0 or (pick.columns.stop or 0) > width:
        raise ValueError(
            f"{contents.source}: {name} is {pick}, but {pick.array} has shape "
            f"{tuple(column.shape)}: {width} columns, counted from 0"
        )

    def compute(rows: Rows) -> np.ndarray:
        values = np.asarray(column[rows]).reshape(-1, width)[:, pick.columns]
        return values[:, 0] if kept == 1 else values

    return LazyArray((n,) if kept == 1 else (n, kept), compute)


def _plane_areas(
    coordinates: Mapping[str, Rowwise], n: int, grid: tuple[int, ...] | None
) -> LazyArray:
    """Return the areas of the points of a grid or of a planar cloud."""

    def compute(rows: Rows) -> np.ndarray:
        points = _joined(coordinates.values(), slice(0, n))
        return (cloud_areas(points) if grid is None else grid_areas(points, grid))[rows]

    return LazyArray((n,), compute)


def _joined(columns: Any, rows: Rows) -> np.ndarray:
    """Return the rows of some columns side by side."""
    parts = [np.asarray(column[rows]) for column in columns]
    return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)


def _indices(n: int, grid: tuple[int, ...]) -> LazyArray:
    """Return the indices of a grid as coordinates from 0 to 1."""

    def compute(rows: Rows) -> np.ndarray:
        axes = np.unravel_index(np.arange(n)[rows], grid)
        scaled = [i / max(length - 1, 1) for i, length in zip(axes, grid, strict=True)]
        return np.stack(scaled, axis=1)

    return LazyArray((n, len(grid)), compute)


def _mesh_geometry(
    mesh: PolygonMesh | CellMesh, place: str
) -> tuple[dict[str, Rowwise], Rowwise | None]:
    """Return coordinates and other computed columns of a mesh, and the measure of its tokens."""
    cells = place == "cell"
    n = mesh.n_cells if cells else len(mesh.points)
    if isinstance(mesh, PolygonMesh):
        geometry = _for_same_rows(mesh.cell_geometry)
        if cells:
            centres, vectors = (lambda rows: geometry(rows)[0]), (lambda rows: geometry(rows)[1])
            areas = lambda rows: np.linalg.norm(vectors(rows), axis=1)  # noqa: E731
        else:
            centres, vectors = mesh.points.__getitem__, (lambda rows: mesh.vertex_areas[0][rows])
            areas = lambda rows: mesh.vertex_areas[1][rows]  # noqa: E731
        columns: dict[str, Rowwise] = {
            "coordinates": LazyArray((n, 3), centres),
            "normals": LazyArray((n, 3), lambda rows: unit_vectors(vectors(rows))),
            "areas": LazyArray((n,), areas),
        }
        computed = columns["areas"]
    else:
        read = mesh.cell_centres if cells else lambda rows: np.asarray(mesh.points)[rows]
        columns = {"coordinates": LazyArray((n, 3), read)}
        computed = mesh.sizes if cells else mesh.point_sizes
        if computed is not None:
            columns["volumes"] = computed
    # What PhysicsNeMo's pipes noted comes before what is computed.
    noted = [mesh.data.get("cell", {}), mesh.data.get(place, {})]
    by_notes = any(EFFECTIVE_MEASURE in data for data in noted)
    if by_notes or (MEASURE_WEIGHTS in noted[0] and computed is not None):
        computed = LazyArray((n,), lambda rows: stored_measure(mesh, place)[rows])
    return columns, computed


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
    """Return a function that keeps its last result, for the columns of one sample."""
    last: list = [None, None]

    def kept(rows: Rows) -> Any:
        if last[0] is not rows:
            last[:] = [rows, compute(rows)]
        return last[1]

    return kept


def _body_columns(contents: Contents, coordinates: Any, n: int) -> dict[str, Rowwise]:
    """Return the signed distance of tokens to the body of a case and the direction to it."""
    body = contents.body
    if body is None:
        return {}

    def measure(rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        points = _joined(coordinates, rows)
        if points.shape[1] != 3:
            raise ValueError(
                f"{contents.source}: distances to a body need 3D points, not {points.shape[1]}D"
            )
        return distance_to_body(points, body)

    measured = _for_same_rows(measure)
    return {
        "distance": LazyArray((n,), lambda rows: measured(rows)[0]),
        "direction": LazyArray((n, 3), lambda rows: measured(rows)[1]),
    }


def _globals(contents: Contents, picks: Mapping[str, Pick]) -> dict[str, np.ndarray]:
    """Return the values of the case by name."""
    values = {}
    for name, pick in picks.items():
        stored = contents.values.get(pick.array, contents.arrays.get(pick.array))
        if stored is None and pick.array in contents.names():
            raise ValueError(
                f"{contents.source}: {name} of data.globals is {contents.names()[pick.array]}, not "
                "a value of the whole case; arrays of tokens belong in data.features"
            )
        if stored is None:
            absent = missing(contents, pick.array)
            raise MissingName(f"{absent}, or give its value as data.reader.constants.{name}")
        value = np.asarray(stored[...]).reshape(-1)[pick.columns or slice(None)]
        if value.size == 0 or value.size > _MOST_VALUES:
            raise ValueError(
                f"{contents.source}: {name} of data.globals has {value.size} numbers, expected 1 "
                f"to {_MOST_VALUES}; an array of tokens belongs in data.features"
            )
        values[name] = value
    return values
