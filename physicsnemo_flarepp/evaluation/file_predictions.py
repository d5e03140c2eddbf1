"""From files to the fields that a run predicts there, how far to trust them, and what changes.

A model answers for any surface; outside of what it was trained on the answer means nothing. The
training set is described by the lowest and highest coordinates of all its cases, the smallest and
largest extent of a case along each axis, and the way its surfaces face.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path

import numpy as np
import pyvista as pv
from torch import Tensor

from ..datapipes import plot_mesh
from ..datapipes.normalization import normalization_kinds
from ..datapipes.readers.contents import MESH_FILES, Contents, Wanted, open_body, open_file
from ..inference import LatentState
from ..meshes import CellMesh, PolygonMesh, polygon_mesh, to_pyvista
from ..meshes.export import add_arrays, prediction_arrays
from ..meshes.measures import EFFECTIVE_MEASURE, facing, stored_measure
from ..meshes.polygons import polygon_geometry
from ..runs.samples import SAMPLE, GlobalValues, input_sample, measures, whole_grid
from ..runs.trained_run import Run
from ..texts import printable
from .bounds import ERROR, Promise, check_members, evaluate_state, stored_bounds
from .forces import Forces, ForceSettings, field_forces, force_surface, surface_areas
from .predictions import CasePrediction, predict_members, relative_l2

WARNINGS = "warnings"
TrainingRanges = Mapping[str, Mapping[str, "list[float] | np.ndarray"]]
# Beyond the training range by this share of its span a model extrapolates.
_OUTSIDE = 0.05
# Extents of training are of sampled tokens, which miss the outermost ones.
_TOLERANCE = 1.25
# Units beside metres. They differ by a factor of 2.5 or more, so a size within 1.5 of one of them
# fits no other.
_UNITS = {"millimetres": 0.001, "centimetres": 0.01, "inches": 0.0254}
_SAME_UNIT = 1.5
# Surfaces coincide where they are closer than this share of the diagonal of their box.
_TOUCHING = 2e-3


def training_ranges(run: Run) -> TrainingRanges | None:
    """Return the ranges of the training set of a run, None if nothing is known of them.

    A run that did not store it is judged by its normaliser. A unit box holds the range of
    coordinates; a case is taken to fill half of it or more. Of mean and deviation, the range is
    taken as 4 deviations to either side, and a case as between 2 and 8 deviations long.
    """
    if run.training_set is not None:
        return run.training_set
    kind = (normalization_kinds(run.config.data) or {}).get("coordinates")
    affine = run.normalizer.affine.get("coordinates")
    factors = {"unit_box": (0, 1, 0.5, 1), "gaussian": (-4, 4, 2, 8)}.get(kind)
    if factors is None or affine is None or affine.shift.ndim != 1:
        return None
    shift, scale = affine.shift.double().numpy(), affine.scale.double().numpy()
    low, high, smallest, largest = (factor * scale for factor in factors)
    return {
        "coordinates": {"min": shift + low, "max": shift + high},
        "extent": {"min": smallest, "max": largest},
    }


def compare_size(
    training: TrainingRanges, coordinates: np.ndarray, source: str | Path, *, scale: float = 1.0
) -> tuple[str, str] | None:
    """Return a warning and, in short, why, if a surface has not the size or place of training."""
    low, high = coordinates.min(axis=0).astype(float), coordinates.max(axis=0).astype(float)
    smallest, largest, floor, ceiling = (
        np.asarray(training[what][end], float)
        for what in ("extent", "coordinates")
        for end in ("min", "max")
    )
    extent = high - low

    def listed(odd: np.ndarray, found: Sequence[str], least: np.ndarray, most: np.ndarray) -> str:
        texts = zip("xyz", odd, found, least, most, strict=False)
        return "; ".join(f"{a} {t} (training {x:.4g} to {y:.4g})" for a, o, t, x, y in texts if o)

    off = ~_fits(extent, smallest, largest)
    if off.any():
        lengths = listed(off, [f"{x:.4g}" for x in extent], smallest, largest)
        return (
            f"{source} is not of the size of the training surfaces: {lengths}. The prediction is "
            f"an extrapolation. {_advice(extent, smallest, largest, scale)}",
            "the surface does not have the size of the training surfaces",
        )
    outside = np.maximum(floor - low, high - ceiling) / np.maximum(ceiling - floor, 1e-12)
    if (outside <= _OUTSIDE).all():
        return None
    spans = [f"{a:.4g} to {b:.4g}" for a, b in zip(low, high, strict=True)]
    return (
        f"{source} reaches outside the coordinates of training: "
        f"{listed(outside > _OUTSIDE, spans, floor, ceiling)}. The prediction is an extrapolation. "
        "Move it to where the training surfaces are",
        "the surface is not where the training surfaces are",
    )


def _fits(extent: np.ndarray, smallest: np.ndarray, largest: np.ndarray) -> np.ndarray:
    """Return which extents are of training, (3,); flat surfaces are compared absolutely."""
    rounding = 1e-4 * largest.max()
    low, high = smallest / _TOLERANCE - rounding, largest * _TOLERANCE + rounding
    return (extent >= low) & (extent <= high)


def _advice(extent: np.ndarray, smallest: np.ndarray, largest: np.ndarray, scale: float) -> str:
    """Return what makes the surface fit: another unit, exchanged axes, another size."""
    middle, ratio = np.sqrt(smallest * largest), 1.0
    usable = (extent > 0) & (middle > 1e-4 * middle.max())
    if usable.any():  # all axes together tell the factor better than one of them
        ratio = float(np.exp(np.log(middle[usable] / extent[usable]).mean()))
    units = {factor: f"It looks like {name}" for name, factor in _UNITS.items()}
    for name, factor in _UNITS.items():
        units[1 / factor] = f"It looks like metres, and training like {name}"
    unit = min(units, key=lambda factor: abs(np.log(factor / ratio)))
    factors = [unit, 1.0] if abs(np.log(unit / ratio)) < np.log(_SAME_UNIT) else [1.0]
    for factor in factors:
        rescale = "" if factor == 1 else f"{units[factor]}: give --scale {scale * factor:.6g}. "
        for order in permutations(range(len(extent))):
            if not _fits(extent[list(order)] * factor, smallest, largest).all():
                continue
            if order == tuple(sorted(order)):
                return rescale.removesuffix(". ")
            like = ", ".join("xyz"[order.index(axis)] for axis in range(len(order)))
            axes = ", ".join("xyz"[: len(order)])
            return f"{rescale}Its axes look exchanged: its {axes} are like {like} of training"
    size = f"{1 / ratio:.3g} times larger" if ratio < 1 else f"{ratio:.3g} times smaller"
    if _fits(extent * ratio, smallest, largest).all():
        return (
            f"It has the proportions of training and is about {size}; if only its scale is wrong, "
            f"give --scale {scale * ratio:.3g}"
        )
    guess = f" {units[unit]} (--scale {scale * unit:.6g})." if unit in factors else ""
    return f"It has other proportions too, and is about {size}.{guess}"


def surface_doubts(
    run: Run, mesh: PolygonMesh, association: str, sample: Mapping[str, Tensor], scale: float
) -> tuple[list[str], str | None]:
    """Return warnings about a surface, and how it differs from the training surfaces, if so."""
    warnings: list[str] = []
    centres, vectors = polygon_geometry(mesh.points, mesh.connectivity, mesh.offsets)
    if flat := int(np.count_nonzero(~vectors.any(axis=1))):
        warnings.append(
            f"{mesh.source}: {flat} cells have no area; they are predicted like any other, with a "
            "normal of 0, and add nothing to forces"
        )
    loose = len(mesh.points) - len(np.unique(mesh.connectivity))
    if association == "point" and loose:
        warnings.append(
            f"{mesh.source}: {loose} points belong to no cell; they take part in the prediction "
            "like any other. Remove them, for example with pyvista's clean(), unless training had "
            "such points"
        )
    if "normals" in run.channels.features:
        warnings += _normals_warnings(run, mesh, facing(centres, vectors))
    if (known := training_ranges(run)) is None:
        return warnings, None
    found = compare_size(known, sample["coordinates"].numpy(), mesh.source, scale=scale)
    return (warnings, None) if found is None else ([*warnings, found[0]], found[1])


def _normals_warnings(run: Run, mesh: PolygonMesh, direction: str | None) -> list[str]:
    """Say that normals point the other way than in training, or that this is not known."""
    told = f"{mesh.source}: its cells face {direction or 'no definite way'}"
    if run.training_set is None or "orientation" not in run.training_set:
        return [
            f"{told}, and run {run.name}, which did not store where its training surfaces faced, "
            "takes normals as input. Patches that OpenFOAM writes face inward, CAD surfaces mostly "
            "outward: if the training surfaces faced the other way, give --flip"
        ]
    trained = run.training_set["orientation"]
    if trained not in ("outward", "inward") or direction == trained:
        return []
    advice = "orient them" if direction is None else "give --flip"
    return [
        f"{told}, but the surfaces of training face {trained}, and run {run.name} takes normals "
        f"as input; {advice}"
    ]


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
        Why forces from it mean little, None if the surface is like the training surfaces.
    promise : Promise
        What is promised about the errors; ``<field>_band`` of the mesh are the bands. Its parts
        are attributes of the prediction too: `bounds`, or why there are none in `no_bounds`; the
        `level`, the share of cases that they hold for; the `distance` from the cases of training.
    sample : Mapping[str, torch.Tensor]
        What the model was given, before normalisation.
    state : LatentState or None
        From which further points can be evaluated; None if the model has none.
    """

    mesh: pv.DataSet
    association: str
    values: np.ndarray
    polygons: PolygonMesh | None
    warnings: tuple[str, ...]
    doubt: str | None
    promise: Promise
    sample: Mapping[str, Tensor]
    state: LatentState | None

    bounds = property(lambda self: self.promise.bounds)
    no_bounds = property(lambda self: self.promise.no_bounds)
    level = property(lambda self: self.promise.level)
    distance = property(lambda self: self.promise.distance)


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
    path, fields = Path(path), run.channels.fields
    contents = open_for_run(run, path, scale=scale, flip=flip)
    if body is not None:
        contents = replace(contents, body=open_body(Path(body)))
    association = association or run.channels.association
    original = input_sample(run, contents, association, global_values)
    sample, polygons = run.transform(original), None
    warnings, doubt = [], None
    if isinstance(contents.mesh, PolygonMesh):
        polygons = contents.mesh
        warnings, doubt = surface_doubts(run, polygons, association, sample, scale)
    outside = run.parameter_warning(sample)
    warnings += [outside] if outside else []
    found = predict_members(runs, sample, progress=progress)
    values = found.values
    promise = Promise.of(known, found.features, sample, level, doubt or outside)
    points = original["coordinates"].numpy()
    if contents.mesh is not None:
        mesh = to_pyvista(contents.mesh)
    else:
        grid, association = whole_grid(run.channels, len(points)), "point"
        mesh = plot_mesh({"grid": grid, "files": [str(path)]}, points)
    arrays = prediction_arrays(fields, {run.name: values})
    if found.spread is not None:
        for name in fields:
            apart = np.linalg.norm(found.spread[:, run.channels.columns(name)], axis=1)
            arrays[f"{printable(name)}_spread"] = apart
    if promise.bounds is not None:
        arrays |= promise.bounds.bands(points, values, fields, promise.level, promise.distance)
    if "weights" in original:
        arrays[EFFECTIVE_MEASURE] = original["weights"].numpy()
    add_arrays(mesh, arrays, association)
    if warnings:
        # VTK's strings are ASCII, and a warning may name a file that is not.
        mesh.field_data[WARNINGS] = [
            text.encode("ascii", "backslashreplace").decode() for text in warnings
        ]
    told = (tuple(warnings), doubt, promise)
    return FilePrediction(mesh, association, values, polygons, *told, sample, found.state)


