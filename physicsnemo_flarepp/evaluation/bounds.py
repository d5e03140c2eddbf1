"""How far an answer can be trusted: bounds by split conformal prediction, stored with a run.

A case that training never saw is scored by its error over its distance from the training cases. If
a new case and n such cases are exchangeable, its score is at most the k-th smallest of theirs,
k = ceil(level (n + 1)), with probability `level` or more, whatever the model and the distribution;
no level above n / (n + 1) can be promised. Errors are integrals over the geometry.

The distance is that of latent states, which have one size on every mesh, as PhysicsNeMo's
``OODGuard`` measures it. A case that is farther from training than all held-out cases gets no
bound, nor does one whose mesh is finer, coarser or graded otherwise than theirs: an accurate model
errs less than its answers differ between meshes. A calibration over meshes scores other meshes of
the held-out cases too; a case on such a mesh gets the bound of their worst scores.
"""

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from safetensors import safe_open
from safetensors.torch import save as to_bytes
from scipy.spatial import cKDTree
from scipy.special import betaincinv  # scipy.stats takes a second to import

from ..files import Fingerprint, reading, replace_file
from ..inference import model_fingerprint
from ..inference.prediction import unwrap
from ..runs.directory import BOUNDS, ENSEMBLE_BOUNDS, add_result, read_run_manifest
from ..runs.trained_run import Run
from ..texts import format_table, printable
from .forces import ForceSettings

LEVELS = (0.8, 0.9, 0.95)
USUAL_LEVEL = 0.9
ERROR, BAND, COEFFICIENT = "error", "band", "coefficient"
_FORMAT = "flarepp-bounds-2"
_ARRAYS = ("weights", "references", "distances", "grains")
_TEXTS = ("case_ids", "fingerprints", "remarks")
_NEIGHBOURS = 10
_RING = 8
_FAR = 10.0
# How much logarithms of shares may differ from the held-out meshes.
_SAME_GRAIN = 0.02
# Meshes of a held-out case, as many as a bound is the worst over; each step has those before it.
MESHES = {
    1: "the original",
    2: "every triangle cut in four",
    4: "the front or the rear half cut in four",
    5: "half of the triangles removed",
}


class NoGround(ValueError):
    """Bounds cannot be calibrated: cases are missing, or are not what they should be."""


def highest_level(weights: Float[np.ndarray, " n"]) -> float:
    """Return the highest level that cases of these weights can promise, n / (n + 1) if equal."""
    return float(weights.sum() / (weights.sum() + weights.max())) if len(weights) else 0.0


def conformal_quantile(
    scores: Float[np.ndarray, " n"], level: float, weights: Float[np.ndarray, " n"] | None = None
) -> float:
    """Return what the score of a new case exceeds with probability 1 - level or less.

    Parameters
    ----------
    scores : numpy.ndarray
        Of held-out cases, larger is worse.
    level : float
        Between 0 and 1.
    weights : numpy.ndarray, optional
        How much likelier each case is where the bound is used than among the held-out cases. A new
        case counts with the largest of them, which is on the safe side.

    Returns
    -------
    float
        Infinite if n cases cannot promise the level.

    Examples
    --------
    >>> conformal_quantile(np.arange(1.0, 10.0), 0.9)
    9.0
    >>> conformal_quantile(np.arange(1.0, 9.0), 0.9)
    inf
    """
    weights = np.ones(len(scores)) if weights is None else np.asarray(weights, np.float64)
    order = np.argsort(scores)
    mass = np.cumsum(weights[order])
    # Rounding of the sums must not ask for one case more.
    needed = level * (mass[-1] + weights.max()) * (1 - 1e-12)
    reached = np.searchsorted(mass, needed)
    return float(scores[order[reached]]) if reached < len(scores) else float("inf")


def area_quantile(
    values: Float[np.ndarray, " N"], share: float, areas: Float[np.ndarray, " N"]
) -> float:
    """Return the value that so large a share of the area does not exceed."""
    order = np.argsort(values)
    mass = np.cumsum(areas[order].astype(np.float64))
    return float(values[order[np.searchsorted(mass, share * mass[-1] * (1 - 1e-12))]])


