"""Polygon meshes as token tables: cells or points as tokens, geometry computed for chosen rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from ...meshes.polygons import polygon_geometry, select_polygons, unit_vectors, vertex_area_vectors
from ..checks import missing_name
from ..sampling import Rows
from .base import ComputedColumn, Rowwise, TokenTable

ASSOCIATIONS = ("cell", "point")
GEOMETRY_FEATURES = {"normals": 3, "areas": 1}


@dataclass(frozen=True)
class SurfaceRequest:
    """What to take from every surface file.

    Parameters
    ----------
    fields, features, global_names : tuple[str, ...]
        Names of arrays; ``normals`` and ``areas`` among the features are geometry.
    association : str or None
        ``cell``, ``point``, or None for the one that holds all fields.
    boundary : str
        Boundary of a DomainMesh.
    allow_missing_chunks : tuple[str, ...]
        Zarr arrays whose absent chunks stand for the fill value.
    """

    fields: tuple[str, ...]
    features: tuple[str, ...] = ()
    global_names: tuple[str, ...] = ()
    association: str | None = None
    boundary: str = "vehicle"
    allow_missing_chunks: tuple[str, ...] = ()

    def arrays(self) -> tuple[str, ...]:
        """Return the names of stored arrays, without computed geometry."""
        return (*self.fields, *(name for name in self.features if name not in GEOMETRY_FEATURES))


def find_association(
    source: Path, request: SurfaceRequest, present: Mapping[str, Mapping[str, object]]
) -> str:
    """Return where the requested arrays live: ``cell`` or ``point``.

    Parameters
    ----------
    source : Path
        File to name in errors.
    request : SurfaceRequest
        Names wanted, and the association if the user fixed it.
    present : Mapping[str, Mapping[str, object]]
        Arrays of the file, by association and name.
    """
    allowed = ASSOCIATIONS if request.association is None else (request.association,)
    fitting = [
        place for place in allowed if all(name in present[place] for name in request.arrays())
    ]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise ValueError(
            f"{source} holds {', '.join(request.arrays())} both as cell data and as point data; "
            "set `association` to 'cell' or 'point'"
        )
    first = next(
        (n for n in request.arrays() if not any(n in present[place] for place in allowed)),
        request.arrays()[0],
    )
    names = [f"{name} ({place} data)" for place in ASSOCIATIONS for name in present[place]]
    raise missing_name(source, f"{' or '.join(allowed)} array", first, names)


@dataclass(frozen=True)
class PolygonMesh:
    """A surface mesh with its data, in memory or memory-mapped.

    Parameters
    ----------
    source : Path
        File it came from.
    points : numpy.ndarray
        Vertices, (P, 3).
    connectivity, offsets : numpy.ndarray
        Polygons: vertex indices one polygon after the other, and where each begins, (n + 1,).
    data : Mapping[str, Mapping[str, Rowwise]]
        Arrays by association (``cell``, ``point``) and name.
    """

    source: Path
    points: np.ndarray
    connectivity: np.ndarray
    offsets: np.ndarray
    data: Mapping[str, Mapping[str, Rowwise]]

    def table(self, request: SurfaceRequest, global_values: Mapping[str, np.ndarray]) -> TokenTable:
        """Return cells or points as tokens."""
        place = find_association(self.source, request, self.data)
        n_tokens = len(self.offsets) - 1 if place == "cell" else len(self.points)
        if n_tokens == 0:
            raise ValueError(f"{self.source} has no {place}s; expected a surface mesh")
        geometry = self._cell_columns() if place == "cell" else self._point_columns()
        columns = {**self.data[place], **geometry}
        return TokenTable(
            self.source,
            n_tokens,
            {"xyz": geometry["coordinates"]},
            {name: columns[name] for name in request.fields},
            features={name: columns[name] for name in request.features},
            global_values=global_values,
            association=place,
        )

    def _cell_columns(self) -> dict[str, Rowwise]:
        # The three columns of one sample ask for the same rows object one after the other.
        last: list = [None, None]

        def geometry(rows: Rows) -> tuple[np.ndarray, np.ndarray]:
            if last[0] is not rows:
                chosen = select_polygons(self.connectivity, self.offsets, rows)
                last[:] = [rows, polygon_geometry(self.points, *chosen)]
            return last[1]

        n = len(self.offsets) - 1
        return {
            "coordinates": ComputedColumn((n, 3), lambda rows: geometry(rows)[0]),
            "normals": ComputedColumn((n, 3), lambda rows: unit_vectors(geometry(rows)[1])),
            "areas": ComputedColumn((n,), lambda rows: np.linalg.norm(geometry(rows)[1], axis=1)),
        }

    def _point_columns(self) -> dict[str, Rowwise]:
        n = len(self.points)

        return {
            "coordinates": ComputedColumn((n, 3), lambda rows: self.points[rows]),
            "normals": ComputedColumn(
                (n, 3), lambda rows: unit_vectors(self._vertex_areas[0][rows])
            ),
            "areas": ComputedColumn((n,), lambda rows: self._vertex_areas[1][rows]),
        }

    @cached_property
    def _vertex_areas(self) -> tuple[np.ndarray, np.ndarray]:
        vectors = polygon_geometry(self.points, self.connectivity, self.offsets)[1]
        return vertex_area_vectors(len(self.points), self.connectivity, self.offsets, vectors)