def open_for_run(run: Run, path: Path, *, scale: float = 1.0, flip: bool = False) -> Contents:
    """Return a whole mesh, scaled and turned, or what a run uses of a file of arrays."""
    channels, names, suffix = run.channels, run.names, path.suffix.lower()
    if not (np.isfinite(scale) and scale > 0):
        raise ValueError(f"scale is {scale}, expected a positive number such as 0.001")
    if suffix not in MESH_FILES:
        if scale != 1 or flip:
            raise ValueError(f"{path} holds arrays; scale and flip are for meshes. Change the file")
        if names is None and suffix not in (".npy", ".npz"):
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
    boundary = (run.data.get("reader") or {}).get("boundary")
    contents = open_file(path, Wanted(sizes=measures(channels), boundary=boundary))
    mesh = contents.mesh if scale == 1 else _scaled(contents.mesh, scale)
    if not isinstance(mesh, PolygonMesh):
        if names is None or flip:
            raise ValueError(
                f"{path} has cells that are not polygons; expected a surface. Extract it, for "
                "example with pyvista's extract_surface()"
            )
    elif (few := np.diff(mesh.offsets) < 3).any():
        raise ValueError(
            f"{path} has {few.sum()} cells with fewer than 3 vertices, the first at "
            f"{int(np.argmax(few))}; remove them, for example with pyvista's clean()"
        )
    elif flip:
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
    lines = [f"warning: {text}" for text in prediction.warnings] + prediction.promise.lines()
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