def difficulty(
    coordinates: Float[np.ndarray, "N d"], values: Float[np.ndarray, "N c"]
) -> Float[np.ndarray, " N"]:
    """Return where a model is likely to err: sqrt(1 + slope / median slope) of a predicted field.

    Differences with the nearest tokens are divided by their distances, so that a finer mesh gives
    about the same numbers.
    """
    count = min(_RING, len(coordinates) - 1)
    if count < 1:
        return np.ones(len(coordinates))
    distances, near = cKDTree(coordinates).query(coordinates, k=count + 1)
    steps = np.linalg.norm(values[near[:, 1:]] - values[:, None], axis=2)
    slopes = (steps / np.maximum(distances[:, 1:], np.finfo(np.float32).tiny)).mean(axis=1)
    middle = np.median(slopes)
    return np.sqrt(1 + slopes / middle) if middle > 0 else np.ones(len(coordinates))


def mesh_grain(sample: Mapping[str, torch.Tensor]) -> Float[np.ndarray, " 3"]:
    """Return mean, deviation and 95 % of tokens' log shares over the area; 0 without weights."""
    weights = sample.get("weights", None)
    if weights is None:
        return np.zeros(3)
    shares = np.asarray(weights, np.float64)
    shares = shares[shares > 0] / shares.sum()
    logs = np.log(shares)
    mean = (shares * logs).sum()
    deviation = np.sqrt((shares * (logs - mean) ** 2).sum())
    return np.array([mean, deviation, area_quantile(logs, 0.95, shares)])


