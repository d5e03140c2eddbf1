"""Affine normalisation of samples, its inverse, its file, and baselines that outputs are added to.

Baselines are the mean field and a linear regression on the parameters, fitted token by token to
cases that share a mesh. With ``data.baseline`` a network learns the remainder.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from physicsnemo.datapipes import Transform, register
from safetensors import safe_open
from safetensors.torch import save as to_bytes
from tensordict import TensorDict
from torch import Tensor

from ..files import Fingerprint, reading, replace_file
from .readers import CaseReader
from .specs import BENCHMARKS, BenchmarkSpec

KINDS = ("none", "gaussian", "isotropic", "per_point", "unit_box")
# Brings inputs of any unit to values around 1 and keeps the shape of bodies.
DEFAULT_KINDS = {
    "coordinates": "isotropic",
    "features": "gaussian",
    "globals": "gaussian",
    "fields": "gaussian",
}
_FORMAT = "physicsnemo_flarepp.normalizer.v1"
NORMALIZED_KEYS = ("coordinates", "features", "fields", "globals")
# Beside a baseline: where each row is in training (normalised), and how far that varies.
PLACES = "places"
_STORED_KEYS = (*NORMALIZED_KEYS, PLACES)
_PARTS = ("shift", "scale", "slope", "gain")

# What ``data.baseline`` can be, and how tables call it.
BASELINES = {"mean_field": "mean field", "linear": "linear regression on the parameters"}
# Penalties of a regression's slopes, relative to the spread of their parameter.
_RIDGES = 10.0 ** np.arange(-3, 4)
# Part of the coordinates' variance that their mean over cases explains where rows correspond.
_CORRESPONDING = 0.5
# How far a row may be from its mean place: in deviations of that place, and of all rows.
_REACH, _OFF = 6.0, 0.05


@dataclass(frozen=True)
class Affine:
    """Normalised value = (value - shift) / scale; per channel, (k,), or per point too, (N, k).

    A scale of 0 marks a target that never varied in training: it is predicted as the shift. The
    `slope` of a linear baseline, (g, N, k), adds to the shift what normalised globals give. A
    `gain` tells how large the fields are at these globals, as :func:`_sizes` has it, which
    multiplies the scale, and the shift where its first row is 1.
    """

    shift: Float[Tensor, "..."]
    scale: Float[Tensor, "..."]
    slope: Float[Tensor, "g N k"] | None = None
    gain: Float[Tensor, "c k"] | None = None

    def rows(
        self,
        tokens: Int[Tensor, "... N"] | None,
        values: Tensor,
        given: Float[Tensor, "... g"] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return shift and scale that broadcast against `values`, for these globals."""
        if self.shift.shape[-1] != values.shape[-1]:
            raise ValueError(
                f"statistics for {self.shift.shape[-1]} channels met values of shape "
                f"{tuple(values.shape)}; fit a new normaliser"
            )
        if self.shift.ndim == 1:
            return self.shift, self.scale
        if tokens is None and values.shape[-2] != len(self.shift):
            raise ValueError(
                f"statistics or a baseline for {len(self.shift)} points met values of shape "
                f"{tuple(values.shape)}; give the mesh of training, or pass `tokens`, their rows"
            )
        rows = slice(None) if tokens is None else tokens
        shift = self.shift[rows]
        met = 0 if given is None else given.shape[-1]
        for part, expected in ((self.slope, len), (self.gain, lambda gain: len(gain) // 2 - 2)):
            if part is not None and met != expected(part):
                raise ValueError(f"a baseline of {expected(part)} parameters met {met} globals")
        if self.slope is not None:
            shift = shift + torch.einsum("...g,g...nk->...nk", given, self.slope[:, rows])
        scale = self.scale[rows]
        if self.gain is not None:
            sizes = _sizes(given, self.gain).unsqueeze(-2)
            shift, scale = shift * sizes ** self.gain[0], scale * sizes
        return shift, scale


def _sizes(given: Float[Tensor, "... g"], gain: Float[Tensor, "c k"]) -> Float[Tensor, "... k"]:
    """Return the norms of fields by globals: rows 1 and 2 of `gain` bound their logarithm."""
    _, lowest, highest, *_ = gain
    return (_monomials(given) @ gain[3:]).clamp(lowest, highest).exp()


def _monomials(given: Float[Tensor, "... g"]) -> Float[Tensor, "... c"]:
    """Return what the logarithm of a norm is linear in: 1, the globals and their squares."""
    return torch.cat([given.new_ones(*given.shape[:-1], 1), given, given**2], -1)


@register("FlarePPNormalizer")
class Normalizer(Transform):
    """Transform that normalises the inputs of samples or batches, and its inverse for outputs.

    The targets ``fields`` stay in physical units, as in the files: :meth:`inverse` brings a model's
    output to the same units.

    Examples
    --------
    >>> affine = Affine(torch.tensor([10.0]), torch.tensor([2.0]))
    >>> normalizer = Normalizer({"features": affine, "fields": affine})
    >>> values = torch.tensor([[10.0], [14.0]])
    >>> sample = normalizer(TensorDict({"features": values, "fields": values}))
    >>> sample["features"].flatten(), sample["fields"].flatten()
    (tensor([0., 2.]), tensor([10., 14.]))
    >>> normalizer.inverse(torch.tensor([[0.0], [2.0]])).flatten()
    tensor([10., 14.])
    """

    def __init__(self, affine: Mapping[str, Affine] | None = None) -> None:
        super().__init__()
        self.affine = dict(affine or {})
        # Ranges of the inputs it was fitted to, set by fit_normalizer.
        self.ranges: dict[str, Any] | None = None
        unknown = set(self.affine) - set(_STORED_KEYS)
        if unknown:
            raise ValueError(f"cannot normalise {sorted(unknown)}; expected {NORMALIZED_KEYS}")

    def __call__(self, data: TensorDict) -> TensorDict:
        """Return a copy of `data` with normalised inputs."""
        values = dict(data.items())
        for key, affine in self.affine.items():
            if key in values and key != "fields":
                shift, scale = affine.rows(values.get("tokens"), values[key])
                values[key] = (values[key] - shift) / scale
        return TensorDict(values, batch_size=data.batch_size, device=data.device)

    def inverse(
        self,
        values: Float[Tensor, "... N k"],
        tokens: Int[Tensor, "... N"] | None = None,
        *,
        key: str = "fields",
        given: Float[Tensor, "... g"] | None = None,
    ) -> Float[Tensor, "... N k"]:
        """Return `values` in physical units; differentiable."""
        if key not in self.affine:
            return values
        shift, scale = self.affine[key].rows(tokens, values, given)
        return values * scale + shift

    def to(self, device: torch.device | str) -> "Normalizer":
        """Move the statistics to `device`."""
        super().to(device)
        self.load_state_dict({name: part.to(device) for name, part in self.state_dict().items()})
        return self

    def state_dict(self) -> dict[str, Tensor]:
        """Return the statistics as ``<key>.shift``, ``.scale``, ``.slope`` and ``.gain``."""
        return {
            f"{key}.{part}": getattr(affine, part).contiguous()
            for key, affine in self.affine.items()
            for part in _PARTS
            if getattr(affine, part) is not None
        }

    def load_state_dict(self, state_dict: Mapping[str, Tensor]) -> None:
        """Replace the statistics with those of a :meth:`state_dict`."""
        keys = [name.removesuffix(".shift") for name in state_dict if name.endswith(".shift")]
        self.affine = {
            key: Affine(*(state_dict.get(f"{key}.{part}") for part in _PARTS)) for key in keys
        }

    def save(self, path: str | Path) -> Fingerprint:
        """Write the statistics to a safetensors file, whole or not at all."""
        tensors = {name: tensor.cpu() for name, tensor in self.state_dict().items()}
        data = to_bytes(tensors, metadata={"format": _FORMAT})
        return replace_file(Path(path), lambda sink: sink.write(data))

    @classmethod
    def load(cls, path: str | Path) -> "Normalizer":
        """Return the normaliser that :meth:`save` wrote to `path`."""
        if not Path(path).is_file():
            raise FileNotFoundError(f"normaliser {path} does not exist; look in the run directory")
        with reading(path), safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            state = {name: file.get_tensor(name) for name in file.keys()}
        if metadata.get("format") != _FORMAT:
            raise ValueError(f"{path} has the metadata {metadata}, not of Normalizer.save")
        expected = {f"{key}.{part}" for key in _STORED_KEYS for part in ("shift", "scale")}
        slope, gain = state.get("fields.slope"), state.get("fields.gain")
        pairs = state.keys() - {"fields.slope", "fields.gain"}
        halves = {name.rpartition(".")[0] for name in pairs}
        shape = tuple(state["fields.shift"].shape) if "fields.shift" in state else ()
        fits = slope is None or tuple(slope.shape[1:]) == shape
        if gain is not None:
            given = len(gain) // 2 - 2
            fits &= len(shape) == 2 and tuple(gain.shape) == (4 + 2 * given, shape[1])
            fits &= given > 0 and (slope is None or len(slope) == given)
        if not pairs <= expected or len(pairs) != 2 * len(halves) or not fits:
            raise ValueError(
                f"{path} holds {sorted(state)}, expected shift and scale of {NORMALIZED_KEYS}"
            )
        normalizer = cls()
        normalizer.load_state_dict(state)
        return normalizer

    def extra_repr(self) -> str:
        """Return the normalised keys and the shapes of their statistics."""
        return ", ".join(f"{key}: {tuple(a.shift.shape)}" for key, a in self.affine.items())


def paper_normalizer(spec: BenchmarkSpec) -> Normalizer:
    """Return the normaliser with the constants that the paper publishes for `spec`."""
    return Normalizer({key: Affine(*map(torch.tensor, c)) for key, c in spec.constants.items()})


def normalization_kinds(data: Mapping[str, Any]) -> dict[str, str] | None:
    """Return how a data config normalises each sample key; None if it loads statistics."""
    choice = data.get("normalization", "fit")
    if choice in ("none", "fit"):
        return dict(DEFAULT_KINDS) if choice == "fit" else {}
    if choice == "paper":
        spec = BENCHMARKS.get(data.get("benchmark") or data.get("builtin"))
        if spec is None:
            raise ValueError(
                "normalization 'paper' needs data.benchmark; use 'fit', or a mapping such as "
                "{coordinates: unit_box}"
            )
        return dict(spec.normalization)
    if not isinstance(choice, Mapping):
        raise ValueError(
            f"normalization is {choice!r}, expected 'fit', 'paper', 'none', a mapping from sample "
            "key to kind, or {'load': path}"
        )
    return None if "load" in choice else DEFAULT_KINDS | dict(choice)


def centres_fields(data: Mapping[str, Any]) -> bool:
    """Return whether an output of 0 is the mean of the training fields."""
    if data.get("baseline", "none") != "none":
        return False  # it is the baseline
    kinds = normalization_kinds(data) or {}
    return kinds.get("fields") in ("gaussian", "isotropic", "per_point")


def whole_cases(reader: CaseReader, *, n_points: int | None = None) -> CaseReader:
    """Return a reader of the same cases on one rank, with all tokens or a fixed draw of them."""
    fixed = {"sampling": "fixed", "shard": (0, 1), "density": "cells"}
    return reader.with_options(n_points=n_points, **fixed)


class FieldFit:
    """Sums over cases from which fields are regressed on the parameters, token by token.

    Errors are relative, so each case counts by the inverse square of its field's norm. `widths` are
    the channels of each error; a `gain` gives the sizes that fields are divided by.
    """

    def __init__(self, widths: Sequence[int], gain: Float[Tensor, "c k"] | None = None) -> None:
        self.cases = 0
        self._widths = tuple(widths)
        self._gain = gain
        self._sums: list[np.ndarray] = []
        self._seen: list[tuple[np.ndarray, np.ndarray]] = []  # globals and squares of each case

    def see(self, sample: TensorDict) -> bool:
        """Add a case with normalised globals; return False if it has another number of tokens."""
        fields, points = (sample[key].double().numpy() for key in ("fields", "coordinates"))
        given = sample["globals"].double().numpy() if "globals" in sample.keys() else np.empty(0)
        inputs = np.concatenate([[1.0], given])
        if self._gain is not None:
            fields = fields / _sizes(torch.from_numpy(given), self._gain).numpy()
        starts = np.cumsum([0, *self._widths[:-1]])
        squares = np.add.reduceat((fields**2).sum(0), starts)
        weights = np.divide(1.0, squares, out=np.zeros_like(squares), where=squares > 0)
        gram, cross = np.outer(inputs, inputs), np.multiply.outer(inputs, fields)
        of_channels = np.repeat(weights, self._widths)
        added = [cross[0], fields**2 * of_channels, np.stack([points, points**2]),
                 np.multiply.outer(weights, gram), cross * of_channels]  # fmt: skip
        if self.cases == 0:
            self._sums = added
        elif cross.shape != self._sums[-1].shape:
            return False
        else:
            self._sums = [a + b for a, b in zip(self._sums, added, strict=True)]
        self.cases += 1
        self._seen.append((inputs[1:], squares))
        return True

    @property
    def parameters(self) -> int:
        """How many numbers tell the cases apart."""
        return len(self._sums[-1]) - 1

    @property
    def corresponds(self) -> bool:
        """Whether a row is about the same place in all cases."""
        mean, square = self._sums[2] / self.cases
        total = (square.mean(0) - mean.mean(0) ** 2).sum()
        return bool(mean.var(0).sum() >= _CORRESPONDING * total)

    def places(self) -> Affine:
        """Return the mean place of each row, and how far from it the row may be."""
        mean, square = self._sums[2] / self.cases
        varied = np.sqrt(np.maximum(square - mean**2, 0.0)).max(-1, keepdims=True)
        reach = _REACH * varied + _OFF * np.sqrt(mean.var(0).sum())
        shift, scale = torch.from_numpy(mean).float(), torch.from_numpy(reach).float()
        return Affine(shift, scale.expand_as(shift).contiguous())

    def over_sizes(self) -> "FieldFit":
        """Return a fit that is to see the same cases: of their fields over their sizes."""
        given, squares = map(np.stack, zip(*self._seen, strict=True))
        gains = [_fit_gain(given, squares[:, field]) for field in range(len(self._widths))]
        gain = np.repeat(np.stack(gains, -1), self._widths, axis=-1)
        return FieldFit(self._widths, torch.from_numpy(gain))

    def solve(self, kind: str, over_sizes: "FieldFit", *, plain: bool = False) -> Affine:
        """Return the fit; unless `plain`, that of fields over their sizes where it is better.

        The scale is the deviation of the remainder relative to the sizes, as errors are: with one
        scale for all cases a network would add to small fields what it learns from large ones.
        """
        found, scale = np.zeros_like(self._sums[-1]), np.zeros(sum(self._widths))
        gain = over_sizes._gain.clone()
        ends = np.cumsum(self._widths)
        for field, (end, width) in enumerate(zip(ends, self._widths, strict=True)):
            channels = slice(end - width, end)
            fits = (self,) if plain else (self, over_sizes)
            tried = [(fit, *fit._regress(kind, field, channels)) for fit in fits]
            fit, found[..., channels], _ = min(tried, key=lambda one: one[2])
            gain[0, channels] = float(fit is over_sizes)
            left = fit._left(field, channels, found[..., channels])
            scale[channels] = np.sqrt(left / (self.cases * found.shape[1]))
        shift, *slope = torch.from_numpy(found).float()
        scale = torch.from_numpy(scale).float().expand_as(shift).contiguous()
        if self.parameters == 0:
            return Affine(shift, scale * gain[3].float().exp())
        slopes = torch.stack(slope) if kind == "linear" else None
        return Affine(shift, scale, slopes, gain.float())

    def _regress(self, kind: str, field: int, channels: slice) -> tuple[np.ndarray, float]:
        """Return the coefficients (k, N, o) for a field, and the error to expect of them."""
        cross, gram = self._sums[-1][..., channels], self._sums[-2][field]
        free = self.cases - (0 if self._gain is None else len(self._gain) - 3)
        found = np.zeros_like(cross)
        if kind == "linear":
            flat, error = _ridge(gram, cross.reshape(len(cross), -1), self.cases, free)
            found[:] = flat.reshape(cross.shape)
        else:
            found[0] = self._sums[0][:, channels] / self.cases
            error = self._left(field, channels, found).sum() / max(free - 1, 1e-9) ** 2
        return found, error

    def _left(self, field: int, channels: slice, found: np.ndarray) -> np.ndarray:
        """Return the relative squares that coefficients leave over, per channel."""
        cross, squares = self._sums[-1][..., channels], self._sums[1][:, channels].sum(0)
        missed = found * (np.tensordot(self._sums[-2][field], found, axes=1) - 2 * cross)
        left = missed.sum((0, 1)) + squares
        return np.where(left > 1e-12 * squares, left, 0.0)


def _fit_gain(given: np.ndarray, squares: np.ndarray) -> np.ndarray:
    """Return the gain (c,) of a field whose squares are known at these globals."""
    known = squares > 0
    inputs = _monomials(torch.from_numpy(given[known])).numpy()
    if not known.any():
        return np.zeros(3 + inputs.shape[1])
    sizes = np.log(squares[known])[:, None] / 2
    found = _ridge(inputs.T @ inputs, inputs.T @ sizes, (sizes**2).sum(), len(sizes))[0]
    return np.concatenate([[0.0, sizes.min(), sizes.max()], found[:, 0]])


def _ridge(
    gram: np.ndarray, cross: np.ndarray, squares: float, cases: int
) -> tuple[np.ndarray, float]:
    """Return coefficients (k, n) by the best penalty, and their error by cross-validation."""
    spread = np.diag(gram) - gram[0] ** 2 / max(gram[0, 0], 1e-300)
    best, least = cross, np.inf
    for ridge in _RIDGES:
        solved = np.linalg.lstsq(
            gram + np.diag(ridge * spread), np.hstack([cross, gram]), rcond=None
        )[0]
        found, hat = np.split(solved, [cross.shape[1]], axis=1)
        left = squares + (found * (gram @ found - 2 * cross)).sum()
        error = left / max(cases - np.trace(hat), 1e-9) ** 2
        if error < least:
            best, least = found, error
    return best, least


def fit_baseline(reader: CaseReader, normalizer: Normalizer, kind: str) -> dict[str, Affine]:
    """Return the affine maps with which a network learns the remainder of a baseline."""
    if kind not in BASELINES:
        raise ValueError(f"data.baseline is {kind!r}; choose none, {' or '.join(BASELINES)}")
    whole = whole_cases(reader)
    fields = whole.case(0).fields.values()
    fit = FieldFit([math.prod(column.shape[1:]) for column in fields])
    for index, case in enumerate(whole.case_ids):
        if not fit.see(normalizer(whole[index][0])):
            raise ValueError(
                f"data.baseline is {kind!r}, but case {case} has a different number of tokens; set "
                "data.baseline=none"
            )
    least = 2 if kind == "mean_field" else fit.parameters + 2
    problem = ""
    if not fit.corresponds:
        problem = "the rows of the cases are at different places"
    elif kind == "linear" and fit.parameters == 0:
        problem = "the cases have no parameters (data.globals)"
    elif fit.cases < least:
        problem = f"it needs {least} training cases to leave something to learn, not {fit.cases}"
    if problem:
        raise ValueError(f"data.baseline is {kind!r}, but {problem}; set another, or none")
    over_sizes = fit.over_sizes()
    for index in range(len(whole)):
        over_sizes.see(normalizer(whole[index][0]))
    return {"fields": fit.solve(kind, over_sizes), PLACES: fit.places()}
