"""From a file of any kind to the fields that a run predicts there, and what they tell."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyvista as pv
from torch import Tensor

from ..datapipes import plot_mesh
from ..datapipes.readers.contents import MESH_FILES, Contents, Wanted, open_body, open_file
from ..meshes import CellMesh, PolygonMesh, polygon_mesh, to_pyvista
from ..meshes.export import add_arrays, prediction_arrays
from ..meshes.measures import EFFECTIVE_MEASURE, stored_measure
from ..runs.samples import SAMPLE, GlobalValues, input_sample, measures, whole_grid
from ..runs.trained_run import Run
from ..texts import printable
from .bounds import Bounds, describe_coefficients, describe_errors, mesh_grain
from .calibration import check_members, stored_bounds
from .force_conventions import ForceSettings, describe_settings, sign_doubt
from .forces import Forces, field_forces, force_surface
from .likeness import SizeComparison, compare_size, mesh_warnings, training_ranges
from .predictions import CasePrediction, predict_members, relative_l2

WARNINGS = "warnings"


@dataclass(frozen=True)
class FilePrediction:
    """Predicted fields at all tokens of a file.

    Parameters
    ----------
    mesh : pyvista.DataSet
        The mesh of the file with its own data, a grid, or points, with the predictions as
        ``<field>_predicted``; what makes them doubtful is its field data ``warnings``.
    association : str
        Whether values belong to the ``cell`` or ``point`` of the mesh, in their order.
    values : numpy.ndarray
        Predictions in physical units, (N, O).
    polygons : PolygonMesh or None
        The mesh as arrays, if it is a surface.
    warnings : tuple[str, ...]
        What makes the prediction doubtful.
    doubt : str or None
        Why forces from it mean little, None if the surface is like those of training.
    bounds : Bounds or None
        What is promised about the errors, at `level`; ``<field>_band`` of the mesh are the bands.
    no_bounds : str or None
        Why nothing is promised.
    level : float or None
        The share of cases that a promise holds for.
    distance : float or None
        How far the case is from those of training; None if the run was not calibrated.
    """

    mesh: pv.DataSet
    association: str
    values: np.ndarray
    polygons: PolygonMesh | None = None
    warnings: tuple[str, ...] = ()
    doubt: str | None = None
    bounds: Bounds | None = None
    no_bounds: str | None = None
    level: float | None = None
    distance: float | None = None


def predict_file(
    run: Run | Sequence[Run],
    path: str | Path,
    *,
    level: float | None = None,
    global_values: GlobalValues | None = None,
    body: str | Path | None = None,
    scale: float = 1.0,
    flip: bool = False,
    association: str | None = None,
    progress: bool = True,
) -> FilePrediction:
    """Predict the fields of a run at all tokens of a file, by exact streaming.

    Inputs are made as in training, by the same code and names; fields need not be in the file.

    Parameters
    ----------
    run : Run or sequence of Run
        From :func:`~physicsnemo_flarepp.evaluation.load_run`. Of several runs on the same data the
        mean is predicted, and their spread is ``<field>_spread``.
    path : str or Path
        A mesh, or arrays of any format that training reads. Any run takes points as ``.npz`` with
        ``coordinates`` (N, d) and, as in training, ``features`` (N, f), ``globals`` (g,) and
        ``weights`` (N,); a run whose arrays have no names also takes coordinates as ``.npy``.
    level : float, optional
        Of the bounds: 0.8, 0.9 or 0.95; by default 0.9, or what the calibration allows.
    global_values : Mapping[str, float or sequence of float], optional
        Values of the run's globals by name. Those not given are taken from the file, or from
        ``geo_ref_*.csv`` beside it.
    body : str or Path, optional
        Surface of the body in a domain, for runs that take the distance to it.
    scale : float, optional
        Factor on the coordinates of a mesh; the result is in the scaled coordinates.
    flip : bool, optional
        Turn the cells of a surface around first, for a model that was given normals of the other
        direction.
    association : str, optional
        ``cell`` or ``point`` of a mesh; by default what the tokens of training were.
    progress : bool, optional
        Show a bar if stderr is a terminal.
    """
    runs = [run] if isinstance(run, Run) else list(run)
    check_members(runs)
    run, known = runs[0], stored_bounds(runs)
    path, channels = Path(path), run.channels
    contents = open_for_run(run, path, scale=scale, flip=flip)
    if body is not None:
        contents = replace(contents, body=open_body(Path(body)))
    association = association or channels.association
    original = input_sample(run, contents, association, global_values)
    sample = run.transform(original)
    warnings, size, polygons = [], SizeComparison(), None
    if isinstance(contents.mesh, PolygonMesh):
        polygons = contents.mesh
        warnings, size = surface_doubts(run, polygons, association, sample, scale)
    outside = run.parameter_warning(sample)
    warnings += [outside] if outside else []
    found = predict_members(runs, sample, progress=progress)
    values, bounds, distance = found.values, None, None
    refusal = known if isinstance(known, str) else None
    if isinstance(known, Bounds):
        level = known.choose_level(level)
        distance = known.distance(found.features)
        refusal = size.doubt or outside or known.doubt(distance, sample_grain(sample))
        bounds = None if refusal else known
    if contents.mesh is not None:
        mesh = to_pyvista(contents.mesh)
    else:
        association, coordinates = "point", original["coordinates"].numpy()
        metadata = {"grid": whole_grid(run.channels, len(coordinates)), "files": [str(path)]}
        mesh = plot_mesh(metadata, coordinates)
    arrays = prediction_arrays(channels.fields, {run.name: values})
    if found.spread is not None:
        arrays |= spread_arrays(channels.fields, found.spread)
    if bounds is not None:
        points = original["coordinates"].numpy()
        arrays |= bounds.bands(points, values, channels.fields, level, distance)
    if "weights" in original:
        arrays[EFFECTIVE_MEASURE] = original["weights"].numpy()
    add_arrays(mesh, arrays, association)
    if warnings:
        # VTK's strings are ASCII, and a warning may name a file that is not.
        mesh.field_data[WARNINGS] = [
            text.encode("ascii", "backslashreplace").decode() for text in warnings
        ]
    return FilePrediction(
        mesh,
        association,
        values,
        polygons,
        tuple(warnings),
        size.doubt,
        bounds,
        refusal,
        level,
        distance,
    )


def sample_grain(sample: Mapping[str, Tensor]) -> np.ndarray:
    """Return how fine and how graded the mesh of a sample is, (2,)."""
    return mesh_grain(sample.get("weights", None))


def spread_arrays(widths: Mapping[str, int], spread: np.ndarray) -> dict[str, np.ndarray]:
    """Return how far the members of an ensemble are apart, one number per token and field."""
    columns = np.split(spread, np.cumsum(list(widths.values()))[:-1], axis=1)
    pairs = zip(widths, columns, strict=True)
    return {f"{printable(name)}_spread": np.linalg.norm(part, axis=1) for name, part in pairs}


def surface_doubts(
    run: Run, mesh: PolygonMesh, association: str, sample: Mapping[str, Tensor], scale: float
) -> tuple[list[str], SizeComparison]:
    """Return what makes a prediction on a surface doubtful, and how its size compares."""
    warnings, size = mesh_warnings(run, mesh, association), SizeComparison()
    if (known := training_ranges(run)) is not None:
        size = compare_size(known, sample["coordinates"].numpy(), mesh.source, scale=scale)
    return warnings + ([size.warning] if size.warning else []), size


def open_for_run(run: Run, path: Path, *, scale: float = 1.0, flip: bool = False) -> Contents:
    """Return a whole mesh, scaled and turned, or what a run uses of a file of arrays."""
    channels, names = run.channels, run.names
    if not (np.isfinite(scale) and scale > 0):
        raise ValueError(f"scale is {scale}, expected a positive number such as 0.001")
    boundary = (run.data.get("reader") or {}).get("boundary")
    if path.suffix.lower() not in MESH_FILES:
        if scale != 1 or flip:
            raise ValueError(f"{path} holds arrays; scale and flip are for meshes. Change the file")
        if names is None and path.suffix.lower() not in (".npy", ".npz"):
            raise ValueError(
                f"{path} must be a mesh, or points in a file that ends in .npy or .npz"
            )
        stored = [pick.array for pick in ((names and names.coordinates) or {}).values()]
        wanted = {*SAMPLE, *((names and names.stored()) or ())}
        return open_file(path, Wanted(wanted, measures(channels)), (stored or ["coordinates"])[0])
    on_meshes = names is not None and names.association is not None
    if channels.grid is not None or not (channels.coordinates == 3 or on_meshes):
        raise ValueError(
            f"run {run.name} was trained on points of dimension {channels.coordinates}"
            f"{'' if channels.grid is None else f' on a grid {channels.grid}'}, not on surfaces; "
            "give points in a .npz or .npy file, or --cases"
        )
    contents = open_file(path, Wanted(sizes=measures(channels), boundary=boundary))
    mesh = contents.mesh
    if scale != 1:
        mesh = _scaled(mesh, scale)
    if not isinstance(mesh, PolygonMesh):
        if names is None or flip:
            raise ValueError(
                f"{path} has cells that are not polygons; expected a surface. Extract it, for "
                "example with pyvista's extract_surface()"
            )
        return replace(contents, mesh=mesh)
    if (few := np.diff(mesh.offsets) < 3).any():
        raise ValueError(
            f"{path} has {few.sum()} cells with fewer than 3 vertices, the first at "
            f"{int(np.argmax(few))}; remove them, for example with pyvista's clean()"
        )
    if flip:
        mesh = polygon_mesh(to_pyvista(mesh).flip_faces(), path)
    return replace(contents, mesh=mesh)


def _scaled(mesh: PolygonMesh | CellMesh, scale: float) -> PolygonMesh | CellMesh:
    """Return a mesh in other units, areas or volumes that it stores included."""
    factor = scale ** (2 if isinstance(mesh, PolygonMesh) else 3)
    data = {
        place: {n: a * factor if n == EFFECTIVE_MEASURE else a for n, a in arrays.items()}
        for place, arrays in mesh.data.items()
    }
    if isinstance(mesh, CellMesh) and mesh.sizes is not None:
        mesh = replace(mesh, sizes=mesh.sizes * factor)
    return replace(mesh, points=mesh.points * scale, data=data)


def describe_prediction(
    run: Run,
    prediction: FilePrediction,
    settings: ForceSettings | None,
    target_settings: ForceSettings | None = None,
) -> list[str]:
    """Return lines about a predicted surface: warnings, errors, forces and their conventions.

    Parameters
    ----------
    run : Run
        What predicted it.
    prediction : FilePrediction
        From :func:`predict_file`.
    settings : ForceSettings or None
        Conventions of what the run predicts; None integrates no forces.
    target_settings : ForceSettings, optional
        Those of the fields in the file, `settings` by default.
    """
    lines = [f"warning: {text}" for text in prediction.warnings] + promise_lines(prediction)
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


def promise_lines(prediction: FilePrediction) -> list[str]:
    """Return what is promised about the errors of a prediction, or why nothing is."""
    if prediction.bounds is None:
        return [f"no bounds: {prediction.no_bounds}"]
    return describe_errors(prediction.bounds, prediction.level, prediction.distance)


def case_promise(run: Run, case: CasePrediction, level: float | None = None) -> list[str]:
    """Return what is promised about the errors of a test case, or why nothing is."""
    known = stored_bounds([run])
    if isinstance(known, str):
        return [f"no bounds: {known}"]
    distance, sample = known.distance(case.pooled_state), run.test_set[case.index][0]
    if (doubt := known.doubt(distance, sample_grain(sample))) is not None:
        return [f"no bounds: {doubt}"]
    return describe_errors(known, known.choose_level(level), distance)


def _force_lines(
    run: Run,
    prediction: FilePrediction,
    truth: np.ndarray | None,
    settings: ForceSettings,
    target_settings: ForceSettings,
) -> list[str]:
    surface = force_surface(prediction.polygons, prediction.association, settings)
    lines = [f"warning: {text}" for text in surface.areas.warnings]
    doubt = f" (doubtful: {prediction.doubt})" if prediction.doubt else ""
    forces = field_forces(surface, prediction.values, run.channels, settings)
    lines.append(f"forces predicted{doubt}: {_format(forces)}")
    if prediction.bounds is not None:
        known = (prediction.bounds, prediction.level, prediction.distance)
        lines.append(describe_coefficients(*known, forces.coefficients, settings))
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


def _areas(prediction: FilePrediction) -> np.ndarray:
    """Return what the cells or points of a surface stand for, (N,)."""
    if (noted := stored_measure(prediction.polygons, prediction.association)) is not None:
        return noted
    if prediction.association == "point":
        return prediction.polygons.vertex_areas[1]
    return np.linalg.norm(prediction.polygons.cell_geometry()[1], axis=1)


def _stored_fields(run: Run, prediction: FilePrediction) -> np.ndarray | None:
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
