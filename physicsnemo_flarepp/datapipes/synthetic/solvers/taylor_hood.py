"""Taylor-Hood elements on a structured mesh of quadrilaterals: bases, numbering and evaluation.

Velocity is continuous Q_k and pressure continuous Q_(k-1). The low side of the first axis is an
inlet, the high side an outlet, and the two sides of the second axis are walls.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.polynomial import Polynomial
from scipy.sparse import csc_array


def lagrange_basis(order: int, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values and derivatives of the Lagrange polynomials on ``order + 1`` equal steps of [0, 1].

    Parameters
    ----------
    order : int
        Polynomial degree.
    points : np.ndarray
        Evaluation points, shape (P,).

    Returns
    -------
    tuple[np.ndarray, np.ndarray]
        Values and first derivatives, each of shape (P, order + 1).

    Examples
    --------
    >>> values, slopes = lagrange_basis(2, np.array([0.25]))
    >>> values.round(3), slopes.round(3)
    (array([[ 0.375,  0.75 , -0.125]]), array([[-2.,  2.,  0.]]))
    """
    nodes = np.linspace(0.0, 1.0, order + 1)
    values, slopes = [], []
    for a, node in enumerate(nodes):
        roots = np.delete(nodes, a)
        polynomial = Polynomial.fromroots(roots) / np.prod(node - roots)
        values.append(polynomial(points))
        slopes.append(polynomial.deriv()(points))
    return np.stack(values, axis=1), np.stack(slopes, axis=1)


def _element_nodes(cells: tuple[int, int], order: int) -> np.ndarray:
    """Node numbers of every cell, (cells, (order + 1)**2), nodes numbered row by row."""
    stride = cells[1] * order + 1
    start = order * (np.arange(cells[0])[:, None] * stride + np.arange(cells[1])[None, :])
    local = np.arange(order + 1)[:, None] * stride + np.arange(order + 1)[None, :]
    return start.reshape(-1, 1) + local.reshape(1, -1)


