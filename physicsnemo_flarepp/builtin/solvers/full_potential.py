"""Steady compressible potential flow around an aerofoil section on a C-grid.

Bilinear finite elements for div(rho grad phi) = 0 with the isentropic density of the speed at the
centre of each cell. Where the flow is supersonic the density comes partly from the cell upstream,
which makes the scheme dissipative there and lets it capture shocks. The potential jumps by the
circulation across the wake, and the speeds on both sides of the trailing edge are equal (Kutta).
Far away speed and density are 1 and the perturbation is that of a compressible vortex.
"""

from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_array

from . import Unsolvable, factorise
from .c_grid import CGrid, CGridElements

GAMMA = 1.4

_TOLERANCE = 1e-6
_ROUGH_TOLERANCE = 2e-3
_NEWTON_LIMIT = 40
_FIRST_MACH, _MACH_STEP = 0.7, 0.03
_UPWIND_ONSET = 0.9  # squared local Mach number from which density comes from upstream
_LARGEST_CHANGE = 0.3  # of the squared Mach number in any cell in one Newton step
_LEAST_TEMPERATURE = 0.1  # keeps Newton's iterates away from vacuum


class NoPotentialFlow(Unsolvable):
    """Newton's method found no potential flow around this section."""


@dataclass(frozen=True)
class PotentialFlow:
    """Potential at the nodes and its jump across the wake, which is half the lift coefficient."""

    potential: np.ndarray
    circulation: float


def gas_state(speed_squared: np.ndarray, mach: float) -> tuple[np.ndarray, np.ndarray]:
    """Isentropic density over its far value and squared local Mach number.

    ``speed_squared`` is over the far speed, ``mach`` the Mach number far away.
    """
    temperature = 1 + 0.5 * (GAMMA - 1) * mach**2 * (1 - speed_squared)
    temperature = np.maximum(temperature, _LEAST_TEMPERATURE)
    return temperature ** (1 / (GAMMA - 1)), mach**2 * speed_squared / temperature


class _CellFlow:
    """Densities in all cells at one Newton iterate and how they depend on the speeds, (E,) each."""

    def __init__(self, elements: CGridElements, potential: np.ndarray, mach: float) -> None:
        nodal = potential[elements.nodes]
        self.velocity = np.einsum("en,eni->ei", nodal, elements.centre_gradients)  # (E, 2)
        density, self.mach_squared = gas_state(np.sum(self.velocity**2, axis=1), mach)
        temperature = density ** (GAMMA - 1)
        # Slopes are derivatives with the squared speed.
        self.density_slope = -0.5 * mach**2 * density / temperature
        mach_slope = mach**2 * (1 + 0.5 * (GAMMA - 1) * mach**2) / temperature**2

        supersonic = self.mach_squared > _UPWIND_ONSET
        safe = np.where(supersonic, self.mach_squared, 1.0)
        own = np.where(supersonic, 1 - _UPWIND_ONSET / safe, 0.0)
        own_slope = np.where(supersonic, _UPWIND_ONSET / safe**2 * mach_slope, 0.0)
        # Upstream cells along both grid directions, and the share of the first.
        along, across, share = elements.upstream(self.velocity)
        self.upstream, self.share = (along, across), share
        # A cell behind a shock is subsonic but must still see the supersonic cell before it.
        self.set_upstream = own[along] > own
        # How much of the density comes from upstream.
        self.upwind = np.where(self.set_upstream, own[along], own)
        self.upwind_slope = np.where(self.set_upstream, own_slope[along], own_slope)
        self.drop = density - share * density[along] - (1 - share) * density[across]
        self.used_density = density - self.upwind * self.drop


