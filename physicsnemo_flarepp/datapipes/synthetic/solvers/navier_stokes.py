"""Steady incompressible Navier-Stokes flow on a mapped rectangle.

Newton's method on isoparametric Taylor-Hood elements with a sparse direct solver. Inlet and walls
prescribe the velocity; at the outlet nu du/dn - p n = 0, the do-nothing condition of the weak form.
"""

import numpy as np

from .taylor_hood import TaylorHoodGrid
from .unsolvable import Unsolvable, factorise

# Convergence is quadratic: a step this small leaves an error near rounding.
_NEWTON_TOLERANCE = 1e-7
_NEWTON_LIMIT = 25


class FlowNotConverged(Unsolvable):
    """Newton's method found no steady flow for this geometry and viscosity."""


def _mapped_basis(grid: TaylorHoodGrid, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Physical gradients (E, Q, A, 2) of the velocity basis and quadrature weights (E, Q)."""
    slopes = grid.quadrature["slopes"]
    corners = points.reshape(-1, 2)[grid.velocity_nodes]
    jacobian = np.einsum("qak,eai->eqik", slopes, corners)
    determinant = np.linalg.det(jacobian)
    if determinant.min() <= 0:
        raise Unsolvable(
            f"points: the mesh is folded, smallest Jacobian {determinant.min():.3g}; expected all "
            "positive. Use a channel with less curvature, or order the nodes right-handed"
        )
    gradients = np.einsum("qak,eqki->eqai", slopes, np.linalg.inv(jacobian))
    return gradients, determinant * grid.quadrature["weights"]


def _stokes_matrices(
    grid: TaylorHoodGrid, gradients: np.ndarray, weights: np.ndarray, viscosity: float
) -> np.ndarray:
    """Element matrices of viscosity, pressure and continuity, (E, 2 A + B, 2 A + B)."""
    pressure = grid.quadrature["pressure"]
    cells, _, nodes, _ = gradients.shape
    weighted = gradients * weights[..., None, None]
    diffusion = viscosity * np.matmul(
        weighted.transpose(0, 2, 1, 3).reshape(cells, nodes, -1),
        gradients.transpose(0, 1, 3, 2).reshape(cells, -1, nodes),
    )
    size = 2 * nodes + pressure.shape[1]
    matrices = np.zeros((cells, size, size))
    for i in range(2):
        block = slice(i * nodes, (i + 1) * nodes)
        divergence = np.matmul(weighted[..., i].transpose(0, 2, 1), pressure)
        matrices[:, block, block] = diffusion
        matrices[:, block, 2 * nodes :] = -divergence
        matrices[:, 2 * nodes :, block] = -divergence.transpose(0, 2, 1)
    return matrices


def _convection(
    grid: TaylorHoodGrid, gradients: np.ndarray, weights: np.ndarray, velocity: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Element vectors (E, 2 A) of (u . grad) u and their derivative (E, 2 A, 2 A)."""
    basis = grid.quadrature["velocity"]
    cells, _, nodes, _ = gradients.shape
    local = velocity.reshape(2, -1)[:, grid.velocity_nodes]
    value = np.einsum("qa,iea->eqi", basis, local)
    slope = np.einsum("eqaj,iea->eqij", gradients, local)
    acceleration = np.einsum("eqij,eqj->eqi", slope, value) * weights[..., None]
    vector = np.einsum("qa,eqi->eia", basis, acceleration).reshape(cells, 2 * nodes)

    transport = np.einsum("eqaj,eqj->eqa", gradients, value) * weights[..., None]
    transport = np.matmul(basis.T, transport)
    mass = np.einsum("qa,qb->qab", basis, basis).reshape(basis.shape[0], -1)
    derivative = np.empty((cells, 2 * nodes, 2 * nodes))
    for i in range(2):
        for j in range(2):
            block = ((weights * slope[..., i, j]) @ mass).reshape(cells, nodes, nodes)
            if i == j:
                block += transport
            derivative[:, i * nodes : (i + 1) * nodes, j * nodes : (j + 1) * nodes] = block
    return vector, derivative


def solve_channel(
    grid: TaylorHoodGrid, points: np.ndarray, viscosity: float, start: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Steady velocity and kinematic pressure in a channel.

    Solves (u . grad) u - viscosity laplace u + grad p = 0, div u = 0 with no slip on the walls, the
    velocity of ``start`` at the inlet and viscosity du/dn - p n = 0 at the outlet.

    Parameters
    ----------
    grid : TaylorHoodGrid
        The mesh.
    points : np.ndarray
        Coordinates of the velocity nodes, shape (*grid.velocity_shape, 2).
    viscosity : float
        Kinematic viscosity.
    start : np.ndarray
        First guess of the velocity, shape (2, *grid.velocity_shape); its first row of nodes is
        the inlet profile, its values on the walls are replaced by zero.

    Returns
    -------
    tuple[np.ndarray, np.ndarray]
        Velocity (2, *grid.velocity_shape) and pressure grid.pressure_shape.

    Raises
    ------
    FlowNotConverged
        If Newton's method does not converge.

    Examples
    --------
    >>> grid = TaylorHoodGrid((2, 2), 2)
    >>> x, y = np.meshgrid(np.linspace(0, 2, 5), np.linspace(0, 1, 5), indexing="ij")
    >>> start = np.stack([4 * y * (1 - y), 0 * y])
    >>> velocity, pressure = solve_channel(grid, np.stack([x, y], -1), 0.1, start)
    >>> bool(np.allclose(velocity, start)), pressure[:, 0].round(6)
    (True, array([1.6, 0.8, 0. ]))
    """
    gradients, weights = _mapped_basis(grid, points)
    linear = _stokes_matrices(grid, gradients, weights, viscosity)
    used, slots, matrix = grid.pattern
    moving = grid.free >= 0
    velocity_size = start.size
    velocity_local = 2 * grid.velocity_nodes.shape[1]

    state = np.zeros(grid.size)
    first = start.copy()
    first[:, :, [0, -1]] = 0.0
    state[:velocity_size] = first.ravel()
    for _ in range(_NEWTON_LIMIT):
        vector, derivative = _convection(grid, gradients, weights, state[:velocity_size])
        forces = np.matmul(linear, state[grid.unknowns][..., None])[..., 0]
        forces[:, :velocity_local] += vector
        residual = np.bincount(grid.unknowns.ravel(), forces.ravel(), grid.size)[moving]
        tangent = linear.copy()
        tangent[:, :velocity_local, :velocity_local] += derivative
        matrix.data = np.bincount(slots, tangent.ravel()[used], matrix.data.size)
        step = factorise(matrix, permc_spec="COLAMD", diag_pivot_thresh=0.1).solve(residual)
        state[moving] -= step
        if not np.all(np.isfinite(step)):
            break
        if np.abs(step).max() < _NEWTON_TOLERANCE:
            shape = (2, *grid.velocity_shape)
            return (
                state[:velocity_size].reshape(shape),
                state[velocity_size:].reshape(grid.pressure_shape),
            )
    raise FlowNotConverged(
        f"no steady flow at viscosity {viscosity} after {_NEWTON_LIMIT} Newton steps, last step "
        f"{np.abs(step).max():.3g}, expected below {_NEWTON_TOLERANCE:.0e}; start from the flow at "
        "a larger viscosity"
    )
