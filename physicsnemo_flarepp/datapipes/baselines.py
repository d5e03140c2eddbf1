"""Mean field and linear regression on the parameters, fitted token by token.

They need cases whose rows are the same places of a mesh. With ``data.baseline`` a network learns
what they leave over.
"""

import copy
import math
from collections.abc import Sequence
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
# Penalties of a regression's slopes, relative to the spread of their parameter.
_RIDGES = 10.0 ** np.arange(-3, 4)
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
    """Sums over cases from which fields are regressed on the parameters, token by token.

    Errors are relative, so a regression minimises those: each case counts by the inverse square of
    its field's norm. Otherwise cases with small fields get the errors of those with large ones.
    `widths` are the channels of each error.
    """

    def __init__(self, widths: Sequence[int]) -> None:
        self.cases = 0
        self._widths = tuple(widths)
        self._sums: list[NDArray] = []

    def see(self, sample: TensorDict) -> bool:
        """Add a case with normalised globals; return False if it has another number of tokens."""
        fields, points = (sample[key].double().numpy() for key in ("fields", "coordinates"))
        given = sample["globals"].double().numpy() if "globals" in sample.keys() else []
        inputs = np.concatenate([[1.0], given])
        starts = np.cumsum([0, *self._widths[:-1]])
        squares = np.add.reduceat((fields**2).sum(0), starts)
        weights = np.divide(1.0, squares, out=np.zeros_like(squares), where=squares > 0)
        gram, cross = np.outer(inputs, inputs), np.multiply.outer(inputs, fields)
        of_channels = np.repeat(weights, self._widths)
        added = [gram, cross, fields**2, np.stack([points, points**2]),
                 np.multiply.outer(weights, gram), cross * of_channels]  # fmt: skip
        if self.cases == 0:
            self._sums = added
        elif cross.shape != self._sums[1].shape:
            return False
        else:
            self._sums = [a + b for a, b in zip(self._sums, added, strict=True)]
        self.cases += 1
        return True

    @property
    def parameters(self) -> int:
        """How many numbers tell the cases apart."""
        return len(self._sums[0]) - 1

    @property
    def corresponds(self) -> bool:
        """Whether a row is about the same place in all cases."""
        mean, square = self._sums[3] / self.cases
        total = (square.mean(0) - mean.mean(0) ** 2).sum()
        return bool(mean.var(0).sum() >= _CORRESPONDING * total)

    def places(self) -> Affine:
        """Return the mean place of each row, and how far from it the row may be."""
        mean, square = self._sums[3] / self.cases
        varied = np.sqrt(np.maximum(square - mean**2, 0.0)).max(-1, keepdims=True)
        reach = _REACH * varied + _OFF * np.sqrt(mean.var(0).sum())
        shift, scale = torch.from_numpy(mean).float(), torch.from_numpy(reach).float()
        return Affine(shift, scale.expand_as(shift).contiguous())

    def solve(self, kind: str) -> Affine:
        """Return the fit; its scale is the deviation of what it leaves over, per channel."""
        gram, cross, squares = self._sums[:3]
        found = np.zeros_like(cross)
        found[0] = cross[0] / self.cases
        if kind == "linear":
            *_, grams, crosses = self._sums
            ends = np.cumsum(self._widths)
            for weighted, end, width in zip(grams, ends, self._widths, strict=True):
                part = crosses[..., end - width : end]
                flat = _least_relative(weighted, part.reshape(len(part), -1), self.cases)
                found[..., end - width : end] = flat.reshape(part.shape)
        product = np.tensordot(gram, found, axes=1)
        left = ((found * (product - 2 * cross)).sum(0) + squares).sum(0)
        left = np.where(left > 1e-12 * squares.sum(0), left, 0.0)
        scale = np.sqrt(left / (self.cases * cross.shape[1]))
        shift, *slope = torch.from_numpy(found).float()
        scale = torch.from_numpy(scale).float().expand_as(shift).contiguous()
        return Affine(shift, scale, torch.stack(slope) if slope and kind == "linear" else None)


def _least_relative(gram: "NDArray", cross: "NDArray", cases: int) -> "NDArray":
    """Return the coefficients (k, n) with the penalty that generalised cross-validation chooses.

    Every case has weighted squares of 1 in all, so that the sums tell what a fit leaves over.
    """
    spread = np.diag(gram) - gram[0] ** 2 / max(gram[0, 0], 1e-300)
    best, least = cross, np.inf
    for ridge in _RIDGES:
        solved = np.linalg.lstsq(
            gram + np.diag(ridge * spread), np.hstack([cross, gram]), rcond=None
        )[0]
        found, hat = np.split(solved, [cross.shape[1]], axis=1)
        left = cases + (found * (gram @ found - 2 * cross)).sum()
        error = left / max(cases - np.trace(hat), 1e-9) ** 2
        if error < least:
            best, least = found, error
    return best


def fit_baseline(reader: CaseReader, normalizer: Normalizer, kind: str) -> dict[str, Affine]:
    """Return what lets a network learn what a baseline leaves over: its fields, and its places."""
    if kind not in BASELINES:
        raise ValueError(f"data.baseline is {kind!r}; choose none, {' or '.join(BASELINES)}")
    whole = whole_cases(reader)
    fields = whole.open_case(0).fields.values()
    fit = FieldFit([math.prod(column.shape[1:]) for column in fields])
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
