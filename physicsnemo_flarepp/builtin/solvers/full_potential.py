"""Steady compressible potential flow around an aerofoil section on a C-grid.

The grid comes from the square root of the complex plane: w = sqrt(z - z0), with z0 just inside the
nose, opens section and wake to a shallow bump over a line. Lines of constant Re w and equal
fractions between bump and far boundary, squared again, make a smooth grid (sheared parabolic
coordinates). Bilinear finite elements for div(rho grad phi) = 0 take the isentropic density of the
speed at the centre of each cell; where the flow is supersonic it comes partly from the cell
upstream, which lets the scheme capture shocks. The potential jumps by the circulation across the
wake, and the speeds on both sides of the trailing edge are equal (Kutta). Far away speed and
density are 1 and the perturbation is that of a compressible vortex.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.sparse import coo_array
from skfem import Basis, ElementQuad1, MeshQuad
from skfem.models.poisson import laplace

from . import Unsolvable, factorise

GAMMA = 1.4

_TOLERANCE = 1e-6
_ROUGH_TOLERANCE = 2e-3
_NEWTON_LIMIT = 40
_FIRST_MACH, _MACH_STEP = 0.7, 0.03
_UPWIND_ONSET = 0.9  # squared local Mach number from which density comes from upstream
_LARGEST_CHANGE = 0.3  # of the squared Mach number in any cell in one Newton step
_LEAST_TEMPERATURE = 0.1  # keeps Newton's iterates away from vacuum

# Steps of X at the nose and at the trailing edge over their mean on the section.
_NOSE_STEP, _TRAILING_STEP = 0.7, 0.4
_FIRST_STEP_OUT = 0.008


@dataclass(frozen=True)
class CGrid:
    """A C-grid: the first index runs from the lower wake around the nose to the upper wake.

    Nodes (i, 0) and (n_around - 1 - i, 0) coincide for i <= n_wake, where the trailing edge is.
    """

    points: np.ndarray  # x + i y, (n_around, n_out); column 0 is wake and section
    n_wake: int
    angle: np.ndarray  # around the nose, 0 on the upper and 2 pi on the lower side of the wake


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
    """C-grid around a section, ``far`` times its unit of length wide.

    ``section`` gives complex points for parameters in [-1, 1]: from the trailing edge along the
    lower side to the nose at 0 and along the upper side back to the same point. ``nose`` lies
    inside, about half a nose radius behind the leading edge. ``shape``: nodes around (odd) and out.
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
    """Square root along a curve around the origin, continuous across the cut of the root."""
    angle = np.unwrap(np.angle(z))
    angle += 2 * np.pi * np.round((np.pi - angle[len(z) // 2]) / (2 * np.pi))
    return np.sqrt(np.abs(z)) * np.exp(0.5j * angle)


class CGridElements:
    """Bilinear elements of a C-grid and the numbering of its unknown potentials.

    A potential at the nodes is ``far + circulation * jump + unknowns``: the potentials of the outer
    boundary are known up to the circulation, and a node below the wake has the unknown of the node
    above it, less the circulation. ``unknown_of`` is the unknown of every node, -1 on the outer
    boundary; ``kutta`` weighs nodal potentials to the jump of the speed at the trailing edge.
    """

    def __init__(self, grid: CGrid, incidence: float) -> None:
        self._grid, self._incidence = grid, incidence
        rows, columns = grid.points.shape
        number = np.arange(rows * columns).reshape(rows, columns)
        self._cells = (rows - 1, columns - 1)
        corners = [number[:-1, :-1], number[1:, :-1], number[1:, 1:], number[:-1, 1:]]
        self.nodes = np.stack(corners, axis=-1).reshape(-1, 4)

        flat = grid.points.ravel()
        mesh = MeshQuad(np.stack([flat.real, flat.imag]), np.ascontiguousarray(self.nodes.T))
        basis = Basis(mesh, ElementQuad1(), intorder=3)
        smallest = basis.mapping.detDF(basis.X).min()
        if smallest <= 0:
            raise Unsolvable(
                f"grid: folded cells, smallest Jacobian {smallest:.3g}, expected all positive; use "
                "a smoother section"
            )
        self.stiffness = laplace.coo_data(basis).tolocal()
        centre = np.full((2, 1), 0.5)
        centred = Basis(mesh, ElementQuad1(), quadrature=(centre, np.ones(1)))
        gradients = np.stack([function[0].grad[..., 0] for function in centred.basis])
        self.centre_gradients = np.ascontiguousarray(gradients.transpose(2, 0, 1))  # (E, 4, 2)
        self._to_index = centred.mapping.invDF(centre)[..., 0]

        self._outer = np.zeros((rows, columns), bool)
        self._outer[:, -1] = self._outer[[0, -1]] = True
        below = np.arange(grid.n_wake + 1)
        partner = number.copy()
        partner[below, 0] = number[rows - 1 - below, 0]
        free = ~self._outer
        free[below, 0] = False
        self.n_unknowns = int(free.sum())
        numbered = np.full(number.size, -1)
        numbered[free.ravel()] = np.arange(self.n_unknowns)
        self.unknown_of = numbered[partner.ravel()]

        far = (grid.points * np.exp(-1j * incidence)).real
        self._far = np.where(self._outer, far, 0.0).ravel()
        self.kutta = self._kutta_weights(number)

    def _kutta_weights(self, number: np.ndarray) -> np.ndarray:
        """Speed above minus below, extrapolated to the edge by the root of the distance."""
        line, lower = self._grid.points[:, 0], self._grid.n_wake
        upper = len(line) - 1 - lower
        weights = np.zeros(number.size)
        for sign, edge, inward in ((1, upper, -1), (-1, lower, 1)):
            nodes = edge + inward * np.arange(3)
            steps = np.abs(np.diff(line[nodes]))
            root = np.sqrt([0.5 * steps[0], steps[0] + 0.5 * steps[1]])
            factors = sign * np.array([root[1], -root[0]]) / (root[1] - root[0])
            for k in range(2):
                weights[number[nodes[k], 0]] += factors[k] / steps[k]
                weights[number[nodes[k + 1], 0]] -= factors[k] / steps[k]
        return weights

    def jump(self, mach: float) -> np.ndarray:
        """Change of every known nodal potential with the circulation: far out that of a vortex."""
        angle = self._grid.angle - self._incidence
        stretched = np.cos(angle) + 1j * np.sqrt(1 - mach**2) * np.sin(angle)
        turned = angle + np.angle(stretched * np.exp(-1j * angle))
        change = np.where(self._outer, 1 - turned / (2 * np.pi), 0.0)
        below = np.arange(self._grid.n_wake + 1)
        change[below, 0] = change[::-1][below, 0] - 1.0
        return change.ravel()

    def direction(self, unknowns: np.ndarray, circulation: float, jump: np.ndarray) -> np.ndarray:
        """Change of the nodal potentials with a change of unknowns and circulation."""
        padded = np.append(unknowns, 0.0)
        return circulation * jump + padded[self.unknown_of]

    def potential(self, unknowns: np.ndarray, circulation: float, jump: np.ndarray) -> np.ndarray:
        """Potential at the nodes, shape (nodes,)."""
        return self._far + self.direction(unknowns, circulation, jump)

    def upstream(self, velocity: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Upstream cells along and across the grid lines, and the share of the first, each (E,)."""
        along, across = np.einsum("ei,kie->ke", velocity, self._to_index)
        i, j = np.divmod(np.arange(len(self.nodes)), self._cells[1])
        i_up = np.clip(i - np.sign(along).astype(int), 0, self._cells[0] - 1)
        j_up = np.clip(j - np.sign(across).astype(int), 0, self._cells[1] - 1)
        total = np.maximum(np.abs(along) + np.abs(across), 1e-300)
        return i_up * self._cells[1] + j, i * self._cells[1] + j_up, np.abs(along) / total


@dataclass(frozen=True)
class PotentialFlow:
    """Potential at the nodes and its jump across the wake, which is half the lift coefficient."""

    potential: np.ndarray
    circulation: float


def gas_state(speed_squared: np.ndarray, mach: float) -> tuple[np.ndarray, np.ndarray]:
    """Density and squared Mach number by the squared speed, all but the last over far values."""
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
    """Rows, columns and values of the residuals' derivative, exact but for the upwind direction."""
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
    raise Unsolvable(
        f"no potential flow at Mach {mach:.3g} after {_NEWTON_LIMIT} Newton steps, last step "
        f"{size:.3g}, expected below {tolerance:.0e}; lower the Mach number, camber or thickness"
    )


def solve_potential(grid: CGrid, mach: float, incidence: float = 0.0) -> PotentialFlow:
    """Potential flow at an incidence in radians; the Mach number is raised in steps."""
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
    """Complex velocity u + i v at the nodes by central differences, tangential on the section."""
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
