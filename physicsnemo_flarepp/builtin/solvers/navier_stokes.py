"""Steady incompressible Navier-Stokes flow in a channel by Newton's method on Taylor-Hood elements.

The channel is the image of a rectangle of unit cells. scikit-fem's elements on that rectangle carry
the velocity (Q_k), the pressure (Q_(k-1)) and the map to the channel (Q_k); fields are vectors of
their coefficients. Inlet (low side of the first axis) and walls (second axis) prescribe the
velocity; at the outlet nu du/dn - p n = 0, the do-nothing condition of the weak form.
"""

from functools import cache, cached_property

import numpy as np
from scipy.sparse import csc_array
from scipy.sparse.linalg import SuperLU, splu
from skfem import Basis, Element, ElementQuad1, ElementQuad2, ElementQuadP, MeshQuad

from . import Unsolvable, factorise

# Convergence is quadratic: a step this small leaves an error near rounding.
_NEWTON_TOLERANCE = 1e-7
_NEWTON_LIMIT = 25


class FlowNotConverged(Unsolvable):
    """Newton's method found no steady flow for this geometry and viscosity."""


def _element(degree: int) -> Element:
    return {1: ElementQuad1, 2: ElementQuad2}.get(degree, lambda: ElementQuadP(degree))()


class ChannelElements:
    """Velocity of degree ``order``, pressure one lower; unknowns are u_x, then u_y, then p."""

    def __init__(self, cells: tuple[int, int], order: int) -> None:
        mesh = MeshQuad.init_tensor(*(np.arange(count + 1.0) for count in cells))
        self._cells = cells
        self.node_shape = tuple(count * order + 1 for count in cells)
        self.velocity, self.pressure = (
            Basis(mesh, _element(degree), intorder=2 * order + 3) for degree in (order, order - 1)
        )
        count = self.velocity.N
        self.velocity_dofs = self.velocity.element_dofs.T
        pressure_dofs = self.pressure.element_dofs.T + 2 * count
        self.unknowns = np.hstack([self.velocity_dofs, self.velocity_dofs + count, pressure_dofs])
        self.size = 2 * count + self.pressure.N
        sides = self.velocity.get_dofs(lambda x: (x[0] == 0) | (x[1] == 0) | (x[1] == cells[1]))
        held = sides.flatten()
        self.moving = np.setdiff1d(np.arange(self.size), np.concatenate([held, held + count]))

        # All cells are unit squares, so what holds in the first holds in every one.
        fields, levels = ([f[0] for f in b.basis] for b in (self.velocity, self.pressure))
        self.weights = self.velocity.dx[0]  # (Q,)
        self.values = np.stack([np.asarray(field)[0] for field in fields], axis=-1)  # (Q, A)
        self.slopes = np.stack([field.grad[:, 0] for field in fields], axis=-1)  # (2, Q, A)
        self.pressures = np.stack([np.asarray(level)[0] for level in levels], axis=-1)

    @cached_property
    def pattern(self) -> tuple[np.ndarray, np.ndarray, csc_array]:
        """Entries used of the flattened cell matrices, their slots, and the matrix they fill."""
        number = np.full(self.size, -1)
        number[self.moving] = np.arange(self.moving.size)
        number = number[self.unknowns]
        rows, columns = np.broadcast_arrays(number[:, :, None], number[:, None, :])
        used = np.flatnonzero((rows.ravel() >= 0) & (columns.ravel() >= 0))
        count = self.moving.size
        places = columns.ravel()[used] * count + rows.ravel()[used]
        keys, slots = np.unique(places, return_inverse=True)
        starts = np.searchsorted(keys, np.arange(count + 1) * count)
        return used, slots, csc_array((np.zeros(keys.size), keys % count, starts), (count, count))

    @cache  # noqa: B019 (elements live as long as the process)
    def _evaluation(self, field: str, shape: tuple[int, int]) -> csc_array:
        """Matrix from coefficients to values on a grid of equal steps of the parameters.

        scikit-fem's ``probes`` would search the cells of the points, which takes a second.
        """
        basis: Basis = getattr(self, field)
        axes = [np.linspace(0, end, count) for end, count in zip(self._cells, shape, strict=True)]
        points = np.stack(np.meshgrid(*axes, indexing="ij")).reshape(2, -1)
        along, across = np.minimum(points.astype(int).T, np.array(self._cells) - 1).T
        cells = along * self._cells[1] + across
        local = basis.mapping.invF(points[..., None], tind=cells)[..., 0]
        values = [basis.elem.lbasis(local, k)[0] for k in range(basis.Nbfun)]
        rows = np.tile(np.arange(points.shape[1]), basis.Nbfun)
        columns = basis.element_dofs[:, cells]
        return csc_array((np.ravel(values), (rows, columns.ravel())), (points.shape[1], basis.N))

    @cached_property
    def _interpolation(self) -> SuperLU:
        return splu(self._evaluation("velocity", self.node_shape))

    def interpolate(self, values: np.ndarray) -> np.ndarray:
        """Coefficients (2, N) from values (2, *node_shape) at equally spaced nodes."""
        return self._interpolation.solve(values.reshape(2, -1).T).T

    def sample(
        self, velocity: np.ndarray, pressure: np.ndarray, shape: tuple[int, int]
    ) -> np.ndarray:
        """u_x, u_y and p on a grid of equal steps, (3, *shape), from coefficients."""
        flow = self._evaluation("velocity", shape) @ velocity.T
        level = self._evaluation("pressure", shape) @ pressure
        return np.stack([*flow.T, level]).reshape(3, *shape)


