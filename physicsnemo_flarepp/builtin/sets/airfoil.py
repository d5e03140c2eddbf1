"""Built-in set *airfoil*: transonic flow around random sections, in the layout of the Geo-FNO set.

NACA four-digit sections of random thickness and camber with random bumps meet a stream of Mach 0.75
along the chord. The full potential equation is solved on a 221 x 51 C-grid that reaches 25 chords.
``NACA_Cylinder_Q`` holds density, velocity and pressure, in units in which far density and pressure
are 1, and the Mach number.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from ..solvers.full_potential import (
    GAMMA,
    CGrid,
    gas_state,
    make_c_grid,
    nodal_velocity,
    solve_potential,
)
from . import BuiltinSet, Case, validation_apart, write_grid_files

GRID_SHAPE = (221, 51)
MACH = 0.75

_BUMP_CENTRES = np.array([0.2, 0.4, 0.6, 0.8])
_LARGEST_BUMP = 0.004

Section = Callable[[np.ndarray], np.ndarray]


def naca_section(
    thickness: float, camber: float, position: float, bumps: np.ndarray | None = None
) -> Section:
    """A NACA four-digit section with closed trailing edge and bumps on both sides, in chords.

    ``camber`` is largest at ``position``; ``bumps`` (2, 4) are heights on the lower and upper side
    at 20, 40, 60 and 80 % chord, positive upward. For the parameters see :func:`make_c_grid`.
    """
    heights = np.zeros((2, len(_BUMP_CENTRES))) if bumps is None else bumps
    exponents = np.log(0.5) / np.log(_BUMP_CENTRES)

    def section(parameter: np.ndarray) -> np.ndarray:
        root = np.abs(parameter)
        x = root**2
        shape = 0.2969 * root + x * (-0.126 + x * (-0.3516 + x * (0.2843 - 0.1036 * x)))
        front = camber * (2 * position * x - x**2) / position**2
        back = camber * (1 - 2 * position + 2 * position * x - x**2) / (1 - position) ** 2
        swell = np.sin(np.pi * np.minimum(x, 1.0)[:, None] ** exponents) ** 3
        side = (parameter > 0).astype(int)
        y = np.where(x < position, front, back) + np.sign(parameter) * 5 * thickness * shape
        return x + 1j * (y + np.sum(swell * heights[side], axis=1))

    return section


def section_grid(section: Section, thickness: float, shape: tuple[int, int] = GRID_SHAPE) -> CGrid:
    """C-grid around a section of four-digit kind, whose nose radius is 1.1019 thickness**2."""
    n_wake = round(40 * (shape[0] - 1) / 220)
    return make_c_grid(section, 0.5 * 1.1019 * thickness**2, shape, n_wake)


def random_section(rng: np.random.Generator) -> tuple[Section, float]:
    """A section 8 to 13 % thick, cambered by 0 to 1.5 %, with eight bumps; and its thickness."""
    thickness = rng.uniform(0.08, 0.13)
    camber, position = rng.uniform(0.0, 0.015), rng.uniform(0.3, 0.6)
    bumps = rng.uniform(-_LARGEST_BUMP, _LARGEST_BUMP, (2, len(_BUMP_CENTRES)))
    return naca_section(thickness, camber, position, bumps), thickness


def flow_fields(grid: CGrid, mach: float) -> np.ndarray:
    """Density, velocity, pressure and Mach number at no incidence, (5, *grid.points.shape)."""
    velocity = nodal_velocity(grid, solve_potential(grid, mach))
    density, mach_squared = gas_state(np.abs(velocity) ** 2, mach)
    velocity = mach * np.sqrt(GAMMA) * velocity
    return np.stack([density, velocity.real, velocity.imag, density**GAMMA, np.sqrt(mach_squared)])


def solve_case(case_seed: int) -> Case:
    """``points`` (221, 51, 2) and ``flow`` (5, 221, 51) around the section with this seed."""
    grid = section_grid(*random_section(np.random.default_rng(case_seed)))
    points = np.stack([grid.points.real, grid.points.imag], axis=-1)
    return {"points": points, "flow": flow_fields(grid, MACH)}


_assemble = validation_apart(partial(write_grid_files, stem="NACA_Cylinder"))
SET = BuiltinSet("airfoil", 3, 200, 50, solve_case, _assemble)
