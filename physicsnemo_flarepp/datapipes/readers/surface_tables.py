"""What is wanted of a surface, and polygon meshes as token tables: cells or points as tokens."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ...meshes import ASSOCIATIONS, PolygonMesh
from ...meshes.polygons import Rows, unit_vectors
from ..checks import missing_name
from .base import MEASURE, NO_WEIGHTS, ComputedColumn, Rowwise, TokenTable

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
    weights : str
        Column of weights: ``none``, ``measure`` or the name of an array.
    constants : Mapping[str, float or Sequence[float]]
        Global values of cases whose files do not hold them.
    """

    fields: tuple[str, ...]
    features: tuple[str, ...] = ()
    global_names: tuple[str, ...] = ()
    association: str | None = None
    boundary: str = "vehicle"
    allow_missing_chunks: tuple[str, ...] = ()
    weights: str = NO_WEIGHTS
    constants: Mapping[str, float | Sequence[float]] = field(default_factory=dict)

    def arrays(self) -> tuple[str, ...]:
        """Return the names of stored arrays, without computed geometry."""
        features = (name for name in self.features if name not in GEOMETRY_FEATURES)
        return (*self.fields, *features, *self.stored_weights())

    def stored_weights(self) -> tuple[str, ...]:
        """Return the name of the array of weights, if it is a stored one."""
        return () if self.weights in (NO_WEIGHTS, MEASURE) else (self.weights,)


def find_association(
    source: Path | str, request: SurfaceRequest, present: Mapping[str, Collection[str]]
) -> str:
    """Return where the requested arrays live: ``cell`` or ``point``.

    Parameters
    ----------
    source : Path or str
        File to name in errors.
    request : SurfaceRequest
        Names wanted, and the association if the user fixed it.
    present : Mapping[str, Collection[str]]
        Names of the arrays of the file, by association.
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


def surface_table(
    mesh: PolygonMesh, request: SurfaceRequest, global_values: Mapping[str, np.ndarray]
) -> TokenTable:
    """Return the cells or points of a mesh as tokens, with geometry computed for chosen rows."""
    place = find_association(mesh.source, request, mesh.data)
    n_tokens = mesh.n_cells if place == "cell" else len(mesh.points)
    if n_tokens == 0:
        raise ValueError(f"{mesh.source} has no {place}s; expected a surface mesh")
    geometry = cell_columns(mesh) if place == "cell" else point_columns(mesh)
    columns = {**mesh.data[place], **geometry}
    return TokenTable(
        mesh.source,
        n_tokens,
        {"xyz": geometry["coordinates"]},
        {name: columns[name] for name in request.fields},
        features={name: columns[name] for name in request.features},
        global_values=global_values,
        association=place,
        weights={
            MEASURE: geometry["areas"],
            **{name: columns[name] for name in request.stored_weights()},
        },
    )


def cell_columns(mesh: PolygonMesh) -> dict[str, Rowwise]:
    """Return coordinates, normals and areas of the cells, computed for the rows asked for."""
    # The three columns of one sample ask for the same rows object one after the other.
    last: list = [None, None]

    def geometry(rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        if last[0] is not rows:
            last[:] = [rows, mesh.cell_geometry(rows)]
        return last[1]

    n = mesh.n_cells
    return {
        "coordinates": ComputedColumn((n, 3), lambda rows: geometry(rows)[0]),
        "normals": ComputedColumn((n, 3), lambda rows: unit_vectors(geometry(rows)[1])),
        "areas": ComputedColumn((n,), lambda rows: np.linalg.norm(geometry(rows)[1], axis=1)),
    }


def point_columns(mesh: PolygonMesh) -> dict[str, Rowwise]:
    """Return coordinates, normals and areas of the points; see :func:`cell_columns`."""
    n = len(mesh.points)
    return {
        "coordinates": ComputedColumn((n, 3), lambda rows: mesh.points[rows]),
        "normals": ComputedColumn((n, 3), lambda rows: unit_vectors(mesh.vertex_areas[0][rows])),
        "areas": ComputedColumn((n,), lambda rows: mesh.vertex_areas[1][rows]),
    }
