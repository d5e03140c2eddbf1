"""Which case a figure shows."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

CHOICES = ("median", "worst", "best")


def choose_case(case: str, case_ids: Sequence[str], errors: Float[np.ndarray, " n"]) -> int:
    """Give the index of the case to show.

    Parameters
    ----------
    case : str
        ``median`` (the lower one of an even number), ``worst``, ``best``, or an id.
    case_ids : sequence of str
        Ids of the test cases.
    errors : numpy.ndarray
        Error of the first model on each, shape (n,).

    Examples
    --------
    >>> ids, errors = ["a", "b", "c", "d"], np.array([0.3, 0.1, 0.4, 0.2])
    >>> [ids[choose_case(case, ids, errors)] for case in ("median", "worst", "best", "a")]
    ['d', 'c', 'b', 'a']
    """
    errors = np.asarray(errors, float)
    if errors.shape != (len(case_ids),):
        raise ValueError(
            f"errors has shape {errors.shape}, expected ({len(case_ids)},): one per case id"
        )
    if case in case_ids:
        return list(case_ids).index(case)
    if case not in CHOICES:
        some = ", ".join(case_ids[:20]) + (", ..." if len(case_ids) > 20 else "")
        raise ValueError(
            f"case {case!r} is not known; choose one of {CHOICES} or one of the {len(case_ids)} "
            f"ids {some}"
        )
    if np.isnan(errors).any():
        bad = case_ids[int(np.flatnonzero(np.isnan(errors))[0])]
        raise ValueError(f"the error of case {bad!r} is NaN; name a case by its id")
    order = np.argsort(errors, kind="stable")
    return int(order[{"median": (len(order) - 1) // 2, "worst": -1, "best": 0}[case]])
