"""What changes between two surfaces as a run predicts it, and how much of that may be error."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyvista as pv

from ..meshes import PolygonMesh, to_pyvista
from ..meshes.export import add_arrays
from ..runs.samples import GlobalValues
from ..runs.trained_run import Run
from ..texts import printable
from .bounds import ERROR, Promise, stored_bounds
from .calibration import evaluate_state
from .file_predictions import FilePrediction, predict_file
from .forces import ForceSettings, field_forces, force_surface, surface_areas

# Surfaces coincide where they are closer than this share of the diagonal of their box.
_TOUCHING = 2e-3


@dataclass(frozen=True)
class Difference:
    """The change from one surface to another as a run predicts it.

    `fields` has the root mean square of the change of each field over the common surface, the bound
    of its error (NaN where nothing is promised), and the root mean square of the field itself.
    """

    mesh: pv.PolyData  #: the second surface with ``<field>_change``, NaN where the first is not
    before: Mapping[str, float]  #: coefficients, empty without forces
    after: Mapping[str, float]
    bounds: Mapping[str, float]  #: of the errors of their changes; empty if nothing is promised
    fields: Mapping[str, tuple[float, float, float]]
    common: float  #: share of the second surface's area that coincides with the first
    level: float | None  #: the share of pairs that bounds hold for
    no_bounds: str | None  #: why nothing is promised


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
    state, so the meshes may differ, but the model must have latent states. `settings` are the
    conventions of the coefficients; None integrates none. Other arguments are as in
    :func:`predict_file`, for both surfaces.
    """
    known, association = stored_bounds([run]), run.channels.association
    refusal = known if isinstance(known, str) else None
    given = {"level": level, "global_values": global_values, "scale": scale, "flip": flip}
    shapes, coefficients = [], []
    for path in (before, after):
        shape = predict_file(run, path, **given)
        if shape.polygons is None:
            raise ValueError(f"{path} is not a surface of polygons")
        if shape.state is None:
            raise ValueError(f"run {run.name} has a model without latent states, which this needs")
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
        both = change[touching], two.values[touching, columns]
        moved_by, size = (_norm(x, areas) / (np.sqrt(areas.sum()) or np.nan) for x in both)
        sizes[name] = (moved_by, off, size)
        shown = np.where(touching[:, None], change, np.nan).astype(np.float32)
        arrays[f"{printable(name)}_change"] = shown[:, 0] if shown.shape[1] == 1 else shown
    return arrays, sizes, float(areas.sum() / of_both[1].sum())


def _norm(values: np.ndarray, areas: np.ndarray) -> float:
    return float(np.sqrt((areas * (values.astype(float) ** 2).sum(axis=1)).sum()))


def _absolute(name: str, columns: slice, found: FilePrediction, areas: np.ndarray) -> float:
    """Return a bound of the norm of the error of a field, at half the share of misses."""
    if name not in found.bounds.scores[ERROR]:  # all fields were in one norm
        return float("nan")
    relative = found.bounds.error(name, (1 + found.level) / 2, found.distance)
    norm = _norm(found.values[:, columns], areas)
    # |p - y| <= e |y| and |y| <= |p| + |p - y|
    return relative / (1 - relative) * norm if relative < 1 else float("inf")


def describe_difference(found: Difference, *, chosen: bool = False) -> list[str]:
    """Return the changes with their bounds in lines.

    No sign is settled where the second surface was `chosen` by its prediction.
    """
    lines = [] if found.no_bounds is None else [f"no bounds: {found.no_bounds}"]
    if found.after and not found.bounds and not lines:
        why = "too few pairs of held-out cases, or forces in other conventions than calibrated"
        lines = [f"no bounds of the forces at {100 * found.level:g} %: {why}"]
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