def case_promise(run: Run, case: CasePrediction, level: float | None = None) -> Promise:
    """Return what is promised about the errors of a test case."""
    known = stored_bounds([run])
    sample = {} if isinstance(known, str) else run.test_set[case.index][0]
    return Promise.of(known, case.pooled_state, sample, level)


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
    if promised := prediction.promise.coefficients_line(forces.coefficients, settings):
        lines.append(promised)
    area = f"; reference area {surface.reference_area:.6g} ({surface.area_source})"
    conventions = [str(settings) + area]
    if truth is not None:
        forces = field_forces(surface, truth, run.channels, target_settings)
        lines.append(f"forces in the file: {_format(forces)}")
        if target_settings != settings:
            conventions.append(f"in the file: {target_settings}")
        if odd := forces.shear is not None and target_settings.sign_doubt(forces.shear[0]):
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
    texts = [f"{name} {value:.5f}" for name, value in forces.coefficients.items()]
    if forces.shear is not None:
        parts = zip(texts, forces.pressure, forces.shear, strict=True)
        texts = [f"{text} (pressure {p:.5f}, shear {tau:.5f})" for text, p, tau in parts]
    return ", ".join(texts)


@dataclass(frozen=True)
class Difference:
    """The change from one surface to another as a run predicts it.

    Parameters
    ----------
    mesh : pyvista.PolyData
        The second surface with ``<field>_change``, NaN where the surfaces do not coincide.
    before, after : Mapping[str, float]
        Coefficients of both; empty without forces.
    bounds : Mapping[str, float]
        Of the error of the change of each coefficient; empty where nothing is promised.
    fields : Mapping[str, tuple[float, float, float]]
        Root mean square of the change of each field over the common surface, the bound of its
        error (NaN where nothing is promised), and the same of the field itself.
    common : float
        Share of the second surface's area that coincides with the first.
    level : float or None
        The share of pairs that bounds hold for.
    no_bounds : str or None
        Why nothing is promised.
    """

    mesh: pv.PolyData
    before: Mapping[str, float]
    after: Mapping[str, float]
    bounds: Mapping[str, float]
    fields: Mapping[str, tuple[float, float, float]]
    common: float
    level: float | None
    no_bounds: str | None


