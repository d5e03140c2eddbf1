"""From any surface file to predicted fields on its whole mesh."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyvista as pv
import torch
from torch import Tensor
from vtkmodules.util.numpy_support import vtk_to_numpy
from vtkmodules.vtkIOXML import vtkXMLPolyDataWriter

from ..datapipes.readers.meshes import GEOMETRY_FEATURES, PolygonMesh, SurfaceRequest
from .cases import physical_prediction
from .forces import read_row
from .runs import Run

SUFFIXES = (".vtp", ".stl", ".ply", ".obj", ".vtk")
SUFFIX_OF_PREDICTIONS = "_predicted"
# Beyond the training range by this share of its span a model extrapolates.
_MARGIN = 0.05


@dataclass(frozen=True)
class SurfacePrediction:
    """Predicted fields on a surface.

    Parameters
    ----------
    surface : pyvista.PolyData
        The mesh with its own data and the predictions as ``<field>_predicted``.
    polygons : PolygonMesh
        The same mesh as arrays.
    association : str
        Whether values belong to the ``cell`` or ``point`` of the mesh, in their order.
    values : numpy.ndarray
        Predictions in physical units, (N, O).
    warnings : tuple[str, ...]
        What makes the prediction doubtful.
    """

    surface: pv.PolyData
    polygons: PolygonMesh
    association: str
    values: np.ndarray
    warnings: tuple[str, ...]


def read_surface(path: str | Path, *, scale: float = 1.0) -> pv.PolyData:
    """Return the surface in a ``.vtp``, ``.stl``, ``.ply``, ``.obj`` or ``.vtk`` file.

    Parameters
    ----------
    path : str or Path
        The file.
    scale : float, optional
        Factor on the coordinates, such as 0.001 for millimetres.
    """
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"{path} must end in one of {', '.join(SUFFIXES)}; convert it first")
    if not path.is_file():
        raise FileNotFoundError(f"surface {path} does not exist; give the path of a mesh file")
    if not (np.isfinite(scale) and scale > 0):
        raise ValueError(f"scale is {scale}, expected a positive number such as 0.001")
    surface = pv.read(path)
    if not isinstance(surface, pv.PolyData):
        raise ValueError(
            f"{path} holds a {type(surface).__name__}, expected a surface of polygons; extract it, "
            "for example with pyvista's extract_surface()"
        )
    _check_polygons(path, surface)
    if scale != 1.0:
        surface.points = surface.points * scale
    return surface


def _check_polygons(path: Path, surface: pv.PolyData) -> None:
    n_polygons = surface.GetPolys().GetNumberOfCells()
    if n_polygons == 0 or n_polygons != surface.n_cells:
        raise ValueError(
            f"{path} has {n_polygons} polygons among {surface.n_cells} cells and "
            f"{surface.n_points} points; expected a surface of polygons only. If it is not empty "
            "or damaged, remove lines and vertices, and turn strips into triangles, for example "
            "with pyvista's triangulate()"
        )
    sizes = np.diff(vtk_to_numpy(surface.GetPolys().GetOffsetsArray()))
    if (sizes < 3).any():
        raise ValueError(
            f"{path} has {(sizes < 3).sum()} cells with fewer than 3 vertices, the first at "
            f"{int(np.argmax(sizes < 3))}; remove them, for example with pyvista's clean()"
        )
    bad = np.flatnonzero(~np.isfinite(surface.points).all(axis=1))
    if len(bad):
        raise ValueError(
            f"{path} has {len(bad)} points with NaN or infinite coordinates, the first at "
            f"{bad[0]}; repair the file"
        )


def polygon_mesh(surface: pv.PolyData, source: str | Path) -> PolygonMesh:
    """Return a pyvista surface as the arrays that the readers work on.

    Parameters
    ----------
    surface : pyvista.PolyData
        Polygons only.
    source : str or Path
        Name for messages.
    """
    polygons = surface.GetPolys()
    return PolygonMesh(
        Path(source),
        np.asarray(surface.points),
        vtk_to_numpy(polygons.GetConnectivityArray()),
        vtk_to_numpy(polygons.GetOffsetsArray()),
        {
            "cell": {name: np.asarray(surface.cell_data[name]) for name in surface.cell_data},
            "point": {name: np.asarray(surface.point_data[name]) for name in surface.point_data},
        },
    )


def predict_surface(
    run: Run,
    path: str | Path,
    *,
    global_values: Mapping[str, float] | None = None,
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
    global_values : Mapping[str, float], optional
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
            "use examples/benchmarks_2d/predict.py"
        )
    path = Path(path)
    surface = read_surface(path, scale=scale)
    if flip:
        surface = surface.flip_faces()
    polygons = polygon_mesh(surface, path)
    association = association or channels.association
    sample = surface_sample(run, polygons, association, global_values or {})
    warnings = (
        *_mesh_warnings(polygons, association),
        *_range_warnings(run, sample["coordinates"].numpy(), path),
    )
    values = physical_prediction(run, sample, progress=progress).numpy()
    data = surface.cell_data if association == "cell" else surface.point_data
    for field in channels.fields:
        column = values[:, channels.columns(field)]
        data[field + SUFFIX_OF_PREDICTIONS] = column[:, 0] if column.shape[1] == 1 else column
    return SurfacePrediction(surface, polygons, association, values, warnings)


def surface_sample(
    run: Run, mesh: PolygonMesh, association: str, global_values: Mapping[str, float]
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


def _globals(run: Run, source: Path, given: Mapping[str, float]) -> dict[str, np.ndarray]:
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
    return {name: np.asarray(values[name], dtype=np.float64) for name in wanted}


def _mesh_warnings(mesh: PolygonMesh, association: str) -> list[str]:
    warnings = []
    rows = slice(0, len(mesh.offsets) - 1)
    request = SurfaceRequest((), ("areas",), association="cell")
    flat = int(np.count_nonzero(mesh.table(request, {}).read("features", rows) == 0))
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
    return warnings


def training_range(run: Run) -> tuple[np.ndarray, np.ndarray, str] | None:
    """Return lowest and highest training coordinates and how they are known, None if not.

    Of a unit box the normaliser holds the range itself; of mean and deviation, a range of 4
    deviations is taken.
    """
    kind = run.normalization_kind("coordinates")
    affine = run.normalizer.affine.get("coordinates")
    if affine is None or affine.shift.ndim != 1:
        return None
    shift, scale = affine.shift.double().numpy(), affine.scale.double().numpy()
    if kind == "unit_box":
        return shift, shift + scale, "range"
    if kind == "gaussian":
        return shift - 4 * scale, shift + 4 * scale, "mean and 4 standard deviations"
    return None


def _range_warnings(run: Run, coordinates: np.ndarray, source: Path) -> list[str]:
    known = training_range(run)
    if known is None:
        return []
    low, high, how = known
    span = np.maximum(high - low, 1e-12)
    mesh_low, mesh_high = coordinates.min(axis=0), coordinates.max(axis=0)
    outside = np.maximum(low - mesh_low, mesh_high - high) / span
    if (outside <= _MARGIN).all():
        return []
    ranges = "; ".join(
        f"{axis} {mesh_low[i]:.4g} to {mesh_high[i]:.4g} (training {low[i]:.4g} to {high[i]:.4g})"
        for i, axis in enumerate("xyz")
        if outside[i] > _MARGIN
    )
    size = float(np.max(mesh_high - mesh_low) / np.max(span))
    if 300 < size < 3000:
        advice = "It looks like millimetres: give --scale 0.001"
    elif 30 < size <= 300:
        advice = "It looks like centimetres: give --scale 0.01"
    else:
        advice = "Move or scale it to where the training surfaces are"
    return [
        f"{source} reaches outside the coordinates of training ({how}): {ranges}. The prediction "
        f"is an extrapolation. {advice}"
    ]


def save_surface(surface: pv.PolyData, path: str | Path) -> None:
    """Write a ``.vtp`` file that is either complete or not there.

    Parameters
    ----------
    surface : pyvista.PolyData
        The mesh with its data.
    path : str or Path
        Must end in ``.vtp``; replaced at the end.
    """
    path = Path(path)
    if path.suffix != ".vtp":
        raise ValueError(f"output is {path}, but must end in .vtp")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"directory {path.parent} of the output does not exist; make it")
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    writer = vtkXMLPolyDataWriter()
    errors: list[str] = []
    writer.AddObserver("ErrorEvent", lambda *_: errors.append("VTK reported an error"))
    writer.SetFileName(str(partial))
    writer.SetInputData(surface)
    try:
        if writer.Write() != 1 or writer.GetErrorCode() or errors:
            raise OSError(
                f"{path} could not be written (VTK error {writer.GetErrorCode()}); check that "
                "there is space and that the folder is writable"
            )
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
