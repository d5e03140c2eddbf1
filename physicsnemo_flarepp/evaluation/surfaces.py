"""From any surface file to predicted fields on its whole mesh."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyvista as pv
import torch
from torch import Tensor

from ..datapipes.readers.meshes import GEOMETRY_FEATURES, PolygonMesh, SurfaceRequest
from ..meshes import read_surface
from ..meshes.polygons import polygon_geometry
from ..meshes.writing import polygon_mesh
from .cases import physical_prediction
from .conventions import trained_on_builtin_cars
from .forces import facing, read_row
from .sizes import SizeComparison, compare_size, training_set
from .trained_run import Run

GlobalValues = Mapping[str, float | Sequence[float]]
SUFFIX_OF_PREDICTIONS = "_predicted"
WARNINGS = "warnings"


@dataclass(frozen=True)
class SurfacePrediction:
    """Predicted fields on a surface.

    Parameters
    ----------
    surface : pyvista.PolyData
        The mesh with its own data and the predictions as ``<field>_predicted``; what makes them
        doubtful is its field data ``warnings``.
    polygons : PolygonMesh
        The same mesh as arrays.
    association : str
        Whether values belong to the ``cell`` or ``point`` of the mesh, in their order.
    values : numpy.ndarray
        Predictions in physical units, (N, O).
    warnings : tuple[str, ...]
        What makes the prediction doubtful.
    doubt : str or None
        Why forces from it mean little, None if the surface is like those of training.
    """

    surface: pv.PolyData
    polygons: PolygonMesh
    association: str
    values: np.ndarray
    warnings: tuple[str, ...]
    doubt: str | None


def predict_surface(
    run: Run,
    path: str | Path,
    *,
    global_values: GlobalValues | None = None,
    scale: float = 1.0,
    flip: bool = False,
    association: str | None = None,
    progress: bool = True,
) -> SurfacePrediction:
    """Predict the fields of a run on every cell (or point) of a surface, by exact streaming.

    Inputs are made as in training: cell centres or points, normals and areas as the model was
    given them, by the same code.

    Parameters
    ----------
    run : Run
        Trained on surfaces.
    path : str or Path
        See :func:`read_surface`.
    global_values : Mapping[str, float or sequence of float], optional
        Values of the run's globals by name. Those not given are taken from ``geo_ref_*.csv``
        beside the surface.
    scale : float, optional
        Factor on the coordinates; the result is in the scaled coordinates.
    flip : bool, optional
        Turn the cells around first, for a model that was given normals of the other direction.
    association : str, optional
        ``cell`` or ``point``; by default what the tokens of training were.
    progress : bool, optional
        Show a bar if stderr is a terminal.
    """
    channels = run.channels
    if channels.coordinates != 3 or channels.grid is not None:
        raise ValueError(
            f"run {run.name} was trained on points of dimension {channels.coordinates}"
            f"{'' if channels.grid is None else f' on a grid {channels.grid}'}, not on surfaces; "
            "give points in a .npz or .npy file, or --cases"
        )
    path = Path(path)
    surface = read_surface(path, scale=scale)
    if flip:
        surface = surface.flip_faces()
    polygons = polygon_mesh(surface, path)
    association = association or channels.association
    sample = surface_sample(run, polygons, association, global_values or {})
    warnings = _mesh_warnings(run, polygons, association)
    known = training_set(run)
    size = SizeComparison()
    if known is not None:
        size = compare_size(known, sample["coordinates"].numpy(), path, scale=scale)
    warnings += [size.warning] if size.warning else []
    values = physical_prediction(run, sample, progress=progress).numpy()
    data = surface.cell_data if association == "cell" else surface.point_data
    for field in channels.fields:
        column = values[:, channels.columns(field)]
        data[field + SUFFIX_OF_PREDICTIONS] = column[:, 0] if column.shape[1] == 1 else column
    if warnings:
        surface.field_data[WARNINGS] = warnings
    return SurfacePrediction(surface, polygons, association, values, tuple(warnings), size.doubt)


def surface_sample(
    run: Run,
    mesh: PolygonMesh,
    association: str,
    global_values: GlobalValues,
) -> dict[str, Tensor]:
    """Return the inputs of a run at all cells or points of a mesh, in physical units."""
    channels = run.channels
    stored = [name for name in channels.features if name not in GEOMETRY_FEATURES]
    absent = [name for name in stored if name not in mesh.data[association]]
    if absent:
        raise ValueError(
            f"{mesh.source} has no {association} data {', '.join(absent)}, which run {run.name} "
            f"takes as input; it has {', '.join(mesh.data[association]) or 'none'}. Add the arrays "
            "to the file"
        )
    request = SurfaceRequest((), tuple(channels.features), association=association)
    table = mesh.table(request, _globals(run, mesh.source, global_values))
    rows = slice(0, table.n_tokens)
    sample = {"coordinates": table.read("coordinates", rows)}
    if channels.features:
        sample["features"] = table.read("features", rows)
    if channels.globals:
        sample["globals"] = table.read_globals()
    return {key: torch.from_numpy(value) for key, value in sample.items()}


def _globals(run: Run, source: Path, given: GlobalValues) -> dict[str, np.ndarray]:
    wanted = run.channels.globals
    unknown = sorted(set(given) - set(wanted))
    if unknown:
        raise ValueError(
            f"run {run.name} has no global value {', '.join(unknown)}; its global values are "
            f"{', '.join(wanted) or 'none'}"
        )
    tables = sorted(source.parent.glob("geo_ref_*.csv"))
    beside = read_row(tables[0]) if len(tables) == 1 else {}
    values = {**beside, **given}
    absent = [name for name in wanted if name not in values]
    if absent:
        raise ValueError(
            f"run {run.name} needs the global values {', '.join(absent)}, which are neither given "
            f"nor in a geo_ref_*.csv beside {source}; give each with --global {absent[0]}=<number>"
        )
    arrays = {name: np.asarray(values[name], dtype=np.float64) for name in wanted}
    for name, array in arrays.items():
        if array.size != wanted[name]:
            raise ValueError(
                f"global value {name} has {array.size} numbers, but run {run.name} takes "
                f"{wanted[name]}; give a vector as --global {name}=1,0,0"
            )
    return arrays


def _mesh_warnings(run: Run, mesh: PolygonMesh, association: str) -> list[str]:
    warnings = []
    centres, vectors = polygon_geometry(mesh.points, mesh.connectivity, mesh.offsets)
    flat = int(np.count_nonzero(~vectors.any(axis=1)))
    if flat:
        warnings.append(
            f"{mesh.source}: {flat} cells have no area; they are predicted like any other, with a "
            "normal of 0, and add nothing to forces"
        )
    if association == "point":
        loose = len(mesh.points) - len(np.unique(mesh.connectivity))
        if loose:
            warnings.append(
                f"{mesh.source}: {loose} points belong to no cell; they take part in the "
                "prediction like any other. Remove them, for example with pyvista's clean(), "
                "unless training had such points"
            )
    if "normals" in run.channels.features:
        warnings += _normals_warnings(run, mesh, facing(centres, vectors))
    return warnings


def _normals_warnings(run: Run, mesh: PolygonMesh, direction: str | None) -> list[str]:
    """Say which way normals point, unless it is known to be that of training."""
    direction = direction or "no definite way"
    if not trained_on_builtin_cars(run):
        return [
            f"{mesh.source}: its cells face {direction}, and run {run.name} takes normals as "
            "input. Patches that OpenFOAM writes face inward, CAD surfaces mostly outward: if the "
            "training surfaces faced the other way, give --flip"
        ]
    if direction != "outward":
        return [
            f"{mesh.source}: its cells face {direction}, but the cars of training face outward, "
            f"and run {run.name} takes normals as input; give --flip"
        ]
    return []