def predict_difference(
    run: Run,
    before: str | Path,
    after: str | Path,
    settings: ForceSettings | None,
    *,
    level: float | None = None,
    global_values: GlobalValues | None = None,
    scale: float = 1.0,
    flip: bool = False,
) -> Difference:
    """Return the change of coefficients and fields from one surface to another.

    The fields of the first surface are evaluated at the tokens of the second from its latent
    state, so that the meshes may differ.

    Parameters
    ----------
    run : Run
        Of a model with latent states.
    before, after : str or Path
        The surfaces.
    settings : ForceSettings or None
        Conventions of the coefficients; None integrates none.
    level, global_values, scale, flip
        As in :func:`predict_file`, of both surfaces.
    """
    known, association = stored_bounds([run]), run.channels.association
    refusal = known if isinstance(known, str) else None
    given = {"level": level, "global_values": global_values, "scale": scale, "flip": flip}
    shapes, coefficients = [], []
    for path in (before, after):
        shape = predict_file(run, path, **given)
        if shape.polygons is None:
            raise ValueError(
                f"{path} is not a surface of polygons; differences are between surfaces"
            )
        if shape.state is None:
            raise ValueError(
                f"the model of run {run.name} has no latent state, from which the fields of one "
                "surface could be evaluated on another"
            )
        if refusal is None and shape.no_bounds:
            refusal = f"{path}: {shape.no_bounds}"
        shapes.append(shape)
        if settings is not None:
            surface = force_surface(shape.polygons, association, settings)
            forces = field_forces(surface, shape.values, run.channels, settings)
            coefficients.append(forces.coefficients)
    old, new = coefficients or ({}, {})
    level, promised = shapes[1].level, change_bounds([s.promise for s in shapes], new, settings)
    change, fields, share = _field_changes(run, *shapes)
    mesh = add_arrays(to_pyvista(shapes[1].polygons), change, association)
    return Difference(mesh, old, new, promised, fields, share, level, refusal)


