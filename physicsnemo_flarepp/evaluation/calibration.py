"""Calibrate the bounds of a run, or of an ensemble of runs, on cases that training never saw."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import numpy as np

from ..datapipes.readers import CaseReader
from ..datapipes.readers.base import NO_WEIGHTS
from ..inference import model_fingerprint
from ..inference.prediction import unwrap
from ..progress import progress_bar
from ..runs.directory import BOUNDS, ENSEMBLE_BOUNDS, add_result, read_run_manifest
from ..runs.trained_run import Run, can_stream
from .bounds import (
    BAND,
    COEFFICIENT,
    ERROR,
    LEVELS,
    Bounds,
    area_quantile,
    difficulty,
    highest_level,
    mesh_grain,
)
from .force_conventions import ForceSettings, force_settings, target_settings
from .forces import field_forces, force_surface
from .predictions import CasePrediction, case_contents, predict_members, relative_l2

# Training cases that others are compared with: so many at most, at so many tokens at most.
_REFERENCES, _TOKENS = 256, 20_000
_FEWEST = 4


class NoGround(ValueError):
    """Bounds cannot be calibrated: cases are missing, or are not what they should be."""


def calibrate(
    runs: Run | Sequence[Run],
    *,
    weights: Mapping[str, float] | None = None,
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
            f"run {run.name} has a model without latent states, so nothing tells whether a case "
            "is like those of training"
        )
    elsewhere = run.data_root is not None and not run.moved
    reader = run.test_set if elsewhere else run.cases("val")
    found = [] if reader is None else reader.case_ids
    if len(found) < _FEWEST:
        raise NoGround(
            f"run {run.name} has {len(found)} held-out cases; {_FEWEST} are needed for a level of "
            "80 %, 9 for 90 %, 19 for 95 %. Train with data.n_val (or a split val), or give other "
            "cases: flarepp calibrate RUN DATA"
        )
    train = run.cases("train", n_points=_TOKENS)
    if not elsewhere and (shared := sorted(set(found) & set(train.case_ids))):
        raise NoGround(f"{_listed(shared)} were trained on, so their errors promise nothing")
    return _measure(runs, reader, train, _case_weights(found, weights), progress)


def _measure(
    runs: Sequence[Run],
    reader: CaseReader,
    train: CaseReader,
    weights: np.ndarray,
    progress: bool,
) -> Bounds:
    """Predict the training and the held-out cases, and check what these are."""
    run, n = runs[0], len(reader.case_ids)
    settings = case_forces(run)
    kept = np.unique(np.linspace(0, len(train) - 1, min(len(train), _REFERENCES)).astype(int))
    references, features, rows, grains = [], [], [], []
    with progress_bar(f"calibrate {run.name}", len(kept) + n, progress) as advance:
        for index in kept:
            sample, _ = train[int(index)]
            references.append(predict_members([run], sample, progress=False).features)
            advance()
        for index in range(n):
            sample, metadata = reader[index]
            found = predict_members(runs, sample, progress=False)
            contents = case_contents(run, index, sample, metadata)
            case = CasePrediction(**contents, prediction=found.values)
            rows.append(case_scores(case, token_areas(reader, index, len(case.target)), settings))
            if COEFFICIENT not in rows[-1]:
                settings = None  # of no case, then
            features.append(found.features)
            grains.append(mesh_grain(sample.get("weights", None)))
            advance()
    scores: dict[str, dict[str, np.ndarray]] = {ERROR: {}, BAND: {}, COEFFICIENT: {}}
    for kind in (ERROR, BAND, *([] if settings is None else [COEFFICIENT])):
        for name in rows[0][kind]:
            scores[kind][name] = np.array([row[kind][name] for row in rows])
    bounds = Bounds(
        case_ids=tuple(reader.case_ids),
        weights=weights,
        scores=scores,
        references=np.array(references).astype(np.float32).astype(np.float64),
        distances=np.zeros(n),
        grains=np.array(grains),
        fingerprints=fingerprints(runs),
        forces=None if settings is None else json.loads(json.dumps(asdict(settings[0]))),
        remarks=tuple(_remarks(run, reader)),
    )
    bounds.distances[:] = [bounds.distance(found) for found in features]
    _check_origin(bounds, np.array(features), run)
    return bounds


def case_forces(run: Run) -> tuple[ForceSettings, ForceSettings] | None:
    """Return the conventions of predictions and targets, None where none are known."""
    if run.channels.coordinates != 3 or run.channels.grid is not None:
        return None
    try:
        return force_settings(run), target_settings(run)
    except ValueError:
        return None


def case_scores(
    case: CasePrediction, areas: np.ndarray, settings: tuple[ForceSettings, ForceSettings] | None
) -> dict[str, dict[str, object]]:
    """Return the scores of a case by kind and name, as rows of ``Bounds.scores``.

    Parameters
    ----------
    case : CasePrediction
        With its target.
    areas : numpy.ndarray
        What its tokens stand for, (N,).
    settings : tuple of ForceSettings or None
        Conventions of prediction and target; None integrates no forces.
    """
    for what, values in (("fields", case.target), ("prediction", case.prediction)):
        if not np.isfinite(values).all():
            column = int(np.argmax(~np.isfinite(values).all(axis=0)))
            raise NoGround(
                f"case {case.case_id} has {case.field_names[column]} that is not finite in its "
                f"{what}; repair the case, or leave it out"
            )
    bands = {}
    for name in case.channels.fields:
        columns = case.channels.columns(name)
        off = np.linalg.norm((case.prediction - case.target)[:, columns].astype(float), axis=1)
        off /= difficulty(case.coordinates, case.prediction[:, columns])
        bands[name] = [area_quantile(off, level, areas) for level in LEVELS]
    relative = relative_l2(case.prediction, case.target, case.channels.norms, areas)
    row: dict[str, dict[str, object]] = {ERROR: relative, BAND: bands}
    if settings is not None:
        try:
            surface = force_surface(case.polygons, case.association, settings[0])
        except ValueError:  # points without a surface
            return row
        predicted = field_forces(surface, case.prediction, case.channels, settings[0])
        true = field_forces(surface, case.target, case.channels, settings[1])
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
    remarks = []
    chosen = run.selected or {}
    if chosen.get("split") == "val" and chosen.get("select") != "last":
        remarks.append(
            "the weights were chosen by the error of these cases, so the bounds are optimistic; "
            "calibrate on others, or train with training.select=last"
        )
    if run.channels.weights == NO_WEIGHTS:
        remarks.append(
            "this run does not weigh its tokens, so that meshes are not compared: bounds hold on "
            "meshes like those of training only"
        )
    if reader.read_measure(0) is None:
        remarks.append("areas are unknown, so errors are sums over tokens, not integrals")
    return remarks


def _check_origin(bounds: Bounds, features: np.ndarray, run: Run) -> None:
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
            f"the {len(bounds.case_ids)} cases seem to be of another data set: their latent "
            f"states are {np.median(bounds.distances):.3g} (median) away from those of training, "
            f"which are at most {usual:.3g} from each other. Bounds hold for cases like those of "
            "training only"
        )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
    return f"{len(names)} cases ({shown})"


def check_members(runs: Sequence[Run]) -> None:
    """Raise unless all runs predict the same fields from the same inputs."""
    for other in runs[1:]:
        if other.channels != runs[0].channels:
            raise ValueError(
                f"run {other.name} has other inputs or fields than run {runs[0].name}; an ensemble "
                "is of runs on the same data"
            )


def fingerprints(runs: Sequence[Run]) -> tuple[str, ...]:
    """Return what identifies the models of runs."""
    return tuple(model_fingerprint(unwrap(run.model)) for run in runs)


def store_bounds(bounds: Bounds, run: Run) -> None:
    """Write bounds to the directory of a run, the first of an ensemble, under its manifest."""
    name = BOUNDS if len(bounds.fingerprints) == 1 else ENSEMBLE_BOUNDS
    add_result(run.directory, name, bounds.save)


def stored_bounds(runs: Sequence[Run]) -> Bounds | str:
    """Return the bounds of a run or an ensemble, or why there are none."""
    run = runs[0]
    name = BOUNDS if len(runs) == 1 else ENSEMBLE_BOUNDS
    path = run.directory / name
    command = f"flarepp calibrate {' '.join(str(run.directory) for run in runs)}"
    if any(run.checkpoint != "final" for run in runs):
        return "bounds are of the final weights only"
    manifest = read_run_manifest(run.directory)
    if not path.is_file() or (manifest is not None and name not in manifest.files):
        return f"run {run.name} was not calibrated: {command}"
    bounds = Bounds.load(path)
    if bounds.fingerprints != fingerprints(runs):
        return f"{name} of run {run.name} is of other models: {command}"
    return bounds
