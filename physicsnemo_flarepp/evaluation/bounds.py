"""How far an answer can be trusted: bounds by split conformal prediction, stored with a run.

A case that training never saw is scored by its error over its distance from the training cases. If
a new case and n such cases are exchangeable, its score is at most the k-th smallest of theirs,
k = ceil(level (n + 1)), with probability `level` or more, whatever the model and the distribution;
no level above n / (n + 1) can be promised. Errors are integrals over the geometry.

The distance is that of latent states, which have one size on every mesh, as PhysicsNeMo's
``OODGuard`` measures it. A case that is farther from training than all held-out cases gets no
bound, nor does one whose mesh is finer, coarser or graded otherwise than theirs: an accurate model
errs less than its answers differ between meshes.
"""

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from safetensors import safe_open
from safetensors.torch import save as to_bytes
from scipy.spatial import cKDTree
from scipy.stats import beta

from ..files import Fingerprint, reading, replace_file
from ..inference import LatentState
from ..texts import format_table, printable
from .force_conventions import ForceSettings

LEVELS = (0.8, 0.9, 0.95)
USUAL_LEVEL = 0.9
ERROR, BAND, COEFFICIENT = "error", "band", "coefficient"
_FORMAT = "flarepp-bounds-2"
_ARRAYS = ("weights", "references", "distances", "grains")
_NEIGHBOURS = 10
_RING = 8
_FAR = 10.0
# Logarithms of shares may differ so much from those of held-out meshes.
_SAME_GRAIN = 0.02


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
        Infinite if so many cases cannot promise the level.

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
    """Return the value that so large a share of the area does not exceed.

    >>> area_quantile(np.array([3.0, 1.0, 2.0]), 0.5, np.array([1.0, 1.0, 2.0]))
    2.0
    """
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


def state_features(state: LatentState) -> Float[np.ndarray, " D"]:
    """Return what a case is compared by: the latents of every block, averaged over their rows."""
    pooled = [latent[0].mean(dim=-2).flatten() for block in state.latents for latent in block]
    return torch.cat(pooled).double().cpu().numpy()


def mesh_grain(weights: Float[np.ndarray, " N"] | None) -> Float[np.ndarray, " 2"]:
    """Return how fine and how graded a mesh is: mean and deviation of its tokens' log shares.

    Both are averages over the area. Zeros where tokens have no weights.

    >>> mesh_grain(np.ones(4)).round(3).tolist() == [round(-float(np.log(4)), 3), 0.0]
    True
    """
    if weights is None:
        return np.zeros(2)
    shares = np.asarray(weights, np.float64)
    shares = shares[shares > 0] / shares.sum()
    mean = (shares * np.log(shares)).sum()
    return np.array([mean, np.sqrt((shares * (np.log(shares) - mean) ** 2).sum())])


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
        their signs, (n,). ``band``: by field, the multiple of :func:`difficulty` that a share of
        ``LEVELS`` of the area does not exceed, (n, levels). None is divided by the distance yet.
    references : numpy.ndarray
        :func:`state_features` of training cases, (r, D).
    distances : numpy.ndarray
        How far the held-out cases are from them, (n,).
    grains : numpy.ndarray
        :func:`mesh_grain` of their meshes, (n, 2).
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
        """The levels of ``LEVELS`` that so many cases can promise."""
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

    def scale(self, distance: float | np.ndarray) -> np.ndarray:
        """Return what scores are divided by: a distance, at least the smallest of a held-out case.

        The nearest held-out case has its own distance, so this only widens bounds.
        """
        scale = np.maximum(distance, self.distances.min())
        return np.where(scale > 0, scale, 1.0)

    def _bound(self, scores: np.ndarray, level: float, distance: float) -> float:
        """Return the bound of a new case at this distance."""
        quantile = conformal_quantile(scores / self.scale(self.distances), level, self.weights)
        return float(quantile * self.scale(distance))

    def error(self, name: str, level: float, distance: float) -> float:
        """Return the bound of the relative error of a field."""
        return self._bound(self.scores[ERROR][name], level, distance)

    def coefficient(self, name: str, level: float, distance: float) -> float:
        """Return the bound of the absolute error of Cd, Cs or Cl."""
        return self._bound(np.abs(self.scores[COEFFICIENT][name]), level, distance)

    def difference(self, name: str, level: float, distances: tuple[float, float]) -> float:
        """Return the bound of the error of the change of a coefficient between two cases.

        Every held-out case is in one pair, so that pairs are exchangeable as cases are.
        """
        n = len(self.weights) // 2
        first, second = slice(0, n), slice(n, 2 * n)
        errors, weights = self.scores[COEFFICIENT][name], self.weights
        scales = self.scale(self.distances)
        scores = np.abs(errors[first] - errors[second]) / (scales[first] + scales[second])
        quantile = conformal_quantile(scores, level, weights[first] * weights[second])
        return float(quantile * sum(self.scale(distance) for distance in distances))

    def accepts(self, settings: ForceSettings) -> bool:
        """Return whether coefficients in these conventions are bounded."""
        return self.forces == json.loads(json.dumps(asdict(settings)))

    def band(self, field: str, level: float, distance: float) -> float:
        """Return the factor of :func:`difficulty` that makes a band."""
        return self._bound(self.scores[BAND][field][:, LEVELS.index(level)], level, distance)

    def bands(
        self,
        coordinates: Float[np.ndarray, "N d"],
        values: Float[np.ndarray, "N O"],
        fields: Mapping[str, int],
        level: float,
        distance: float,
    ) -> dict[str, Float[np.ndarray, " N"]]:
        """Return the half-width of the band of each field at each token, by name."""
        columns = np.split(values, np.cumsum(list(fields.values()))[:-1], axis=1)
        return {
            f"{printable(name)}_band": self.band(name, level, distance)
            * difficulty(coordinates, column)
            for name, column in zip(fields, columns, strict=True)
        }

    @cached_property
    def _scaling(self) -> tuple[np.ndarray, np.ndarray]:
        return self.references.mean(axis=0), self.references.std(axis=0)

    def _directions(self, features: np.ndarray) -> torch.Tensor:
        """Return features as the guard compares them, by their directions.

        The guard projects on a sphere. Features in deviations from training, beside a constant that
        is large, keep their distances there up to about ten times the size of the training set.
        """
        middle, spread = self._scaling
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
        """Return how far a case is from those of training."""
        return float(self.guard.score_geometry(self._directions(features[None]))[0])

    def doubt(self, distance: float, grain: Float[np.ndarray, " 2"]) -> str | None:
        """Return why a case is not like those of training, or its mesh; None if both are."""
        farthest = float(self.distances.max())
        low, high = self.grains.min(axis=0) - _SAME_GRAIN, self.grains.max(axis=0) + _SAME_GRAIN
        if distance <= farthest:
            if (low <= grain).all() and (grain <= high).all():
                return None
            return (
                f"its mesh is not like those of the held-out cases: about {np.exp(-grain[0]):.0f} "
                f"tokens by area, theirs {np.exp(-high[0]):.0f} to {np.exp(-low[0]):.0f}; their "
                f"sizes vary by {grain[1]:.2g}, there {low[1]:.2g} to {high[1]:.2g}. Give such a "
                "mesh, or calibrate with cases on meshes like this one"
            )
        return (
            f"it is not like the training cases: its latent state is {distance:.3g} away from "
            f"theirs, those of the {len(self.case_ids)} held-out cases at most {farthest:.3g}"
        )

    def save(self, path: Path) -> Fingerprint:
        """Write the bounds as safetensors."""
        tensors = {"weights": self.weights, "references": self.references.astype(np.float32)}
        tensors |= {"distances": self.distances, "grains": self.grains}
        tensors |= {
            f"{kind}/{name}": values
            for kind, scores in self.scores.items()
            for name, values in scores.items()
        }
        told = {key: getattr(self, key) for key in ("case_ids", "fingerprints", "remarks")}
        content = {"format": _FORMAT, "content": json.dumps(told | {"forces": self.forces})}
        data = {k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in tensors.items()}
        return replace_file(path, lambda sink: sink.write(to_bytes(data, content)))

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
            texts = {key: tuple(content[key]) for key in ("case_ids", "fingerprints", "remarks")}
            return cls(scores=scores, forces=content["forces"], **known, **texts)


