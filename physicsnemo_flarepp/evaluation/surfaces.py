"""From any surface file to predicted fields on its whole mesh, and what they tell."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyvista as pv
from torch import Tensor

from ..datapipes.readers.base import TokenTable
from ..datapipes.readers.case_tables import make_table
from ..datapipes.readers.contents import Contents
from ..datapipes.readers.names import Names, Pick
from ..meshes import PolygonMesh, polygon_mesh, read_surface
from ..meshes.export import add_arrays, prediction_arrays
from .errors import relative_l2
from .force_conventions import ForceSettings, describe_settings, sign_doubt
from .forces import Forces, field_forces, force_surface
from .inputs import GlobalValues, find_globals, input_table, table_sample
from .surface_checks import SizeComparison, compare_size, mesh_warnings, training_ranges
from .trained_run import Run

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
        Values of the run's globals by name. Those not given are taken from the field data of the
        file, or from ``geo_ref_*.csv`` beside it.
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
    sample = run.transform(sample)
    warnings = mesh_warnings(run, polygons, association)
    known = training_ranges(run)
    size = SizeComparison()
    if known is not None:
        size = compare_size(known, sample["coordinates"].numpy(), path, scale=scale)
    warnings += [size.warning] if size.warning else []
    values = run.predict(sample, progress=progress)
    add_arrays(surface, prediction_arrays(channels.fields, {run.name: values}), association)
    if warnings:
        # VTK's strings are ASCII, and a warning may name a file that is not.
        surface.field_data[WARNINGS] = [
            text.encode("ascii", "backslashreplace").decode() for text in warnings
        ]
    return SurfacePrediction(surface, polygons, association, values, tuple(warnings), size.doubt)


def surface_sample(
    run: Run,
    mesh: PolygonMesh,
    association: str,
    global_values: GlobalValues,
) -> dict[str, Tensor]:
    """Return the inputs of a run at all cells or points of a mesh, in physical units."""
    given = find_globals(run, mesh.source, mesh.data.get("field", {}), global_values)
    table = _input_table(run, mesh, association, given)
    return table_sample(run, table, Path(mesh.source).stem)


def _input_table(
    run: Run, mesh: PolygonMesh, association: str, global_values: Mapping[str, np.ndarray]
) -> TokenTable:
    """Return the cells or points of a mesh with the inputs of a run."""
    channels = run.channels
    if run.names is not None:
        return input_table(run, Contents(mesh.source, mesh=mesh), association, global_values)
    names = Names(
        features={n: Pick(n) for n in channels.features},
        fields={},
        globals={n: Pick(n) for n in global_values},
        association=association,
        weights=channels.weights,
    )
    return make_table(Contents(mesh.source, mesh=mesh, values=global_values), names)


def describe_prediction(
    run: Run,
    prediction: SurfacePrediction,
    settings: ForceSettings | None,
    target_settings: ForceSettings | None = None,
) -> list[str]:
    """Return lines about a predicted surface: warnings, errors, forces and their conventions.

    Parameters
    ----------
    run : Run
        What predicted it.
    prediction : SurfacePrediction
        From :func:`predict_surface`.
    settings : ForceSettings or None
        Conventions of what the run predicts; None integrates no forces.
    target_settings : ForceSettings, optional
        Those of the fields in the file, `settings` by default.
    """
    lines = [f"warning: {text}" for text in prediction.warnings]
    truth = _stored_fields(run, prediction)
    if truth is not None:
        for norm, weights in {"": None, ", as an integral": _areas(prediction)}.items():
            errors = relative_l2(prediction.values, truth, run.channels.norms, weights)
            text = ", ".join(f"{name} {100 * error:.3g} %" for name, error in errors.items())
            lines.append(f"relative L2 error against the fields in the file{norm}: {text}")
    if settings is None:
        return lines
    try:
        return lines + _force_lines(run, prediction, truth, settings, target_settings or settings)
    except ValueError as reason:  # the prediction stands
        return [*lines, f"no forces: {reason}"]


def _force_lines(
    run: Run,
    prediction: SurfacePrediction,
    truth: np.ndarray | None,
    settings: ForceSettings,
    target_settings: ForceSettings,
) -> list[str]:
    surface = force_surface(prediction.polygons, prediction.association, settings)
    lines = [f"warning: {text}" for text in surface.areas.warnings]
    doubt = f" (doubtful: {prediction.doubt})" if prediction.doubt else ""
    forces = field_forces(surface, prediction.values, run.channels, settings)
    lines.append(f"forces predicted{doubt}: {_format(forces)}")
    area = f"; reference area {surface.reference_area:.6g} ({surface.area_source})"
    conventions = [describe_settings(settings) + area]
    if truth is not None:
        forces = field_forces(surface, truth, run.channels, target_settings)
        lines.append(f"forces in the file: {_format(forces)}")
        if target_settings != settings:
            conventions.append(f"in the file: {describe_settings(target_settings)}")
        if odd := forces.shear is not None and sign_doubt(target_settings, forces.shear[0]):
            lines.append(f"warning: {odd}")
    return lines + conventions


def _areas(prediction: SurfacePrediction) -> np.ndarray:
    """Return what the cells or points of a surface stand for, (N,)."""
    if prediction.association == "point":
        return prediction.polygons.vertex_areas[1]
    return np.linalg.norm(prediction.polygons.cell_geometry()[1], axis=1)


def _stored_fields(run: Run, prediction: SurfacePrediction) -> np.ndarray | None:
    """Return the run's fields if the surface brought all of them, (N, O)."""
    stored = prediction.polygons.data[prediction.association]
    columns = []
    for name, width in run.channels.fields.items():
        values = stored.get(name)
        if values is None or values.size != width * len(prediction.values):
            return None
        columns.append(values.reshape(-1, width))
    truth = np.concatenate(columns, axis=1)
    return truth if np.isfinite(truth).all() else None


def _format(forces: Forces) -> str:
    texts = []
    for i, (name, value) in enumerate(forces.coefficients.items()):
        text = f"{name} {value:.5f}"
        if forces.shear is not None:
            text += f" (pressure {forces.pressure[i]:.5f}, shear {forces.shear[i]:.5f})"
        texts.append(text)
    return ", ".join(texts)
