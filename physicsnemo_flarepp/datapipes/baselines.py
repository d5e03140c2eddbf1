"""Mean field and linear regression on the parameters, fitted token by token.

They need cases whose rows are the same places of a mesh. With ``data.baseline`` a network learns
what they leave over.
"""

import copy
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from tensordict import TensorDict

from .normalization import PLACES, Affine, Normalizer
from .readers import CaseReader

if TYPE_CHECKING:
    from numpy.typing import NDArray

# What ``data.baseline`` can be, and how tables call it.
BASELINES = {"mean_field": "mean field", "linear": "linear regression on the parameters"}
# Penalty of a regression's slopes, relative to the spread of their parameter.
_RIDGE = 1e-3
# Part of the coordinates' variance that their mean over cases explains where rows correspond.
_CORRESPONDING = 0.5
# How far a row may be from its mean place: in deviations of that place, and of all rows.
_REACH, _OFF = 6.0, 0.05


def whole_cases(reader: CaseReader, *, n_points: int | None = None) -> CaseReader:
    """Return a reader of the same cases on one rank, with all tokens or a fixed draw of them."""
    whole = copy.copy(reader)
    whole.options = replace(
        reader.options, n_points=n_points, sampling="fixed", shard=(0, 1), density="cells"
    )
    return whole


class FieldFit:
    """Sums over cases from which fields are regressed on the parameters, token by token."""

    def __init__(self) -> None:
        self.cases = 0
        self._sums: list[NDArray] = []
        self._squares = self._places = None

    def see(self, sample: TensorDict) -> bool:
        """Add a case with normalised globals; return False if it has another number of tokens."""
        fields, points = (sample[key].double().numpy() for key in ("fields", "coordinates"))
        given = sample["globals"].double().numpy() if "globals" in sample.keys() else []
        inputs = np.concatenate([[1.0], given])
        added = [np.outer(inputs, inputs), np.multiply.outer(inputs, fields)]
        places = np.stack([points, points**2])
        if self.cases == 0:
            self._sums, self._squares, self._places = added, fields**2, places
        elif added[1].shape != self._sums[1].shape:
            return False
        else:
            self._sums = [a + b for a, b in zip(self._sums, added, strict=True)]
            self._squares = self._squares + fields**2
            self._places = self._places + places
        self.cases += 1
        return True

    @property
    def parameters(self) -> int:
        """How many numbers tell the cases apart."""
        return len(self._sums[0]) - 1

    @property
    def corresponds(self) -> bool:
        """Whether a row is about the same place in all cases."""
        mean, square = self._places / self.cases
        total = (square.mean(0) - mean.mean(0) ** 2).sum()
        return bool(mean.var(0).sum() >= _CORRESPONDING * total)

    def places(self) -> Affine:
        """Return the mean place of each row, and how far from it the row may be."""
        mean, square = self._places / self.cases
        varied = np.sqrt(np.maximum(square - mean**2, 0.0)).max(-1, keepdims=True)
        reach = _REACH * varied + _OFF * np.sqrt(mean.var(0).sum())
        shift, scale = torch.from_numpy(mean).float(), torch.from_numpy(reach).float()
        return Affine(shift, scale.expand_as(shift).contiguous())

    def solve(self, kind: str) -> Affine:
        """Return the fit; its scale is the deviation of what it leaves over, per channel."""
        gram, cross = self._sums
        used = 1 if kind == "mean_field" else len(gram)
        gram, cross = gram[:used, :used], cross[:used]
        spread = np.diag(gram) - gram[0] ** 2 / self.cases
        flat = cross.reshape(used, -1)
        found = np.linalg.lstsq(gram + np.diag(_RIDGE * spread), flat, rcond=None)[0]
        left = (found * (gram @ found - 2 * flat)).sum(0).reshape(cross.shape[1:]) + self._squares
        left, total = left.sum(0), self._squares.sum(0)
        count = self.cases * cross.shape[1]
        scale = np.sqrt(np.where(left > 1e-12 * total, left, 0.0) / count)
        shift, *slope = torch.from_numpy(found.reshape(cross.shape)).float()
        scale = torch.from_numpy(scale).float().expand_as(shift).contiguous()
        return Affine(shift, scale, torch.stack(slope) if slope else None)


def fit_baseline(reader: CaseReader, normalizer: Normalizer, kind: str) -> dict[str, Affine]:
    """Return what lets a network learn what a baseline leaves over: its fields, and its places."""
    if kind not in BASELINES:
        raise ValueError(f"data.baseline is {kind!r}; choose none, {' or '.join(BASELINES)}")
    fit, whole = FieldFit(), whole_cases(reader)
    for index, case in enumerate(whole.case_ids):
        if not fit.see(normalizer(whole[index][0])):
            raise ValueError(
                f"data.baseline is {kind!r}, which is fitted token by token, but case {case} has "
                "another number of tokens than those before it; set data.baseline=none"
            )
    if not fit.corresponds:
        raise ValueError(
            f"data.baseline is {kind!r}, but the rows of the cases are at different places, so "
            "they have no field in common; set data.baseline=none"
        )
    if kind == "linear" and fit.parameters == 0:
        raise ValueError(
            "data.baseline is 'linear', but the cases have no parameters; name them in "
            "data.globals, or set data.baseline=mean_field"
        )
    least = 2 if kind == "mean_field" else fit.parameters + 2
    if fit.cases < least:
        raise ValueError(
            f"data.baseline is {kind!r}, which needs {least} training cases to leave something to "
            f"learn, but there are {fit.cases}; set data.baseline to mean_field or none"
        )
    return {"fields": fit.solve(kind), PLACES: fit.places()}
