"""C-grids around aerofoil sections from the square root of the complex plane.

w = sqrt(z - z0), with z0 just inside the nose, opens the section and the wake behind it to a
shallow bump over a line, Y = S(X) with w = X + i Y. Lines of constant X and equal fractions between
bump and far boundary, squared again, make a smooth grid without overlaps (the sheared parabolic
coordinates of the early transonic codes).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from .unsolvable import Unsolvable

# Steps of X at the nose and at the trailing edge over their mean on the section.
_NOSE_STEP, _TRAILING_STEP = 0.7, 0.4
_FIRST_STEP_OUT = 0.008


@dataclass(frozen=True)
class CGrid:
    """A C-grid: the first index runs from the lower wake around the nose to the upper wake.

    Parameters
    ----------
    points : np.ndarray
        Complex coordinates x + i y, shape (n_around, n_out); column 0 is wake and section.
    n_wake : int
        Cells in the wake; nodes (i, 0) and (n_around - 1 - i, 0) coincide for i <= n_wake, and
        i = n_wake is the trailing edge.
    angle : np.ndarray
        Angle around the nose in [0, 2 pi], 0 on the upper and 2 pi on the lower side of the
        wake, same shape as ``points``.
    """

    points: np.ndarray
    n_wake: int
    angle: np.ndarray


def _geometric_steps(first: float, total: float, count: int) -> np.ndarray:
    """Positions 0 ... total of ``count`` steps that grow by a constant ratio from ``first``."""

    def excess(ratio: float) -> float:
        return first * np.sum(ratio ** np.arange(count)) - total

    ratio = brentq(excess, 1.0, 3.0)
    positions = np.concatenate([[0.0], np.cumsum(first * ratio ** np.arange(count))])
    return positions * (total / positions[-1])


def make_c_grid(
    section: Callable[[np.ndarray], np.ndarray],
    nose: complex,
    shape: tuple[int, int] = (221, 51),
    n_wake: int = 40,
    far: float = 25.0,
) -> CGrid:
    """C-grid around a section.

    Parameters
    ----------
    section : Callable[[np.ndarray], np.ndarray]
        Complex points of the section for parameters in [-1, 1]: from the trailing edge along the
        lower side to the nose at 0 and along the upper side back to the same point.
    nose : complex
        Point inside the section, about half a nose radius behind the leading edge.
    shape : tuple[int, int]
        Nodes around (odd) and out.
    n_wake : int
        Cells along the wake.
    far : float
        Distance of the outer boundary in the units of the section.

    Returns
    -------
    CGrid
        The grid.

    Raises
    ------
    ValueError
        If the section is not a graph over X, or does not close at its trailing edge.

    Examples
    --------
    >>> def lens(t):
    ...     return t**2 + 0.1j * t * (1 - t**2)
    >>> grid = make_c_grid(lens, 0.002, shape=(61, 11), n_wake=10)
    >>> grid.points.shape, complex(grid.points[10, 0]) == complex(grid.points[50, 0])
    ((61, 11), True)
    """
    n_around, n_out = shape
    parameter = np.sin(0.5 * np.pi * np.linspace(-1, 1, 4001))
    opened = _open(section(parameter) - nose)
    if not np.all(np.diff(opened.real) > 0):
        raise Unsolvable(
            f"section: not a graph over X around nose={nose}; expected a slender section with "
            "the point half a nose radius inside it"
        )
    last = opened[-1]
    if abs(last + opened[0]) > 1e-9 * abs(last):
        raise ValueError(
            f"section: open trailing edge, ends at {section(parameter[[0, -1]])}; close it first"
        )

    sigma = np.linspace(-1, 1, n_around - 2 * n_wake)
    cubic = 2.5 - 2 * _NOSE_STEP - 0.5 * _TRAILING_STEP
    quintic = 1 - _NOSE_STEP - cubic
    on_section = last.real * (_NOSE_STEP * sigma + cubic * sigma**3 + quintic * sigma**5)
    body = _open(section(np.interp(on_section, opened.real, parameter)) - nose)
    body[[0, -1]] = -last, last
    first_wake = abs(on_section[-1] - on_section[-2])
    far_x = np.sqrt(far)
    along = _geometric_steps(first_wake, far_x - last.real, n_wake)[1:] + last.real
    trailing = (last**2).imag
    # The wake is the horizontal line behind the trailing edge: Im(w**2) = 2 X S is constant.
    wake = along + 1j * trailing / (2 * along)
    line = np.concatenate([-wake[::-1], body, wake])

    out = _geometric_steps(_FIRST_STEP_OUT * 50 / (n_out - 1), far_x, n_out - 1)
    height = line.imag[:, None] + (1 - line.imag[:, None] / far_x) * out
    w = line.real[:, None] + 1j * height
    points = w**2 + nose
    # Rounding must not separate the two sides of the wake.
    points[: n_wake + 1, 0] = points[::-1, 0][: n_wake + 1]
    return CGrid(points, n_wake, 2 * np.angle(w / 1j) + np.pi)


def _open(z: np.ndarray) -> np.ndarray:
    """Square root along a curve around the origin from below to above, its middle opposite.

    The angle is followed along the curve, so that either end may lie on either side of the cut.
    """
    angle = np.unwrap(np.angle(z))
    angle += 2 * np.pi * np.round((np.pi - angle[len(z) // 2]) / (2 * np.pi))
    return np.sqrt(np.abs(z)) * np.exp(0.5j * angle)