@cache
def channel_elements(cells: tuple[int, int], order: int) -> ChannelElements:
    """Return the elements of this size, made once per process: they take longer than a step."""
    return ChannelElements(cells, order)


# The cell matrices are contracted here for all pairs of basis functions at once. scikit-fem's forms
# loop over the 2,500 pairs of a Q4 velocity: 0.3 s instead of 0.01 s per Newton step.


def _mapped(elements: ChannelElements, geometry: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gradients (E, Q, A, 2) of the velocity basis in the channel and weights (E, Q)."""
    corners = geometry[:, elements.velocity_dofs]
    jacobian = np.einsum("kqa,iea->eqik", elements.slopes, corners)
    determinant = np.linalg.det(jacobian)
    if determinant.min() <= 0:
        raise Unsolvable(
            f"geometry: the mesh is folded, smallest Jacobian {determinant.min():.3g}; expected "
            "all positive. Use a channel with less curvature, or order the nodes right-handed"
        )
    gradients = np.einsum("kqa,eqki->eqai", elements.slopes, np.linalg.inv(jacobian))
    return gradients, determinant * elements.weights


def _stokes_matrices(
    elements: ChannelElements, gradients: np.ndarray, weights: np.ndarray, viscosity: float
) -> np.ndarray:
    """Cell matrices of viscosity, pressure and continuity, (E, 2 A + B, 2 A + B)."""
    cells, _, nodes, _ = gradients.shape
    weighted = gradients * weights[..., None, None]
    diffusion = viscosity * np.matmul(
        weighted.transpose(0, 2, 1, 3).reshape(cells, nodes, -1),
        gradients.transpose(0, 1, 3, 2).reshape(cells, -1, nodes),
    )
    size = elements.unknowns.shape[1]
    matrices = np.zeros((cells, size, size))
    for i in range(2):
        block = slice(i * nodes, (i + 1) * nodes)
        divergence = np.matmul(weighted[..., i].transpose(0, 2, 1), elements.pressures)
        matrices[:, block, block] = diffusion
        matrices[:, block, 2 * nodes :] = -divergence
        matrices[:, 2 * nodes :, block] = -divergence.transpose(0, 2, 1)
    return matrices


def _convection(
    elements: ChannelElements, gradients: np.ndarray, weights: np.ndarray, velocity: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Cell vectors (E, 2 A) of (u . grad) u and their derivative (E, 2 A, 2 A)."""
    basis = elements.values
    cells, _, nodes, _ = gradients.shape
    local = velocity[:, elements.velocity_dofs]
    value = np.einsum("qa,iea->eqi", basis, local)
    slope = np.einsum("eqaj,iea->eqij", gradients, local)
    acceleration = np.einsum("eqij,eqj->eqi", slope, value) * weights[..., None]
    vector = np.einsum("qa,eqi->eia", basis, acceleration).reshape(cells, 2 * nodes)

    transport = np.einsum("eqaj,eqj->eqa", gradients, value) * weights[..., None]
    transport = np.matmul(basis.T, transport)
    mass = np.einsum("qa,qb->qab", basis, basis).reshape(len(basis), -1)
    derivative = np.empty((cells, 2, nodes, 2, nodes))
    for i, j in np.ndindex(2, 2):
        block = ((weights * slope[..., i, j]) @ mass).reshape(cells, nodes, nodes)
        derivative[:, i, :, j] = block + transport if i == j else block
    return vector, derivative.reshape(cells, 2 * nodes, 2 * nodes)


def solve_channel(
    elements: ChannelElements, geometry: np.ndarray, viscosity: float, start: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients of the steady velocity (2, N) and kinematic pressure in a channel.

    Solves (u . grad) u - viscosity laplace u + grad p = 0, div u = 0 in the image of ``geometry``
    (2, N), from a first guess ``start`` (2, N) that has the velocities of inlet and walls.
    """
    gradients, weights = _mapped(elements, geometry)
    linear = _stokes_matrices(elements, gradients, weights, viscosity)
    used, slots, matrix = elements.pattern
    moving, in_velocity = elements.moving, 2 * elements.velocity_dofs.shape[1]
    state = np.zeros(elements.size)
    state[: start.size] = start.ravel()
    for _ in range(_NEWTON_LIMIT):
        velocity = state[: start.size].reshape(start.shape)
        vector, derivative = _convection(elements, gradients, weights, velocity)
        forces = np.matmul(linear, state[elements.unknowns][..., None])[..., 0]
        forces[:, :in_velocity] += vector
        residual = np.bincount(elements.unknowns.ravel(), forces.ravel(), state.size)[moving]
        tangent = linear.copy()
        tangent[:, :in_velocity, :in_velocity] += derivative
        matrix.data = np.bincount(slots, tangent.ravel()[used], matrix.data.size)
        step = factorise(matrix, "COLAMD", 0.1).solve(residual)
        state[moving] -= step
        if not np.all(np.isfinite(step)):
            break
        if np.abs(step).max() < _NEWTON_TOLERANCE:
            return state[: start.size].reshape(start.shape), state[start.size :]
    raise FlowNotConverged(
        f"no steady flow at viscosity {viscosity} after {_NEWTON_LIMIT} Newton steps, last step "
        f"{np.abs(step).max():.3g}, expected below {_NEWTON_TOLERANCE:.0e}; start from the flow at "
        "a larger viscosity"
    )