@dataclass(frozen=True)
class Bounds:
    """What held-out cases tell about the errors of a run, or of an ensemble of runs.

    Parameters
    ----------
    case_ids : tuple[str, ...]
        The n held-out cases.
    weights : numpy.ndarray
        Their weights, (n,).
    scores : Mapping[str, Mapping[str, numpy.ndarray]]
        ``error``: relative errors by norm, (n,). ``coefficient``: errors of Cd, Cs and Cl with
        their signs, (n,). ``band``: by field, the multiple of the difficulty of a token that a
        share of ``LEVELS`` of the area does not exceed, (n, levels). None is divided by the
        distance yet. Of several meshes of each case, here and below, a case's rows follow one
        another, (n meshes, ...).
    references : numpy.ndarray
        Pooled latent states of training cases, (r, D).
    distances : numpy.ndarray
        How far the held-out cases are from them, (n,).
    grains : numpy.ndarray
        How fine and how graded their meshes are, (n, 2), and with several meshes how large the
        largest tokens are, (n meshes, 3).
    fingerprints : tuple[str, ...]
        Of the models.
    forces : Mapping or None
        Settings of the coefficients.
    remarks : tuple[str, ...]
        What weakens the promise.
    """

    case_ids: tuple[str, ...]
    weights: np.ndarray
    scores: Mapping[str, Mapping[str, np.ndarray]]
    references: np.ndarray
    distances: np.ndarray
    grains: np.ndarray
    fingerprints: tuple[str, ...]
    forces: Mapping[str, object] | None = None
    remarks: tuple[str, ...] = ()

    @property
    def levels(self) -> tuple[float, ...]:
        """The levels of ``LEVELS`` that n cases can promise."""
        return tuple(level for level in LEVELS if level <= highest_level(self.weights) + 1e-12)

    def choose_level(self, level: float | None = None) -> float:
        """Return a level that can be promised, by default 90 % or the highest below."""
        if level is None:
            return max(known for known in self.levels if known <= USUAL_LEVEL)
        if level not in self.levels:
            raise ValueError(
                f"level is {level}; {len(self.case_ids)} held-out cases allow "
                f"{', '.join(map(str, self.levels))}. Calibrate with more cases for a higher one"
            )
        return level

    @property
    def n_meshes(self) -> int:
        """Meshes of each case, its own first."""
        return len(self.distances) // len(self.case_ids)

    def steps(self) -> Iterator["Bounds"]:
        """Yield the bounds from the first kinds of meshes of each case, one kind more each time."""
        place = np.arange(len(self.distances)) % self.n_meshes
        for count in (count for count in MESHES if count <= self.n_meshes):
            kept = place < count
            # Between meshes that get finer errors lie between theirs; thinned ones are apart.
            like = place == count - 1 if count == max(MESHES) else kept
            scores = {k: {n: v[kept] for n, v in of.items()} for k, of in self.scores.items()}
            rows = {"distances": self.distances[kept], "grains": self.grains[like]}
            yield replace(self, scores=scores, **rows)

    def on_meshes_like(self, grain: Float[np.ndarray, " 3"]) -> "Bounds":
        """Return the bounds from the fewest meshes that this one is like, else from finer ones."""
        # More meshes only widen a bound, so the choice costs nothing of the level.
        parts = list(self.steps())
        return next((p for p in parts if p.doubt(0.0, grain) is None), parts[-2:][0])

    def scale(self, distance: float | np.ndarray) -> np.ndarray:
        """Return what scores are divided by: a distance, at least the least of a held-out case."""
        # The nearest held-out case has its own distance, so this only widens bounds.
        scale = np.maximum(distance, self.distances.min())
        return np.where(scale > 0, scale, 1.0)

    def _bound(self, scores: np.ndarray, level: float, distance: float) -> float:
        scores = (scores / self.scale(self.distances)).reshape(len(self.weights), -1)
        quantile = conformal_quantile(scores.max(axis=1), level, self.weights)
        return float(quantile * self.scale(distance))

    def error(self, name: str, level: float, distance: float) -> float:
        """Return the bound of the relative error of a field."""
        return self._bound(self.scores[ERROR][name], level, distance)

    def coefficient(self, name: str, level: float, distance: float) -> float:
        """Return the bound of the absolute error of Cd, Cs or Cl."""
        return self._bound(np.abs(self.scores[COEFFICIENT][name]), level, distance)

    def difference(self, name: str, level: float, distances: tuple[float, float]) -> float:
        """Return the bound of the error of the change of a coefficient between two cases."""
        # Every held-out case is in one pair, so that pairs are exchangeable as cases are.
        n = len(self.weights) // 2
        rows, weights = (len(self.weights), -1), self.weights
        errors = self.scores[COEFFICIENT][name].reshape(rows)
        scales = self.scale(self.distances).reshape(rows)
        # Either case may be on any of its meshes.
        first, second = (slice(0, n), slice(None), None), (slice(n, 2 * n), None)
        scores = np.abs(errors[first] - errors[second]) / (scales[first] + scales[second])
        weights = weights[:n] * weights[n : 2 * n]
        quantile = conformal_quantile(scores.max(axis=(1, 2)), level, weights)
        return float(quantile * sum(self.scale(distance) for distance in distances))

    def accepts(self, settings: ForceSettings) -> bool:
        """Return whether coefficients in these conventions are bounded."""
        return self.forces == plain_settings(settings)

    def bands(
        self,
        coordinates: Float[np.ndarray, "N d"],
        values: Float[np.ndarray, "N O"],
        fields: Mapping[str, int],
        level: float,
        distance: float,
    ) -> dict[str, Float[np.ndarray, " N"]]:
        """Return the half-width of the band of each field at each token, by name."""
        columns, bands = np.split(values, np.cumsum(list(fields.values()))[:-1], axis=1), {}
        for name, column in zip(fields, columns, strict=True):
            scores = self.scores[BAND][name][:, LEVELS.index(level)]
            factor = self._bound(scores, level, distance)
            bands[f"{printable(name)}_band"] = factor * difficulty(coordinates, column)
        return bands

    def _directions(self, features: np.ndarray) -> torch.Tensor:
        """Return features as the guard compares them, by their directions."""
        # The guard projects on a sphere. Features in deviations from training, beside a constant
        # that is large, keep their distances there up to about ten times the size of the set.
        middle, spread = self.references.mean(axis=0), self.references.std(axis=0)
        varying = spread > 1e-6 * np.abs(middle).max()
        deviations = (features - middle)[:, varying] / spread[varying]
        deviations /= np.sqrt(max(1, varying.sum()))
        return torch.from_numpy(np.pad(deviations, ((0, 0), (0, 1)), constant_values=_FAR)).float()

    @cached_property
    def guard(self) -> torch.nn.Module:
        """PhysicsNeMo's ``OODGuard`` over the training cases."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it is experimental
            from physicsnemo.experimental.guardrails.embedded import OODGuard
        known = self._directions(self.references)
        guard = OODGuard(len(known), geometry_embed_dim=known.shape[1], knn_k=_NEIGHBOURS)
        guard.collect(geometry_latent=known)
        return guard

    def distance(self, features: Float[np.ndarray, " D"]) -> float:
        """Return how far a case is from the training cases."""
        return float(self.guard.score_geometry(self._directions(features[None]))[0])

    def doubt(self, distance: float, grain: Float[np.ndarray, " 3"]) -> str | None:
        """Return why a case, or its mesh, is not like the training cases; None if both are."""
        farthest = float(self.distances.max())
        if distance > farthest:
            return (
                f"it is not like the training cases: its latent state is {distance:.3g} away from "
                f"theirs, the {len(self.case_ids)} held-out cases at most {farthest:.3g}"
            )
        low, high = self.grains.min(axis=0) - _SAME_GRAIN, self.grains.max(axis=0) + _SAME_GRAIN
        known = grain[: len(low)]
        if (low <= known).all() and (known <= high).all():
            return None
        text = (
            "its mesh is not like the meshes of the held-out cases: about "
            f"{np.exp(-grain[0]):.0f} tokens by area, theirs {np.exp(-high[0]):.0f} to "
            f"{np.exp(-low[0]):.0f}; token sizes vary by {grain[1]:.2g}, theirs by {low[1]:.2g} to "
            f"{high[1]:.2g}"
        )
        if len(low) > 2:
            ends = [f"{100 * np.exp(end):.2g}" for end in (grain[2], low[2], high[2])]
            text += f"; large ones have {ends[0]} % of the area, theirs {ends[1]} to {ends[2]} %"
        advice = "Remesh the case like them, or calibrate with cases on meshes like it"
        return f"{text}. {advice}; flarepp calibrate --meshes makes some of theirs"

    def save(self, path: Path) -> Fingerprint:
        """Write the bounds as safetensors."""
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        arrays["references"] = self.references.astype(np.float32)
        for kind, scores in self.scores.items():
            arrays |= {f"{kind}/{name}": values for name, values in scores.items()}
        data = {k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in arrays.items()}
        told = json.dumps({key: getattr(self, key) for key in (*_TEXTS, "forces")})
        content = to_bytes(data, {"format": _FORMAT, "content": told})
        return replace_file(path, lambda sink: sink.write(content))

    @classmethod
    def load(cls, path: Path) -> "Bounds":
        """Read bounds that :meth:`save` wrote."""
        with reading(path):
            with safe_open(path, "np") as file:
                told = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}
            if told.get("format") != _FORMAT:
                raise ValueError(f"its format is {told.get('format')!r}, expected {_FORMAT!r}")
            content = json.loads(told["content"])
            known = {key: tensors.pop(key) for key in _ARRAYS}
            scores: dict[str, dict[str, np.ndarray]] = {ERROR: {}, BAND: {}, COEFFICIENT: {}}
            for name, values in tensors.items():
                kind, _, rest = name.partition("/")
                scores[kind][rest] = values
            texts = {key: tuple(content[key]) for key in _TEXTS}
            return cls(scores=scores, forces=content["forces"], **known, **texts)


def plain_settings(settings: ForceSettings) -> dict[str, object]:
    """Return settings as JSON gives them back."""
    return json.loads(json.dumps(asdict(settings)))


class Promise(NamedTuple):
    """What is promised about the errors of a case: bounds at a level, or why there are none."""

    bounds: Bounds | None
    no_bounds: str | None
    level: float | None
    distance: float | None

    @classmethod
    def of(
        cls,
        known: Bounds | str,
        features: np.ndarray | None,
        sample: Mapping[str, torch.Tensor],
        level: float | None = None,
        doubt: str | None = None,
    ) -> "Promise":
        """Return the promise of stored bounds for a case; `doubt` is a reason against any."""
        if isinstance(known, str):
            return cls(None, known, level, None)
        level, distance = known.choose_level(level), known.distance(features)
        grain = mesh_grain(sample)
        known = known.on_meshes_like(grain)
        refusal = doubt or known.doubt(distance, grain)
        return cls(None if refusal else known, refusal, level, distance)

    def lines(self) -> list[str]:
        """Return the bound of each field in a line, and what weakens it."""
        if self.bounds is None:
            return [f"no bounds: {self.no_bounds}"]
        share = Fraction(self.level).limit_denominator(100)
        cases = f"{share.numerator} of {share.denominator} cases like the training set"
        errors = {n: self.bounds.error(n, *self[2:]) for n in self.bounds.scores[ERROR]}
        lines = [f"{n}: error below {100 * error:.3g} % for {cases}" for n, error in errors.items()]
        if self.bounds.n_meshes > 1:
            kinds = "; ".join(name for n, name in MESHES.items() if n <= self.bounds.n_meshes)
            lines.append(f"note: bounds are the worst over meshes of the held-out cases: {kinds}")
        return lines + [f"note: {remark}" for remark in self.bounds.remarks]

    def coefficients_line(
        self, coefficients: Mapping[str, float], settings: ForceSettings
    ) -> str | None:
        """Return the coefficients with their bounds, or why these are missing."""
        if self.bounds is None:
            return None
        if self.bounds.forces is None:
            return "no bounds of forces: they were not calibrated"
        if not self.bounds.accepts(settings):
            return "no bounds of forces: they were calibrated in other conventions than those given"
        texts = [
            f"{name} {value:.5f} ± {self.bounds.coefficient(name, *self[2:]):.2g}"
            for name, value in coefficients.items()
        ]
        return f"{', '.join(texts)} ({100 * self.level:g} %)"


def bound_rows(bounds: Bounds) -> list[list[str]]:
    """Return the bounds of the median held-out case, one column per level.

    Bounds over meshes have rows for each kind, the worst over it and those above. The last row is
    how large the share of cases may really be: the level is its mean over all calibrations with n
    cases, and nine tenths of them are in this range.
    """
    levels = bounds.levels
    rows = [["bound", *(f"{100 * level:g} %" for level in levels)]]
    for part in bounds.steps():
        distance = float(np.median(part.distances))
        where = f" ({MESHES[part.n_meshes]})" if bounds.n_meshes > 1 else ""
        for name in part.scores[ERROR]:
            values = [f"{100 * part.error(name, level, distance):.3g}" for level in levels]
            rows.append([f"relative error of {name}, %{where}", *values])
        for name in part.scores[COEFFICIENT]:
            values = [f"{part.coefficient(name, level, distance):.3g}" for level in levels]
            rows.append([f"error of {name}{where}", *values])
    if (bounds.weights == bounds.weights[0]).all():
        n = len(bounds.weights)
        ranks = [np.ceil(level * (n + 1) * (1 - 1e-12)) for level in levels]
        ranges = [100 * betaincinv(rank, n + 1 - rank, [0.05, 0.95]) for rank in ranks]
        rows.append(["share of future cases inside", *(f"{a:.0f} to {b:.0f} %" for a, b in ranges)])
    return rows


def format_bounds(bounds: Bounds) -> str:
    """Return the bounds of the median held-out case as text."""
    notes = [f"note: {remark}" for remark in bounds.remarks]
    return "\n".join([format_table(bound_rows(bounds)), *map(printable, notes)])


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
