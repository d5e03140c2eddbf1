"""What changes between two surfaces, and whether the errors of a model let one tell."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyvista as pv
import torch

from ..inference import decode_state
from ..meshes import PolygonMesh, to_pyvista
from ..meshes.export import add_arrays
from ..runs.samples import GlobalValues, input_sample
from ..runs.trained_run import Run
from ..texts import printable
from .bounds import ERROR, Bounds, state_features
from .calibration import stored_bounds
from .file_predictions import open_for_run, sample_grain, surface_doubts
from .force_conventions import ForceSettings
from .forces import field_forces, force_surface, surface_areas

# Surfaces coincide where they are closer than this share of the diagonal of their box.
_TOUCHING = 2e-3


@dataclass(frozen=True)
class _Shape:
    """A surface with what a run makes of it."""

    mesh: PolygonMesh
    sample: Mapping[str, torch.Tensor]
    values: np.ndarray
    state: object
    areas: np.ndarray
    distance: float | None
    refusal: str | None
    coefficients: Mapping[str, float]


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
    level : float, optional
        Of the bounds, see :func:`~.file_predictions.predict_file`.
    global_values, scale, flip
        As in :func:`~.file_predictions.predict_file`, of both surfaces.
    """
    known = stored_bounds([run])
    bounds = known if isinstance(known, Bounds) else None
    one, two = (
        _predict(run, Path(path), settings, bounds, global_values, scale, flip)
        for path in (before, after)
    )
    refusal = known if bounds is None else one.refusal or two.refusal
    if bounds is not None:
        level = bounds.choose_level(level)
    promised = {}
    if refusal is None and settings is not None and bounds.accepts(settings):
        far = (one.distance, two.distance)
        promised = {name: bounds.difference(name, level, far) for name in two.coefficients}
        promised = {name: value for name, value in promised.items() if np.isfinite(value)}
    touching = _coincide(two.mesh, one.mesh, two.sample["coordinates"].numpy())
    share = float(two.areas[touching].sum() / two.areas.sum())
    change, fields = _field_changes(run, one, two, touching, bounds, refusal, level)
    mesh = add_arrays(to_pyvista(two.mesh), change, run.channels.association)
    return Difference(
        mesh, one.coefficients, two.coefficients, promised, fields, share, level, refusal
    )


def _predict(
    run: Run,
    path: Path,
    settings: ForceSettings | None,
    bounds: Bounds | None,
    global_values: GlobalValues | None,
    scale: float,
    flip: bool,
) -> _Shape:
    contents = open_for_run(run, path, scale=scale, flip=flip)
    if not isinstance(contents.mesh, PolygonMesh):
        raise ValueError(f"{path} is not a surface of polygons; differences are between surfaces")
    mesh, association = contents.mesh, run.channels.association
    sample = run.transform(input_sample(run, contents, association, global_values))
    values, state = run.predict_with_state(sample)
    if state is None:
        raise ValueError(
            f"the model of run {run.name} has no latent state, from which the fields of one "
            "surface could be evaluated on another"
        )
    size = surface_doubts(run, mesh, association, sample, scale)[1]
    refusal = size.doubt or run.parameter_warning(sample)
    distance = None if bounds is None else bounds.distance(state_features(state))
    if refusal is None and bounds is not None:
        refusal = bounds.doubt(distance, sample_grain(sample))
    refusal = refusal and f"{path}: {refusal}"
    coefficients = {}
    if settings is not None:
        surface = force_surface(mesh, association, settings)
        coefficients = field_forces(surface, values, run.channels, settings).coefficients
    areas = surface_areas(mesh, association, "outward").areas
    return _Shape(mesh, sample, values, state, areas, distance, refusal, coefficients)


def _coincide(mesh: PolygonMesh, other: PolygonMesh, points: np.ndarray) -> np.ndarray:
    """Return which points of one surface lie on another, (N,)."""
    box = np.ptp(other.points, axis=0)
    surface = to_pyvista(other).triangulate()
    surface.clear_data()
    found = surface.find_closest_cell(points.astype(float), return_closest_point=True)[1]
    return np.linalg.norm(found - points, axis=1) <= _TOUCHING * np.linalg.norm(box)


def _field_changes(
    run: Run,
    one: _Shape,
    two: _Shape,
    touching: np.ndarray,
    bounds: Bounds | None,
    refusal: str | None,
    level: float | None,
) -> tuple[dict[str, np.ndarray], dict[str, tuple[float, float, float]]]:
    """Return the change of each field at the tokens, and its size with a bound."""
    inputs = run.inputs(two.sample)
    queries = (inputs["fx"], inputs.get("embedding"))
    moved = decode_state(run.model, *queries, one.state, progress=False)
    given = run.normalizer(dict(two.sample)).get("globals", None)
    moved = moved.reshape(len(two.values), -1).float().cpu()
    moved = run.normalizer.inverse(moved, given=given).numpy()
    arrays, sizes = {}, {}
    areas = two.areas[touching]
    for name in run.channels.fields:
        columns = run.channels.columns(name)
        change = (two.values - moved)[:, columns]
        off = np.nan
        if refusal is None and touching.any():
            # Both cases within their bounds at once: the shares that may miss add up.
            off = sum(_absolute(bounds, name, columns, shape, level) for shape in (one, two))
            off /= np.sqrt(areas.sum())
        sizes[name] = (
            _rms(change[touching], areas),
            off,
            _rms(two.values[touching, columns], areas),
        )
        shown = np.where(touching[:, None], change, np.nan).astype(np.float32)
        arrays[f"{printable(name)}_change"] = shown[:, 0] if shown.shape[1] == 1 else shown
    return arrays, sizes


def _rms(values: np.ndarray, areas: np.ndarray) -> float:
    if not len(areas):
        return float("nan")
    return float(np.sqrt((areas * (values.astype(float) ** 2).sum(axis=1)).sum() / areas.sum()))


def _absolute(bounds: Bounds, name: str, columns: slice, shape: _Shape, level: float) -> float:
    """Return a bound of the norm of the error of a field, at half the share of misses."""
    if name not in bounds.scores[ERROR]:  # all fields were in one norm
        return float("nan")
    relative = bounds.error(name, (1 + level) / 2, shape.distance)
    norm = _rms(shape.values[:, columns], shape.areas) * np.sqrt(shape.areas.sum())
    # |p - y| <= e |y| and |y| <= |p| + |p - y|
    return relative / (1 - relative) * norm if relative < 1 else float("inf")


def describe_difference(found: Difference) -> list[str]:
    """Return the changes with their bounds in lines."""
    lines = [] if found.no_bounds is None else [f"no bounds: {found.no_bounds}"]
    for name, value in found.after.items():
        change = value - found.before[name]
        text = f"{name} {found.before[name]:.5f} -> {value:.5f}: change {change:+.5f}"
        if name in found.bounds:
            bound = found.bounds[name]
            sign = "sign settled" if abs(change) > bound else "sign not settled"
            text += f" ± {bound:.2g} ({100 * found.level:g} %), {sign}"
        lines.append(text)
    for name, (change, bound, size) in found.fields.items():
        text = f"{name} changes by {change:.4g} (root mean square, {100 * change / size:.3g} %)"
        text += f" on the common {100 * found.common:.3g} % of the surface"
        if np.isfinite(bound):
            text += f", of which {bound:.4g} may be error ({100 * found.level:g} %)"
        lines.append(text)
    return lines