def _tensor(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Tensor products of two one-dimensional bases: (P, A), (Q, B) -> (P Q, A B)."""
    product = np.einsum("pa,qb->pqab", first, second)
    return product.reshape(first.shape[0] * second.shape[0], -1)


@dataclass(frozen=True)
class TaylorHoodGrid:
    """A structured mesh of ``cells`` with velocity of degree ``order`` and pressure one lower.

    Unknowns are u_x at all velocity nodes, then u_y, then p at all pressure nodes.

    Examples
    --------
    >>> grid = TaylorHoodGrid(cells=(4, 2), order=2)
    >>> grid.velocity_shape, grid.pressure_shape
    ((9, 5), (5, 3))
    """

    cells: tuple[int, int]
    order: int

    @property
    def velocity_shape(self) -> tuple[int, int]:
        """Velocity nodes along and across the channel."""
        return self.cells[0] * self.order + 1, self.cells[1] * self.order + 1

    @property
    def pressure_shape(self) -> tuple[int, int]:
        """Pressure nodes along and across the channel."""
        return self.cells[0] * (self.order - 1) + 1, self.cells[1] * (self.order - 1) + 1

    @cached_property
    def quadrature(self) -> dict[str, np.ndarray]:
        """Reference weights (Q,), velocity basis (Q, A), its slopes (Q, A, 2), pressure basis."""
        abscissae, weights = np.polynomial.legendre.leggauss(self.order + 2)
        points, weights = (abscissae + 1) / 2, weights / 2
        value, slope = lagrange_basis(self.order, points)
        pressure, _ = lagrange_basis(self.order - 1, points)
        return {
            "weights": np.outer(weights, weights).ravel(),
            "velocity": _tensor(value, value),
            "slopes": np.stack([_tensor(slope, value), _tensor(value, slope)], axis=-1),
            "pressure": _tensor(pressure, pressure),
        }

    @cached_property
    def velocity_nodes(self) -> np.ndarray:
        """Velocity nodes of every cell, (E, A)."""
        return _element_nodes(self.cells, self.order)

    @cached_property
    def unknowns(self) -> np.ndarray:
        """Unknowns of every cell: u_x, u_y and p, (E, 2 A + B)."""
        count = np.prod(self.velocity_shape)
        pressure = _element_nodes(self.cells, self.order - 1) + 2 * count
        return np.hstack([self.velocity_nodes, self.velocity_nodes + count, pressure])

    @cached_property
    def fixed(self) -> np.ndarray:
        """Unknowns held by the inlet and the walls, sorted."""
        nodes = np.arange(np.prod(self.velocity_shape)).reshape(self.velocity_shape)
        held = np.unique(np.concatenate([nodes[0], nodes[:, 0], nodes[:, -1]]))
        return np.concatenate([held, held + nodes.size])

    @cached_property
    def size(self) -> int:
        """Number of unknowns."""
        return int(2 * np.prod(self.velocity_shape) + np.prod(self.pressure_shape))

    @cached_property
    def free(self) -> np.ndarray:
        """Number of every unknown among the free ones, -1 where it is held, (size,)."""
        number = np.full(self.size, -1)
        is_free = np.setdiff1d(np.arange(self.size), self.fixed)
        number[is_free] = np.arange(is_free.size)
        return number

    @cached_property
    def pattern(self) -> tuple[np.ndarray, np.ndarray, csc_array]:
        """Where element matrices go in the matrix of the free unknowns.

        Returns
        -------
        tuple[np.ndarray, np.ndarray, csc_array]
            Positions of the entries used in the flattened element matrices, the slot of each in
            the data of the sparse matrix, and that matrix with zeros in it.
        """
        number = self.free[self.unknowns]
        rows, columns = np.broadcast_arrays(number[:, :, None], number[:, None, :])
        used = np.flatnonzero((rows.ravel() >= 0) & (columns.ravel() >= 0))
        count = int(self.free.max()) + 1
        keys, slots = np.unique(
            columns.ravel()[used] * count + rows.ravel()[used], return_inverse=True
        )
        starts = np.searchsorted(keys, np.arange(count + 1) * count)
        return used, slots, csc_array((np.zeros(keys.size), keys % count, starts), (count, count))


@lru_cache(maxsize=4)
def taylor_hood_grid(cells: tuple[int, int], order: int) -> TaylorHoodGrid:
    """Return the grid of this size, made once per process: index arrays take longer than a step.

    Examples
    --------
    >>> taylor_hood_grid((4, 2), 2) is taylor_hood_grid((4, 2), 2)
    True
    """
    return TaylorHoodGrid(cells, order)


def _evaluation_matrix(order: int, cells: int, count: int) -> np.ndarray:
    """Matrix (count, cells * order + 1) from nodal values to ``count`` equally spaced points."""
    parameter = np.linspace(0.0, cells, count)
    cell = np.minimum(parameter.astype(int), cells - 1)
    values, _ = lagrange_basis(order, parameter - cell)
    matrix = np.zeros((count, cells * order + 1))
    columns = cell[:, None] * order + np.arange(order + 1)
    np.put_along_axis(matrix, columns, values, axis=1)
    return matrix


def resample(
    values: np.ndarray, cells: tuple[int, int], order: int, shape: tuple[int, int]
) -> np.ndarray:
    """Values of a piecewise polynomial field on a grid of equally spaced mesh parameters.

    Parameters
    ----------
    values : np.ndarray
        Nodal values, shape (..., cells[0] * order + 1, cells[1] * order + 1).
    cells : tuple[int, int]
        Cells of the mesh.
    order : int
        Degree of the field.
    shape : tuple[int, int]
        Points wanted along and across the channel.

    Returns
    -------
    np.ndarray
        The field, shape (..., *shape).

    Examples
    --------
    >>> resample(np.array([[0.0, 1.0], [2.0, 3.0]]), (1, 1), 1, (3, 2))
    array([[0., 1.], [1., 2.], [2., 3.]])
    """
    along = _evaluation_matrix(order, cells[0], shape[0])
    across = _evaluation_matrix(order, cells[1], shape[1])
    return along @ values @ across.T