def _jacobian_entries(
    elements: CGridElements, flow: _CellFlow, flux: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, columns and values of the derivative of the nodal residuals.

    The direction of upwinding is held; all else is exact.
    """
    nodes = elements.nodes
    slopes = 2 * np.einsum("ei,eni->en", flow.velocity, elements.centre_gradients)
    local = np.where(flow.set_upstream, 0.0, flow.drop * flow.upwind_slope)
    own = (1 - flow.upwind) * flow.density_slope - local
    blocks = flow.used_density[:, None, None] * elements.stiffness
    blocks += flux[:, :, None] * (own[:, None] * slopes)[:, None, :]
    rows, columns, values = [np.repeat(nodes, 4, axis=1)], [np.tile(nodes, (1, 4))], [blocks]

    active = np.flatnonzero(flow.upwind > 0)
    remote = np.where(flow.set_upstream, flow.drop * flow.upwind_slope, 0.0)
    parts = ((flow.upstream[0], flow.share, remote), (flow.upstream[1], 1 - flow.share, 0 * remote))
    for cells, share, switch in parts:
        source = cells[active]
        factor = (flow.upwind * share)[active] * flow.density_slope[source] - switch[active]
        rows.append(np.repeat(nodes[active], 4, axis=1))
        columns.append(np.tile(nodes[source], (1, 4)))
        values.append(flux[active][:, :, None] * (factor[:, None] * slopes[source])[:, None, :])
    return tuple(np.concatenate([*map(np.ravel, parts)]) for parts in (rows, columns, values))


def _newton(
    elements: CGridElements, mach: float, start: np.ndarray, circulation: float, tolerance: float
) -> tuple[np.ndarray, float]:
    """Unknowns and circulation at one Mach number from those at a lower one."""
    unknown_of, count = elements.unknown_of, elements.n_unknowns
    jump = elements.jump(mach)
    mapped = unknown_of >= 0
    kutta = np.bincount(unknown_of[mapped], elements.kutta[mapped], count)
    kutta_jump = elements.kutta @ jump
    unknowns = start
    for _ in range(_NEWTON_LIMIT):
        potential = elements.potential(unknowns, circulation, jump)
        flow = _CellFlow(elements, potential, mach)
        flux = np.einsum("enm,em->en", elements.stiffness, potential[elements.nodes])
        forces = flow.used_density[:, None] * flux
        nodal = np.bincount(elements.nodes.ravel(), forces.ravel(), potential.size)
        residual = np.bincount(unknown_of[mapped], nodal[mapped], count)

        rows, columns, values = _jacobian_entries(elements, flow, flux)
        kept = mapped[rows]
        rows, columns, values = unknown_of[rows[kept]], columns[kept], values[kept]
        by_circulation = np.bincount(rows, values * jump[columns], count)
        kept = mapped[columns]
        places = (rows[kept], unknown_of[columns[kept]])
        matrix = coo_array((values[kept], places), (count, count))
        factors = factorise(matrix.tocsc(), "MMD_AT_PLUS_A", 0.01)
        plain, correction = factors.solve(np.stack([-residual, by_circulation], axis=1)).T
        turn = -(elements.kutta @ potential + kutta @ plain) / (kutta_jump - kutta @ correction)
        step = plain - turn * correction
        size = max(np.abs(step).max(), abs(turn))
        if not np.isfinite(size):
            break
        direction = elements.direction(step, turn, jump)[elements.nodes]
        change = np.einsum("en,eni->ei", direction, elements.centre_gradients)
        # The largest of 1, 1/2, ... 1/32 that changes no cell's squared Mach number too much.
        scale = 1.0
        while scale > 1 / 32:
            _, squared = gas_state(np.sum((flow.velocity + scale * change) ** 2, axis=1), mach)
            if np.abs(squared - flow.mach_squared).max() < _LARGEST_CHANGE:
                break
            scale *= 0.5
        unknowns, circulation = unknowns + scale * step, circulation + scale * turn
        if size < tolerance:
            return unknowns, circulation
    raise NoPotentialFlow(
        f"no potential flow at Mach {mach:.3g} after {_NEWTON_LIMIT} Newton steps, last step "
        f"{size:.3g}, expected below {tolerance:.0e}; lower the Mach number, camber or thickness"
    )


def solve_potential(grid: CGrid, mach: float, incidence: float = 0.0) -> PotentialFlow:
    """Potential flow around the section of a grid at a Mach number and an incidence in radians.

    The Mach number is raised in steps, each flow being the first guess of the next.
    """
    if not 0 <= mach < 1:
        raise ValueError(f"mach={mach} must lie in [0, 1); supersonic far flow is not covered")
    elements = CGridElements(grid, incidence)
    unknowns, circulation = _newton(elements, 0.0, np.zeros(elements.n_unknowns), 0.0, np.inf)
    for stage in np.arange(_FIRST_MACH, mach - 0.5 * _MACH_STEP, _MACH_STEP):
        unknowns, circulation = _newton(elements, stage, unknowns, circulation, _ROUGH_TOLERANCE)
    if mach > 0:
        unknowns, circulation = _newton(elements, mach, unknowns, circulation, _TOLERANCE)
    potential = elements.potential(unknowns, circulation, elements.jump(mach))
    return PotentialFlow(potential.reshape(grid.points.shape), float(circulation))


def nodal_velocity(grid: CGrid, flow: PotentialFlow) -> np.ndarray:
    """Complex velocity u + i v at the nodes, shape (n_around, n_out), by central differences.

    On the section only the tangential derivative is used, because the flow follows the wall; the
    two sides of the wake get their mean.
    """
    z_i, z_j = np.gradient(grid.points, edge_order=2)
    p_i, p_j = np.gradient(flow.potential, edge_order=2)
    area = z_i.real * z_j.imag - z_i.imag * z_j.real
    velocity = (p_i * z_j.imag - p_j * z_i.imag) / area
    velocity = velocity + 1j * (z_i.real * p_j - z_j.real * p_i) / area
    wall = slice(grid.n_wake + 1, len(grid.points) - grid.n_wake - 1)
    velocity[wall, 0] = p_i[wall, 0] * z_i[wall, 0] / np.abs(z_i[wall, 0]) ** 2
    wake = slice(0, grid.n_wake + 1)
    mean = 0.5 * (velocity[wake, 0] + velocity[::-1][wake, 0])
    velocity[wake, 0] = velocity[::-1][wake, 0] = mean
    return velocity
