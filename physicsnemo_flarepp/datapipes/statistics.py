"""Statistics of a training split, streamed case by case and merged over ranks.

Counts, means and squared deviations are merged pairwise (Chan, Golub and LeVeque), in float64, so
that up to rounding the result does not depend on how cases are distributed over ranks. Also whether
the inputs of cases differ at all, and where surfaces face.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Float
from tensordict import TensorDict
from torch import Tensor

from ..meshes.measures import facing
from .normalization import DEFAULT_KINDS, KINDS, NORMALIZED_KEYS, Affine, Normalizer
from .readers import CaseReader
from .readers.base import MEASURE, TokenTable

# Inputs beyond these make a model slow to train: absolute values, and the width of a range.
_HUGE, _TINY = 100.0, 0.01
# A case this many times larger than another is probably in different units.
OTHER_UNITS = 300
# Isotropic inputs: cases used to find their bulk, bins per octave and octaves of its histogram, and
# the smallest fraction of the deviation it may be.
_BULK_CASES, _BINS, _OCTAVES, _LEAST_BULK = 32, 32, 10, 0.1
_INPUTS = ("coordinates", "features", "globals")
# Rows of a case that tell where its surface faces; first rows compared of two cases.
_ORIENTED_ROWS, _FIRST_ROWS = 1 << 16, 1 << 12


class Moments(NamedTuple):
    """Count, mean, squared deviations and range of samples, (k,) or per point (N, k), float64."""

    count: Float[Tensor, "*shape"]
    mean: Float[Tensor, "*shape"]
    deviations: Float[Tensor, "*shape"]
    low: Float[Tensor, "*shape"]
    high: Float[Tensor, "*shape"]

    @classmethod
    def per_channel(cls, values: Float[Tensor, "n k"]) -> "Moments":
        """Return the moments of each channel over the rows."""
        values = values.double()
        if len(values) == 0:
            return cls._empty(values.new_zeros(values.shape[1]))
        mean = values.mean(0)
        squares = (values - mean).square().sum(0)
        low, high = values.aminmax(dim=0)
        return cls(torch.full_like(mean, len(values)), mean, squares, low, high)

    @classmethod
    def per_point(cls, values: Float[Tensor, "n k"], tokens: Tensor) -> "Moments":
        """Return the moments of one case, each row at the place of its token."""
        values = values.double()
        size = int(tokens.max()) + 1 if len(tokens) else 0
        empty = cls._empty(values.new_zeros(size, values.shape[1]))
        single = (torch.ones_like(values), values, torch.zeros_like(values), values, values)
        return cls(*(e.index_put((tokens,), v) for e, v in zip(empty, single, strict=True)))

    @classmethod
    def _empty(cls, zeros: Tensor) -> "Moments":
        infinite = torch.full_like(zeros, torch.inf)
        return cls(zeros, zeros, zeros, infinite, -infinite)

    def _padded(self, size: int) -> "Moments":
        """Return the moments extended to `size` rows by points without data."""
        extra = size - len(self.count)
        if self.count.ndim == 1 or extra == 0:
            return self
        empty = self._empty(self.count.new_zeros(extra, self.count.shape[1]))
        return Moments(*(torch.cat(pair) for pair in zip(self, empty, strict=True)))

    def merge(self, other: "Moments") -> "Moments":
        """Return the moments of both sets of samples together."""
        size = max(len(self.count), len(other.count))
        a, b = self._padded(size), other._padded(size)
        count = a.count + b.count
        weight = b.count / count.clamp(min=1)
        delta = b.mean - a.mean
        return Moments(
            count,
            a.mean + delta * weight,
            a.deviations + b.deviations + delta.square() * a.count * weight,
            torch.minimum(a.low, b.low),
            torch.maximum(a.high, b.high),
        )

    @property
    def deviation(self) -> Float[Tensor, "*shape"]:
        """Unbiased standard deviation."""
        return (self.deviations / (self.count - 1).clamp(min=1)).sqrt()

    def affine(self, kind: str, *, target: bool) -> Affine:
        """Return the normalisation of `kind`; constant targets and inputs are treated apart."""
        if (self.count == 0).any():
            raise ValueError(
                f"{int((self.count == 0).sum())} points were in no training case, which per-point "
                "statistics need; fit without n_points"
            )
        constant = self.low == self.high if target else is_constant(self.low, self.high)
        shift, scale = self.mean, self.deviation
        if kind == "unit_box":
            shift, scale = self.low, self.high - self.low
        if kind == "isotropic":
            varying = (~constant).sum(-1, keepdim=True).clamp(min=1)
            size = (scale.square().where(~constant, 0.0).sum(-1, keepdim=True) / varying).sqrt()
            scale = size.expand_as(scale)
        scale = torch.where(constant, 0.0 if target else 1.0, scale)
        return Affine(shift.float(), scale.float())


def is_constant(low: Float[Tensor, "*shape"], high: Float[Tensor, "*shape"]) -> Tensor:
    """Return where a range is no wider than the rounding of single precision."""
    return high - low <= 4 * torch.finfo(torch.float32).eps * torch.maximum(low.abs(), high.abs())


def case_moments(sample: TensorDict, kinds: Mapping[str, str]) -> dict[str, Moments]:
    """Return the moments of one case for the keys that are to be normalised."""
    moments = {}
    for key, kind in kinds.items():
        if kind == "none" or key not in sample.keys():
            continue
        values = sample[key] if key != "globals" else sample[key][None]
        if kind == "per_point":
            moments[key] = Moments.per_point(values, sample["tokens"])
        else:
            moments[key] = Moments.per_channel(values)
    return moments


def input_ranges(cases: Collection[Mapping[str, Moments]]) -> dict[str, Any]:
    """Return ``min`` and ``max`` of each input, ``extent`` of the sizes of ``cases``, as lists."""
    ranges: dict[str, Any] = {"cases": len(cases)}
    for key in _INPUTS:
        found = [moments[key] for moments in cases if key in moments]
        if not found:
            continue
        low, high = (torch.stack([getattr(m, end) for m in found]) for end in ("low", "high"))
        ranges[key] = {"min": low.amin(0).tolist(), "max": high.amax(0).tolist()}
        if key == "coordinates":
            least, most = (high - low).aminmax(dim=0)
            ranges["extent"] = {"min": least.tolist(), "max": most.tolist()}
    return ranges


def _merge(into: dict[str, Moments], other: Mapping[str, Moments]) -> None:
    for key, moments in other.items():
        if key in into and into[key].mean.shape[-1] != moments.mean.shape[-1]:
            raise ValueError(f"cases have different numbers of {key} channels")
        into[key] = into[key].merge(moments) if key in into else moments


def _over_ranks(mine: Any, group: dist.ProcessGroup | None) -> list:
    """Return what every rank of `group` passes, in the order of ranks."""
    if group is None:
        return [mine]
    parts: list = [None] * dist.get_world_size(group)
    dist.all_gather_object(parts, mine, group=group)
    return parts


def _bulk(
    reader: CaseReader,
    cases: Iterable[int],
    spread: Mapping[str, tuple[Tensor, Tensor, Tensor]],
    group: dist.ProcessGroup | None,
) -> dict[str, float]:
    """Return how far the bulk of the points is from their mean, in deviations, at most 1.

    A far field dominates the deviation of a mesh and would leave a small part of the unit scale to
    the body in it. The median distance is robust against that; 1.48 times it is no less than the
    deviation of points along a line, in a box or in a normal cloud. Distances are counted in bins,
    which ranks add up in any order. `spread` has mean, deviation and varying channels by key.
    """
    bins = 2 * _OCTAVES * _BINS
    counts = {key: torch.zeros(bins, dtype=torch.int64) for key in spread}
    stride = -(-len(reader) // _BULK_CASES)
    for case in (case for case in cases if case % stride == 0):
        sample = reader[case][0]
        for key, (mean, deviation, varies) in spread.items():
            scaled = ((sample[key].double() - mean) / deviation)[..., varies]
            distance = scaled.square().mean(-1).sqrt().flatten()
            place = (distance.log2() * _BINS).floor() + bins // 2
            counts[key] += torch.bincount(place.clamp(0, bins - 1).long(), minlength=bins)
    parts = _over_ranks(counts, group)
    found = {}
    for key in counts:
        count = sum(part[key] for part in parts)
        middle = int((2 * count.cumsum(0) < count.sum()).sum())
        distance = 2.0 ** ((middle + 0.5 - bins // 2) / _BINS)
        found[key] = min(max(1.48 * distance, _LEAST_BULK), 1.0) if count.any() else 1.0
    return found


def fit_normalizer(
    reader: CaseReader,
    kinds: Mapping[str, str],
    *,
    cases: Iterable[int] | None = None,
    group: dist.ProcessGroup | None = None,
) -> Normalizer:
    """Return the normaliser fitted to the cases of `reader`, which must be the training reader.

    Standard deviations are unbiased. An input that is constant up to rounding is only shifted; a
    constant target gets the scale 0, so that it is predicted exactly. The attribute ``ranges`` of
    the normaliser has the ranges of the inputs.
    """
    unknown = {kind for kind in kinds.values() if kind not in KINDS}
    if unknown or set(kinds) - set(NORMALIZED_KEYS):
        raise ValueError(
            f"normalization is {dict(kinds)}; expected keys among {NORMALIZED_KEYS} and kinds "
            f"among {KINDS}"
        )
    own: dict[str, Moments] = {}
    own_cases: dict[int, dict[str, Moments]] = {}
    counted = dict(kinds)
    if group is not None and reader.options.shard[0] != 0:
        # All ranks of a context group read the globals of a case; its first rank counts them.
        counted.pop("globals", None)
    cases = list(range(len(reader)) if cases is None else cases)
    for case in cases:
        sample = reader[case][0]
        _merge(own, case_moments(sample, counted))
        own_cases[case] = case_moments(sample, dict.fromkeys(_INPUTS, "gaussian"))
    merged: dict[str, Moments] = {}
    # Several ranks may each see a part of a case; its extent is that of all parts together.
    seen: dict[int, dict[str, Moments]] = {}
    for moments, of_cases in _over_ranks((own, own_cases), group):
        _merge(merged, moments)
        for case, parts in of_cases.items():
            _merge(seen.setdefault(case, {}), parts)
    affine = {key: m.affine(kinds[key], target=key == "fields") for key, m in merged.items()}
    spread = {
        key: (a.shift.double(), a.scale.double(), ~is_constant(merged[key].low, merged[key].high))
        for key, a in affine.items()
        if kinds[key] == "isotropic" and key != "fields"
    }
    for key, share in (_bulk(reader, cases, spread, group) if spread else {}).items():
        affine[key] = Affine(affine[key].shift, affine[key].scale * share)
    normalizer = Normalizer(affine)
    normalizer.ranges = input_ranges(seen.values())
    return normalizer


def doubtful_inputs(
    ranges: Mapping[str, Any],
    normalizer: Normalizer,
    kinds: Mapping[str, str] | None,
    names: Mapping[str, Sequence[str]],
    varying_axes: str | None = None,
) -> list[str]:
    """Return warnings about inputs that are constant, huge or tiny after normalisation.

    And about cases of very different sizes. `kinds` and `names` of channels are by sample key;
    `varying_axes` is the value of ``data.coordinates`` that leaves out constant ones.
    """
    sizes = ranges.get("extent", {"min": (), "max": ()})
    axes = zip(names.get("coordinates", ()), sizes["min"], sizes["max"], strict=False)
    lines = [
        f"coordinates: cases have sizes from {small:.4g} to {large:.4g} along {name}. If some are "
        "in different units, `flarepp inspect --check` names them"
        for name, small, large in axes
        if 0 < small * OTHER_UNITS < large
    ]
    for key in (key for key in names if key in ranges):
        low, high = (torch.tensor(ranges[key][end], dtype=torch.float64) for end in ("min", "max"))
        constant = is_constant(low, high)
        kind = None if kinds is None else kinds.get(key, "none")
        scaled = torch.stack([low, high])
        affine = normalizer.affine.get(key)
        if affine is not None and affine.shift.ndim == 1:
            scaled = (scaled - affine.shift.cpu()) / affine.scale.cpu()
        size, extent = scaled.abs().amax(0), scaled[1] - scaled[0]
        for i, name in enumerate(names[key]):
            if constant[i]:
                how = f"={varying_axes}" if key == "coordinates" and varying_axes else ""
                lines.append(
                    f"{key}: {name} is constant, {low[i]:.6g} in all cases. It tells a model "
                    f"nothing: leave it out ({'of ' if not how else ''}data.{key}{how})"
                )
            elif size[i] > _HUGE or extent[i] < _TINY:
                word = "huge" if size[i] > _HUGE else "tiny"
                lines.append(
                    f"{key}: {name} is {word}, {scaled[0, i]:.3g} to {scaled[1, i]:.3g} after "
                    f"normalisation. {_remedy(key, kind, word)}"
                )
    return lines


def _remedy(key: str, kind: str | None, word: str) -> str:
    if kind in ("none", "per_point", None):
        return f"Set data.normalization to {{{key}: {DEFAULT_KINDS[key]}}}"
    if kind == "isotropic" and word == "tiny":
        return (
            "It is short compared with the other axes: data.normalization={coordinates: gaussian} "
            "scales each axis separately"
        )
    return "A few values are far from all others: look at them, or use its logarithm"


def has_same_inputs(cases: Sequence[tuple[CaseReader, int]]) -> bool:
    """Return whether no input tells several cases, each a reader and a position, apart."""
    tables = (reader.case(index) for reader, index in cases)
    one = next(tables)
    return len(cases) > 1 and all(_same_inputs(one, other) for other in tables)


def _same_inputs(one: TokenTable, other: TokenTable) -> bool:
    if one.n_tokens != other.n_tokens or one.channels() != other.channels():
        return False
    if one.global_values and not np.array_equal(one.read_globals(), other.read_globals()):
        return False
    # Most cases differ in their first rows already.
    parts = (slice(0, min(one.n_tokens, _FIRST_ROWS)), slice(0, one.n_tokens))
    keys = [key for key in ("features", "coordinates") if getattr(one, key)]
    return all(
        np.array_equal(one.read(key, rows), other.read(key, rows)) for rows in parts for key in keys
    )


def surface_orientation(reader: CaseReader) -> str | None:
    """Return where the normals of some cases point, ``outward`` or ``inward``; None if unclear."""
    chosen = {0, len(reader) // 2, len(reader) - 1}
    found = {_orientation(reader.case(index)) for index in sorted(chosen)}
    return found.pop() if len(found) == 1 else None


def _orientation(table: TokenTable) -> str | None:
    # The step is odd so that it does not follow a pattern of the cells.
    rows = np.arange(0, table.n_tokens, table.n_tokens // _ORIENTED_ROWS | 1)
    centres = table.read("coordinates", rows).astype(np.float64)
    normals = table.features.get("normals")
    if normals is None or centres.shape[1] != 3 or tuple(normals.shape[1:]) != (3,):
        return None
    vectors = np.asarray(normals[rows], dtype=np.float64)
    if MEASURE in table.weights:
        vectors *= np.asarray(table.weights[MEASURE][rows]).reshape(-1, 1)
    else:  # as if the surface were the box around it, with cells of one size
        x, y, z = np.ptp(centres, axis=0)
        vectors *= 2 * (x * y + y * z + z * x) / len(rows)
    return facing(centres, vectors)
