"""Checked values and their colour limits: the numbers behind a figure."""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool, Float

Limits = tuple[float, float]

# Fields show the range between these percentiles of the reference, errors up to the last of the
# larger |error| (paper, "Rendering conventions").
FIELD_PERCENTILES = (0.5, 99.5)
ERROR_PERCENTILE = 99.5


def check_values(
    name: str, values: np.ndarray, n_tokens: int, mask: Bool[np.ndarray, " N"] | None = None
) -> Float[np.ndarray, " N"]:
    """Return one float per token, or raise with the name of the array.

    Parameters
    ----------
    name : str
        What the array is, for errors.
    values : numpy.ndarray
        Shape (N,) or (N, 1).
    n_tokens : int
        N.
    mask : numpy.ndarray, optional
        True where a token has data; elsewhere the value may be anything.

    Examples
    --------
    >>> check_values("prediction of run a", np.zeros(3), 4)
    Traceback (most recent call last):
    ValueError: prediction of run a has shape (3,), expected (4,): one value for each of the 4 ...
    """
    values = np.asarray(values)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.shape != (n_tokens,):
        raise ValueError(
            f"{name} has shape {values.shape}, expected ({n_tokens},): one value for each of the "
            f"{n_tokens} tokens of the whole case, one channel"
        )
    if not (np.issubdtype(values.dtype, np.floating) or np.issubdtype(values.dtype, np.integer)):
        raise TypeError(f"{name} holds {values.dtype}, expected real numbers")
    bad = ~np.isfinite(values)
    if mask is not None:
        bad &= mask
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise ValueError(
            f"{name} holds {values[row]} at token {row} ({int(bad.sum())} of {n_tokens} tokens "
            "are not finite); mask tokens without data"
        )
    return values.astype(np.float64)


def field_limits(values: Float[np.ndarray, " N"]) -> Limits:
    """Return the shared limits of field panels: percentiles 0.5 and 99.5 of the reference.

    Examples
    --------
    >>> field_limits(np.linspace(0, 1000, 1001))
    (5.0, 995.0)
    """
    low, high = map(float, np.percentile(values, FIELD_PERCENTILES))
    if high > low:
        return low, high
    low, high = float(np.min(values)), float(np.max(values))  # all but a few are equal
    if high > low:
        return low, high
    middle, spread = low, max(abs(low), 1.0) * 1e-3  # a constant field still needs a scale
    return middle - spread, middle + spread


def error_limits(errors: Mapping[str, Float[np.ndarray, " N"]]) -> Limits:
    """Return the shared limits of error panels: the 99.5th percentile of the larger |error|.

    Symmetric about 0. At most 0.5 % of the points of any panel lie beyond.

    Examples
    --------
    >>> error_limits({"a": np.arange(-1000.0, 1), "b": np.zeros(5)})
    (-995.0, 995.0)
    """
    largest = max(float(np.percentile(np.abs(e), ERROR_PERCENTILE)) for e in errors.values())
    largest = largest or max(float(np.abs(e).max()) for e in errors.values()) or 1.0
    return -largest, largest


def outside(limits: Limits, *arrays: Float[np.ndarray, " N"]) -> tuple[bool, bool]:
    """Whether some value lies below and above the limits."""
    return (
        any(bool(array.min() < limits[0]) for array in arrays),
        any(bool(array.max() > limits[1]) for array in arrays),
    )
