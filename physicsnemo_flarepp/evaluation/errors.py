"""Relative L2 errors of predicted cases, per case and field."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float

from ..ops.errors import field_errors
from ..runs.trained_run import Run
from ..texts import read_csv

CHOICES = ("median", "worst", "best")


def relative_l2(
    prediction: Float[np.ndarray, "N O"],
    target: Float[np.ndarray, "N O"],
    widths: Mapping[str, int],
    weights: Float[np.ndarray, " N"] | None = None,
) -> dict[str, float]:
    """Return ||p - y|| / ||y|| of each field of a case, in fp64.

    If the target is 0 everywhere, the error is infinite, or 0 if the prediction is 0 too.

    Parameters
    ----------
    prediction, target : numpy.ndarray
        In physical units.
    widths : Mapping[str, int]
        Channels of each field, in the order of the O columns.
    weights : numpy.ndarray, optional
        Areas of the tokens: the norms are integrals instead of sums over tokens.

    Examples
    --------
    >>> target = np.array([[3.0, 0.0, 0.0], [4.0, 0.0, 2.0]])
    >>> relative_l2(target + [[0, 1, 0], [1, 0, 0]], target, {"p": 1, "u": 2})
    {'p': 0.2, 'u': 0.5}
    """
    both = (torch.from_numpy(values.astype(np.float64))[None] for values in (prediction, target))
    if weights is not None:
        weights = torch.from_numpy(weights.astype(np.float64))[None]
    errors = field_errors(*both, tuple(widths.values()), token_weights=weights)
    return dict(zip(widths, errors[0].tolist(), strict=True))


@dataclass(frozen=True)
class CaseErrors:
    """Relative L2 errors as fractions, one row per case and one column per field.

    Parameters
    ----------
    case_ids : tuple[str, ...]
        Ids of the rows.
    fields : tuple[str, ...]
        Names of the columns.
    values : numpy.ndarray
        (n_cases, n_fields).

    Examples
    --------
    >>> errors = CaseErrors(("a", "b", "c"), ("p",), np.array([[0.25], [1.0], [0.5]]))
    >>> errors.median, errors.ranked()
    (0.5, ['a', 'c', 'b'])
    """

    case_ids: tuple[str, ...]
    fields: tuple[str, ...]
    values: np.ndarray

    @classmethod
    def of_rows(cls, case_ids: Sequence[str], rows: Sequence[dict[str, float]]) -> "CaseErrors":
        """Make the table from one dictionary {field: error} per case."""
        fields = tuple(rows[0])
        values = np.array([[row[field] for field in fields] for row in rows])
        return cls(tuple(case_ids), fields, values)

    @property
    def per_case(self) -> np.ndarray:
        """Mean over the fields of each case, (n_cases,)."""
        return self.values.mean(axis=1)

    @property
    def mean(self) -> float:
        """Mean over cases and fields, the figure of the paper's tables."""
        return float(self.values.mean())

    @property
    def median(self) -> float:
        """Median over the cases of the mean over their fields."""
        return float(np.median(self.per_case))

    def ranked(self) -> list[str]:
        """Return the case ids from best to worst by the mean over their fields."""
        return [self.case_ids[i] for i in np.argsort(self.per_case, kind="stable")]

    def choose(self, choice: str) -> str:
        """Return the id of the ``median`` (lower of an even number), ``worst`` or ``best`` case."""
        if choice not in CHOICES:
            raise ValueError(f"choice is {choice!r}, expected one of {CHOICES}")
        undefined = np.flatnonzero(np.isnan(self.per_case))
        if len(undefined):
            raise ValueError(
                f"the error of case {self.case_ids[undefined[0]]!r} is NaN; name a case by its id"
            )
        ranked = self.ranked()
        return ranked[{"median": (len(ranked) - 1) // 2, "worst": -1, "best": 0}[choice]]


def stored_errors(run: Run) -> CaseErrors | None:
    """Return the errors that training wrote to ``errors.csv``, of the final model on its own data.

    They have the resolution of the test loader and save predicting every test case in full.

    Parameters
    ----------
    run : Run
        Gives None if it has other weights or other data, or no such file.
    """
    path = run.directory / "errors.csv"
    if run.checkpoint != "final" or run.data_root is not None or not path.is_file():
        return None
    (_, *fields), *rows = read_csv(path)
    values = np.array([[float(value) for value in row[1:]] for row in rows])
    errors = CaseErrors(tuple(row[0] for row in rows), tuple(fields), values)
    return errors if set(errors.case_ids) == set(run.case_ids) else None