def describe_level(level: float) -> str:
    """Return a level in words.

    >>> describe_level(0.95)
    '19 of 20'
    """
    share = Fraction(level).limit_denominator(100)
    return f"{share.numerator} of {share.denominator}"


def describe_errors(bounds: Bounds, level: float, distance: float) -> list[str]:
    """Return the bound of each field in a line, and what weakens it."""
    lines = [
        f"{name}: error below {100 * bounds.error(name, level, distance):.3g} % for "
        f"{describe_level(level)} cases like the training set"
        for name in bounds.scores[ERROR]
    ]
    return lines + [f"note: {remark}" for remark in bounds.remarks]


def describe_coefficients(
    bounds: Bounds,
    level: float,
    distance: float,
    coefficients: Mapping[str, float],
    settings: ForceSettings,
) -> str:
    """Return the coefficients with their bounds, or why they have none."""
    if bounds.forces is None:
        return "no bounds of forces: they were not calibrated"
    if not bounds.accepts(settings):
        return "no bounds of forces: they were calibrated in other conventions than those given"
    texts = [
        f"{name} {value:.5f} ± {bounds.coefficient(name, level, distance):.2g}"
        for name, value in coefficients.items()
    ]
    return f"{', '.join(texts)} ({100 * level:g} %)"


def format_bounds(bounds: Bounds) -> str:
    """Return the bounds of the median held-out case as a table, one column per level.

    The last row is how large the share of cases may really be: the level is its mean over all
    calibrations with so many cases, and nine tenths of them are in this range.
    """
    levels, distance = bounds.levels, float(np.median(bounds.distances))
    rows: list[Sequence[str]] = [["bound", *(f"{100 * level:g} %" for level in levels)]]
    for name in bounds.scores[ERROR]:
        values = [f"{100 * bounds.error(name, level, distance):.3g}" for level in levels]
        rows.append([f"relative error of {name}, %", *values])
    for name in bounds.scores[COEFFICIENT]:
        values = [f"{bounds.coefficient(name, level, distance):.3g}" for level in levels]
        rows.append([f"error of {name}", *values])
    if (bounds.weights == bounds.weights[0]).all():
        ranges = [f"{a:.0f} to {b:.0f} %" for a, b in (100 * share_range(len(bounds.weights), x)
                                                      for x in levels)]  # fmt: skip
        rows.append(["share it may hold for", *ranges])
    notes = [f"note: {remark}" for remark in bounds.remarks]
    return "\n".join([format_table(rows), *map(printable, notes)])


def share_range(n: int, level: float) -> Float[np.ndarray, " 2"]:
    """Return between which shares of cases a bound from n cases holds, in 9 of 10 calibrations.

    >>> share_range(60, 0.9).round(2).tolist()
    [0.83, 0.96]
    """
    rank = np.ceil(level * (n + 1) * (1 - 1e-12))
    return beta.ppf([0.05, 0.95], rank, n + 1 - rank)
