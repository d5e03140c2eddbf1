"""Calibrate a run: score held-out cases, on their own meshes and on others, by their errors."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyvista as pv
import torch
from jaxtyping import Float
from scipy.spatial import cKDTree
from tensordict import TensorDict

from ..datapipes.readers import CaseReader
from ..datapipes.readers.base import MEASURE, NO_WEIGHTS
from ..inference import LatentState, decode_state
from ..meshes import PolygonMesh, polygon_mesh
from ..progress import progress_bar
from ..runs.samples import sample_of
from ..runs.trained_run import Run, can_stream
from .bounds import (
    BAND,
    COEFFICIENT,
    ERROR,
    LEVELS,
    Bounds,
    NoGround,
    area_quantile,
    check_members,
    difficulty,
    fingerprints,
    highest_level,
    mesh_grain,
    plain_settings,
)
from .forces import ForceSettings, field_forces, force_settings, force_surface, target_settings
from .predictions import CasePrediction, predict_members, state_features
from .reports import compare_forces

# Training cases that others are compared with: the most cases, and the most tokens of each.
_REFERENCES, _TOKENS = 256, 20_000
_FEWEST = 4


def calibrate(
    runs: Run | Sequence[Run],
    *,
    weights: Mapping[str, float] | None = None,
    meshes: bool = False,
    progress: bool = True,
) -> Bounds:
    """Return bounds of the errors of a run from its validation cases, or from other data.

    Parameters
    ----------
    runs : Run or sequence of Run
        One run, or the members of an ensemble, whose mean is bounded. If the first was loaded with
        another `data_root`, the test cases there are used instead of its validation cases.
    weights : Mapping[str, float], optional
        How much likelier each case, by id, is where the bounds will be used.
    meshes : bool, optional
        Score each case on other meshes of its surface too, see :func:`other_meshes`: the bounds
        then hold for new shapes on meshes of these kinds.
    progress : bool, optional
        Show a bar if stderr is a terminal.

    Raises
    ------
    NoGround
        If there are too few cases, if some were trained on or are of another data set, or if
        fields are not finite.

    Examples
    --------
    >>> bounds = calibrate(load_run("outputs/cars-flarepp-seed0"))  # doctest: +SKIP
    """
    runs = [runs] if isinstance(runs, Run) else list(runs)
    run = runs[0]
    check_members(runs)
    if not can_stream(run.model):
        raise NoGround(
            f"run {run.name} has a model without latent states, so there is no way to tell whether "
            "a case is like the training cases"
        )
    elsewhere = run.data_root is not None and not run.moved
    reader = run.test_set if elsewhere else run.cases("val")
    ids = [] if reader is None else reader.case_ids
    if len(ids) < _FEWEST:
        raise NoGround(
            f"run {run.name} has {len(ids)} held-out cases; {_FEWEST} are needed for a level of "
            "80 %, 9 for 90 %, 19 for 95 %. Train with data.n_val (or a split val), or give other "
            "cases: flarepp calibrate RUN DATA"
        )
    train = run.cases("train", n_points=_TOKENS)
    if not elsewhere and (shared := sorted(set(ids) & set(train.case_ids))):
        raise NoGround(f"{_listed(shared)} were trained on, so their errors promise nothing")
    counted, settings = _case_weights(ids, weights), case_forces(run)
    kept = np.unique(np.linspace(0, len(train) - 1, min(len(train), _REFERENCES)).astype(int))
    if meshes and (run.channels.weights != MEASURE or run.channels.globals):
        raise NoGround(
            f"run {run.name} cannot be calibrated over meshes: its tokens must be weighed by their "
            "areas (data.weights=measure), by which meshes are compared, without global values"
        )
    references, features, rows, grains = [], [], [], []
    with progress_bar(f"calibrate {run.name}", len(kept) + len(ids), progress) as advance:
        for index in kept:
            references.append(predict_members([run], train[int(index)][0], progress=False).features)
            advance()
        for index in range(len(ids)):
            sample, metadata = reader[index]
            found = predict_members(runs, sample, progress=False)
            more = {"prediction": found.values, "pooled_state": found.features}
            case = CasePrediction.of(run, index, sample, metadata, **more)
            areas = token_areas(reader, index, len(case.target))
            copies = other_meshes(case) if meshes else ()
            others = (predict_on_mesh(runs, case, sample, mesh) for mesh in copies)
            for scored, other in [(case, None), *others]:
                rows.append(case_scores(scored, areas, settings, other))
                if COEFFICIENT not in rows[-1]:
                    settings = None  # of no case, then
                features.append(scored.pooled_state)
                grain = mesh_grain(sample if other is None else other.sample)
                grains.append(grain if meshes else grain[:2])
            advance()
    scores: dict[str, dict[str, np.ndarray]] = {ERROR: {}, BAND: {}, COEFFICIENT: {}}
    for kind in (ERROR, BAND, *([] if settings is None else [COEFFICIENT])):
        for name in rows[0][kind]:
            scores[kind][name] = np.array([row[kind][name] for row in rows])
    bounds = Bounds(
        case_ids=tuple(ids),
        weights=counted,
        scores=scores,
        references=np.array(references).astype(np.float32).astype(np.float64),
        distances=np.zeros(len(rows)),
        grains=np.array(grains),
        fingerprints=fingerprints(runs),
        forces=None if settings is None else plain_settings(settings[0]),
        remarks=tuple(_remarks(run, reader)),
    )
    bounds.distances[:] = [bounds.distance(found) for found in features]
    _check_origin(next(bounds.steps()), features[:: bounds.n_meshes], run)
    return bounds


def case_forces(run: Run) -> tuple[ForceSettings, ForceSettings] | None:
    """Return the conventions of predictions and targets, None where none are known."""
    if run.channels.coordinates != 3 or run.channels.grid is not None:
        return None
    try:
        return force_settings(run), target_settings(run)
    except ValueError:
        return None


def other_meshes(case: CasePrediction) -> list[pv.PolyData]:
    """Return other meshes of the surface of a case, those of ``MESHES`` after the original."""
    mesh = case.mesh
    if not isinstance(mesh, pv.PolyData) or mesh.GetPolys().GetNumberOfCells() == 0:
        raise NoGround(f"case {case.case_id} is not a surface, of which there are other meshes")
    mesh = mesh.triangulate()
    mesh.clear_data()
    along = mesh.cell_centers().points[:, np.argmax(np.ptp(mesh.points, axis=0))]
    front = along < (along.min() + along.max()) / 2
    finer = [_cut_in_four(mesh, chosen) for chosen in (np.ones_like(front), front, ~front)]
    return [*finer, mesh.decimate(0.5)]


def _cut_in_four(mesh: pv.PolyData, chosen: np.ndarray) -> pv.PolyData:
    corners = mesh.points[mesh.regular_faces]
    a, b, c = corners[chosen].swapaxes(0, 1)
    ab, bc, ca = (a + b) / 2, (b + c) / 2, (c + a) / 2
    parts = [np.stack(part, 1) for part in ((a, ab, ca), (ab, b, bc), (ca, bc, c), (ab, bc, ca))]
    points = np.concatenate([corners[~chosen], *parts]).reshape(-1, 3)
    return pv.PolyData.from_regular_faces(points, np.arange(len(points)).reshape(-1, 3)).clean()


class OtherMesh(NamedTuple):
    """Another mesh of a case: its inputs, and what runs predict at its tokens."""

    polygons: PolygonMesh
    sample: Mapping[str, torch.Tensor]
    values: np.ndarray


def predict_on_mesh(
    runs: Sequence[Run], case: CasePrediction, sample: Mapping[str, torch.Tensor], mesh: pv.PolyData
) -> tuple[CasePrediction, OtherMesh]:
    """Return a case as it follows from another mesh, at its own tokens, and that mesh."""
    given = sample_of(runs[0], mesh, {})
    found = [run.predict_with_state(given, progress=False) for run in runs]
    pairs = zip(runs, found, strict=True)
    moved = np.mean([evaluate_state(run, sample, state) for run, (_, state) in pairs], axis=0)
    values = np.mean([values for values, _ in found], axis=0)
    other = OtherMesh(polygon_mesh(mesh, case.metadata["source"]), given, values)
    return replace(case, prediction=moved, pooled_state=state_features(found[0][1])), other


def evaluate_state(
    run: Run, sample: Mapping[str, torch.Tensor], state: LatentState
) -> Float[np.ndarray, "N O"]:
    """Return the fields of a latent state at the tokens of a sample, in physical units."""
    inputs = run.inputs(sample)
    queries = (inputs["fx"], inputs.get("embedding"))
    values = decode_state(run.model, *queries, state, progress=False)
    values = values.reshape(len(sample["coordinates"]), -1).float().cpu()
    given = run.normalizer(TensorDict(dict(sample))).get("globals", None)
    return run.normalizer.inverse(values, given=given).numpy()


def case_scores(
    case: CasePrediction,
    areas: np.ndarray,
    settings: tuple[ForceSettings, ForceSettings] | None,
    other: OtherMesh | None = None,
) -> dict[str, dict[str, object]]:
    """Return rows of ``Bounds.scores``; tokens stand for `areas`, (N,), `other` has the forces."""
    for what, values in (("fields", case.target), ("prediction", case.prediction)):
        if not np.isfinite(values).all():
            column = int(np.argmax(~np.isfinite(values).all(axis=0)))
            raise NoGround(
                f"case {case.case_id} has {case.field_names[column]} that is not finite in its "
                f"{what}; repair the case, or leave it out"
            )
    bands, points, values, nearest = {}, case.coordinates, case.prediction, slice(None)
    if other is not None:
        points, values = other.sample["coordinates"].numpy(), other.values
        nearest = cKDTree(points).query(case.coordinates)[1]
    for name in case.channels.fields:
        columns = case.channels.columns(name)
        off = np.linalg.norm((case.prediction - case.target)[:, columns].astype(float), axis=1)
        off /= difficulty(points, values[:, columns])[nearest]
        bands[name] = [area_quantile(off, level, areas) for level in LEVELS]
    row: dict[str, dict[str, object]] = {ERROR: case.errors_in(areas), BAND: bands}
    if settings is not None:
        try:
            _, predicted, true = compare_forces(case, *settings)
        except ValueError:  # points without a surface
            return row
        if other is not None:
            surface = force_surface(other.polygons, case.association, settings[0])
            predicted = field_forces(surface, other.values, case.channels, settings[0])
        off = predicted.total - true.total
        row[COEFFICIENT] = dict(zip(predicted.coefficients, off.tolist(), strict=True))
    return row


def token_areas(reader: CaseReader, index: int, n_tokens: int) -> np.ndarray:
    """Return what the tokens of a case stand for; equal shares where that is not known."""
    measure = reader.read_measure(index)
    return np.ones(n_tokens) if measure is None or len(measure) != n_tokens else measure


def _case_weights(ids: Sequence[str], given: Mapping[str, float] | None) -> np.ndarray:
    if given is None:
        return np.ones(len(ids))
    if missing := [name for name in ids if name not in given]:
        raise NoGround(f"{_listed(missing)} have no weight; give one for each held-out case")
    weights = np.array([given[name] for name in ids], np.float64)
    if not (np.isfinite(weights) & (weights >= 0)).all() or highest_level(weights) < min(LEVELS):
        raise NoGround(
            f"weights of cases are {weights.min():g} to {weights.max():g}: expected numbers that "
            "are not negative, of which the largest is at most a fourth of their sum"
        )
    return weights


def _remarks(run: Run, reader: CaseReader) -> list[str]:
    remarks, chosen = [], run.selected or {}
    if chosen.get("split") == "val" and chosen.get("select") != "last":
        remarks.append(
            "the weights were chosen by the error of these cases, so the bounds are optimistic; "
            "calibrate on others, or train with training.select=last"
        )
    if run.channels.weights == NO_WEIGHTS:
        remarks.append(
            "this run does not weight its tokens, so meshes are not compared: bounds hold only on "
            "meshes like the training meshes"
        )
    if reader.read_measure(0) is None:
        remarks.append("areas are unknown, so errors are sums over tokens, not integrals")
    return remarks


def _check_origin(bounds: Bounds, features: Sequence[np.ndarray], run: Run) -> None:
    """Raise if held-out cases are training cases, or not of their kind."""
    spread = bounds.references.std(axis=0).max()
    near = [np.abs(bounds.references - row).max(axis=1).min() for row in features]
    same = [name for name, off in zip(bounds.case_ids, near, strict=True) if off <= 1e-5 * spread]
    if same:
        raise NoGround(f"{_listed(same)} have the inputs of training cases of run {run.name}")
    bounds.guard.compute_threshold()
    usual = float(bounds.guard.knn_threshold)
    if np.median(bounds.distances) > usual:
        raise NoGround(
            f"the {len(bounds.case_ids)} cases seem to come from another data set: their latent "
            f"states are {np.median(bounds.distances):.3g} (median) away from the training cases, "
            f"which are at most {usual:.3g} from each other. Bounds hold only for cases like the "
            "training cases"
        )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
    return f"{len(names)} cases ({shown})"
