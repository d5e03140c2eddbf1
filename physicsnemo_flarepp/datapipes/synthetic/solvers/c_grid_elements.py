"""Bilinear elements on a C-grid whose potential jumps across the wake."""

import numpy as np

from .c_grid import CGrid
from .unsolvable import Unsolvable


class CGridElements:
    """Element matrices of a C-grid and the numbering of its unknown potentials.

    A potential at the nodes is ``far + circulation * jump + unknowns``: the potentials of the outer
    boundary are known up to the circulation, and a node below the wake has the unknown of the node
    above it, less the circulation.

    Parameters
    ----------
    grid : CGrid
        The grid.
    incidence : float
        Angle of the far flow in radians.

    Attributes
    ----------
    nodes : np.ndarray
        Nodes of every cell, shape (E, 4).
    stiffness : np.ndarray
        Integrals of the products of basis gradients, shape (E, 4, 4).
    centre_gradients : np.ndarray
        Basis gradients at the cell centres, shape (E, 4, 2).
    unknown_of : np.ndarray
        Unknown of every node, -1 on the outer boundary, shape (nodes,).
    n_unknowns : int
        Number of unknowns.
    kutta : np.ndarray
        Weights of the nodal potentials in the difference of the speeds at the trailing edge,
        shape (nodes,).

    Raises
    ------
    ValueError
        If cells of the grid are folded.
    """

    def __init__(self, grid: CGrid, incidence: float) -> None:
        self._grid, self._incidence = grid, incidence
        rows, columns = grid.points.shape
        number = np.arange(rows * columns).reshape(rows, columns)
        self._cells = (rows - 1, columns - 1)
        corners = [number[:-1, :-1], number[1:, :-1], number[1:, 1:], number[:-1, 1:]]
        self.nodes = np.stack(corners, axis=-1).reshape(-1, 4)

        self.stiffness = np.zeros((len(self.nodes), 4, 4))
        gauss = 0.5 + np.array([-0.5, 0.5]) / np.sqrt(3)
        for a in gauss:
            for b in gauss:
                gradients, determinant, _ = self._gradients(a, b)
                if determinant.min() <= 0:
                    raise Unsolvable(
                        f"grid: folded cells, smallest Jacobian {determinant.min():.3g}, expected "
                        "all positive; use a smoother section"
                    )
                products = np.einsum("eni,emi->enm", gradients, gradients)
                self.stiffness += 0.25 * determinant[:, None, None] * products
        self.centre_gradients, _, self._to_index = self._gradients(0.5, 0.5)

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

    def _gradients(self, a: float, b: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Basis gradients, Jacobian determinants and inverses at one point of every cell."""
        points = self._grid.points.ravel()[self.nodes]
        slopes = np.array([[b - 1, 1 - b, b, -b], [a - 1, -a, a, 1 - a]])
        jacobian = np.einsum("kn,eni->eki", slopes, np.stack([points.real, points.imag], axis=-1))
        inverse = np.linalg.inv(jacobian)
        return np.einsum("eik,kn->eni", inverse, slopes), np.linalg.det(jacobian), inverse

    def _kutta_weights(self, number: np.ndarray) -> np.ndarray:
        """Speed of the upper minus that of the lower side, extrapolated to the trailing edge.

        Near the edge the difference falls like the square root of the distance; from its values in
        the last two intervals follows its limit, which must vanish.
        """
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
        """Change of every known nodal potential with the circulation, shape (nodes,).

        On the outer boundary this is the potential of a vortex in compressible flow.
        """
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
        """Upstream cells along and across the grid lines, and the share of the first direction.

        Parameters
        ----------
        velocity : np.ndarray
            Velocities in the cells, shape (E, 2).

        Returns
        -------
        tuple[np.ndarray, np.ndarray, np.ndarray]
            Cell numbers upstream in the first and second index, and weights in [0, 1], each (E,).
        """
        along, across = np.einsum("ei,eik->ke", velocity, self._to_index)
        i, j = np.divmod(np.arange(len(self.nodes)), self._cells[1])
        i_up = np.clip(i - np.sign(along).astype(int), 0, self._cells[0] - 1)
        j_up = np.clip(j - np.sign(across).astype(int), 0, self._cells[1] - 1)
        total = np.maximum(np.abs(along) + np.abs(across), 1e-300)
        return i_up * self._cells[1] + j, i * self._cells[1] + j_up, np.abs(along) / total