def change_bounds(
    promises: Sequence[Promise], names: Iterable[str], settings: ForceSettings | None
) -> dict[str, float]:
    """Return bounds of the change of coefficients between two cases; none without a promise."""
    if settings is None or any(promise.bounds is None for promise in promises):
        return {}
    # Of two meshes the more unusual, whose bounds hold for both.
    bounds = max((promise.bounds for promise in promises), key=lambda known: known.n_meshes)
    if not bounds.accepts(settings):
        return {}
    far = tuple(promise.distance for promise in promises)
    found = {name: bounds.difference(name, promises[1].level, far) for name in names}
    return {name: value for name, value in found.items() if np.isfinite(value)}


def _coincide(other: PolygonMesh, points: np.ndarray) -> np.ndarray:
    """Return which points lie on another surface, (N,)."""
    surface = to_pyvista(other).triangulate()
    surface.clear_data()
    found = surface.find_closest_cell(points.astype(float), return_closest_point=True)[1]
    box = np.ptp(other.points, axis=0)
    return np.linalg.norm(found - points, axis=1) <= _TOUCHING * np.linalg.norm(box)


def _field_changes(
    run: Run, one: FilePrediction, two: FilePrediction
) -> tuple[dict[str, np.ndarray], dict[str, tuple[float, float, float]], float]:
    """Return changes at the tokens, their sizes with bounds, and the common share of the area."""
    moved = evaluate_state(run, two.sample, one.state)
    touching = _coincide(one.polygons, two.sample["coordinates"].numpy())
    of_both = [surface_areas(x.polygons, x.association, "outward").areas for x in (one, two)]
    areas, arrays, sizes = of_both[1][touching], {}, {}
    for name in run.channels.fields:
        columns = run.channels.columns(name)
        change, off = (two.values - moved)[:, columns], np.nan
        if one.bounds and two.bounds and touching.any():
            # Both cases within their bounds at once: the shares that may miss add up.
            pairs = zip((one, two), of_both, strict=True)
            off = sum(_absolute(name, columns, x, all_areas) for x, all_areas in pairs)
            off /= np.sqrt(areas.sum())
        size = _rms(two.values[touching, columns], areas)
        sizes[name] = (_rms(change[touching], areas), off, size)
        shown = np.where(touching[:, None], change, np.nan).astype(np.float32)
        arrays[f"{printable(name)}_change"] = shown[:, 0] if shown.shape[1] == 1 else shown
    return arrays, sizes, float(areas.sum() / of_both[1].sum())


def _rms(values: np.ndarray, areas: np.ndarray) -> float:
    if not len(areas):
        return float("nan")
    return float(np.sqrt((areas * (values.astype(float) ** 2).sum(axis=1)).sum() / areas.sum()))


def _absolute(name: str, columns: slice, found: FilePrediction, areas: np.ndarray) -> float:
    """Return a bound of the norm of the error of a field, at half the share of misses."""
    if name not in found.bounds.scores[ERROR]:  # all fields were in one norm
        return float("nan")
    relative = found.bounds.error(name, (1 + found.level) / 2, found.distance)
    norm = _rms(found.values[:, columns], areas) * np.sqrt(areas.sum())
    # |p - y| <= e |y| and |y| <= |p| + |p - y|
    return relative / (1 - relative) * norm if relative < 1 else float("inf")


def describe_difference(found: Difference, *, chosen: bool = False) -> list[str]:
    """Return the changes with their bounds in lines.

    No sign is settled where the second surface was `chosen` by its prediction.
    """
    lines = [] if found.no_bounds is None else [f"no bounds: {found.no_bounds}"]
    share = "" if found.level is None else f"({100 * found.level:g} %)"
    for name, value in found.after.items():
        change = value - found.before[name]
        text = f"{name} {found.before[name]:.5f} -> {value:.5f}: change {change:+.5f}"
        if name in found.bounds:
            bound = found.bounds[name]
            sign = "settled" if abs(change) > bound else "not settled"
            told = "for shapes not chosen by their prediction" if chosen else f"sign {sign}"
            text += f" ± {bound:.2g} {share}, {told}"
        lines.append(text)
    for name, (change, bound, size) in found.fields.items():
        text = f"{name} changes by {change:.4g} (root mean square, {100 * change / size:.3g} %)"
        text += f" on the common {100 * found.common:.3g} % of the surface"
        if np.isfinite(bound):
            text += f", of which {bound:.4g} may be error {share}"
        lines.append(text)
    return lines
