"""Relative L2 errors of a run, per case and field."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..progress import progress_bar
from .cases import predict_case
from .trained_run import Run


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
        """Return the table of one dictionary {field: error} per case."""
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


def case_errors(run: Run, *, progress: bool = True) -> CaseErrors:
    """Return the errors of all test cases of a run at full resolution.

    Parameters
    ----------
    run : Run
        From :func:`~physicsnemo_flarepp.evaluation.load_run`.
    progress : bool, optional
        Show a bar if stderr is a terminal.
    """
    ids = run.loaders.test.dataset.reader.case_ids
    rows = []
    with progress_bar(f"evaluate {run.name}", len(ids), progress) as advance:
        for index in range(len(ids)):
            rows.append(predict_case(run, index, progress=False).errors)
            advance()
    return CaseErrors.of_rows(ids, rows)
