"""Plane-stress deformation of an incompressible Rivlin-Saunders solid by quadratic elements.

The energy per reference volume is C1 (I1 - 3) + C2 (I2 - 3). In plane stress incompressibility
fixes the thickness stretch to 1 / J with J = det F of the in-plane gradient, so the energy is a
function of the in-plane deformation alone and needs neither a pressure nor a penalty:

    I1 = I + J**-2,   I2 = I / J**2 + J**2,   I = F : F.

For small strains this is linear plane stress with E = 6 (C1 + C2) and Poisson number 1/2. Tensors
have their components first, as in scikit-fem: F has the shape (2, 2, ...).
"""

import numpy as np
from scipy.sparse import coo_array
from skfem import Basis, ElementTriP2, ElementVector, FacetBasis, LinearForm, MeshTri, MeshTri2
from skfem.helpers import ddot, grad

from . import Unsolvable, factorise
from .triangulate import CENTRE, CellMesh, void_curve

C1, C2 = 186.3, 9.79  # kPa

# Convergence is quadratic: a step this small leaves an error near rounding.
_TOLERANCE, _ROUGH_TOLERANCE = 1e-5, 1e-2
_NEWTON_LIMIT = 40
_HALVINGS = 12
_FIRST_LOAD_STEP, _LEAST_LOAD_STEP = 0.5, 1 / 64

_IDENTITY = np.einsum("ij,kl->ikjl", np.eye(2), np.eye(2))
# dH_ik / dF_jl of the cofactor H = [[F22, -F21], [-F12, F11]].
_COFACTOR_SLOPE = np.zeros((2, 2, 2, 2))
_COFACTOR_SLOPE[0, 0, 1, 1] = _COFACTOR_SLOPE[1, 1, 0, 0] = 1.0
_COFACTOR_SLOPE[0, 1, 1, 0] = _COFACTOR_SLOPE[1, 0, 0, 1] = -1.0


def _invariants(gradient: np.ndarray) -> tuple[np.ndarray, ...]:
    """I = F : F, J = det F, the cofactor of F, and the energy's derivatives with I and J."""
    (a, b), (c, d) = gradient
    first, volume = np.sum(gradient**2, axis=(0, 1)), a * d - b * c
    by_volume = -2 * (C1 + C2 * first) * volume**-3 + 2 * C2 * volume
    return first, volume, np.array([[d, -c], [-b, a]]), C1 + C2 * volume**-2, by_volume


def energy(gradient: np.ndarray) -> np.ndarray:
    """Energy per reference volume in kPa, +inf where the material would be turned inside out."""
    (a, b), (c, d) = gradient
    first, volume = np.sum(gradient**2, axis=(0, 1)), a * d - b * c
    safe = np.where(volume > 0, volume, 1.0)
    value = C1 * (first + safe**-2 - 3) + C2 * (first / safe**2 + safe**2 - 3)
    return np.where(volume > 0, value, np.inf)


def first_piola_stress(gradient: np.ndarray) -> np.ndarray:
    """First Piola-Kirchhoff stress dW/dF in kPa, (2, 2, ...)."""
    _, _, cofactor, by_first, by_volume = _invariants(gradient)
    return 2 * by_first * gradient + by_volume * cofactor


def stress_tangent(gradient: np.ndarray) -> np.ndarray:
    """Derivative d2W/dF dF of the stress, (2, 2, 2, 2, ...)."""
    first, volume, cofactor, by_first, by_volume = _invariants(gradient)
    mixed = -2 * C2 * volume**-3
    second = 6 * (C1 + C2 * first) * volume**-4 + 2 * C2
    crossed = gradient[:, :, None, None] * (mixed * cofactor)
    return (
        np.multiply.outer(2 * _IDENTITY, by_first)
        + 2 * (crossed + crossed.swapaxes(0, 2).swapaxes(1, 3))
        + cofactor[:, :, None, None] * (second * cofactor)
        + np.multiply.outer(_COFACTOR_SLOPE, by_volume)
    )


def von_mises_stress(gradient: np.ndarray) -> np.ndarray:
    """Von Mises norm, in kPa, of the Cauchy stress P F^T: the volume is kept, the stress plane."""
    cauchy = np.einsum("ik...,jk...->ij...", first_piola_stress(gradient), gradient)
    (xx, xy), (_, yy) = cauchy
    return np.sqrt(xx**2 - xx * yy + yy**2 + 3 * xy**2)


def _quadratic_mesh(mesh: CellMesh) -> MeshTri2:
    """The mesh with curved elements along the void."""
    straight = MeshTri(mesh.nodes.T.copy(), mesh.triangles.T.copy())
    curved = MeshTri2.from_mesh(straight)
    boundary = straight.boundary_facets()
    middle = straight.p[:, straight.facets[:, boundary]].mean(axis=1).T - CENTRE
    inside = np.abs(middle).max(axis=1) < 0.5 - 1e-9
    on_void, middle = boundary[inside], middle[inside]
    angle = np.arctan2(middle[:, 1], middle[:, 0])
    points = curved.doflocs.copy()
    points[:, straight.nvertices + on_void] = void_curve(mesh.radius, angle).T
    return MeshTri2(points, curved.t)


class _Cell:
    """The clamped cell under its whole load: energies, forces and stiffness of displacements."""

    def __init__(self, mesh: CellMesh, traction: float) -> None:
        self.mesh, self._element = _quadratic_mesh(mesh), ElementVector(ElementTriP2())
        self._basis = Basis(self.mesh, self._element, intorder=4)
        self.moving = self._basis.complement_dofs(self._basis.get_dofs(lambda x: x[1] < 1e-9))
        top = self.mesh.facets_satisfying(lambda x: x[1] > 1 - 1e-9)
        self.load = LinearForm(lambda v, w: traction * v[1]).assemble(
            FacetBasis(self.mesh, self._element, facets=top)
        )
        # Gradients (T, A, Q, 2) of the scalar functions, of which the vector ones are made.
        scalar = [function[0].grad[0] for function in self._basis.basis[::2]]
        self._gradients = np.ascontiguousarray(np.stack(scalar).transpose(2, 0, 3, 1))
        local = self._basis.element_dofs.T
        self._rows = np.repeat(local, local.shape[1], axis=1).ravel()
        self._columns = np.tile(local, (1, local.shape[1])).ravel()

    def deformation(self, state: np.ndarray, basis: Basis | None = None) -> np.ndarray:
        """F = 1 + grad u at the quadrature points, (2, 2, T, Q)."""
        return np.eye(2)[..., None, None] + (basis or self._basis).interpolate(state).grad

    def energy(self, state: np.ndarray) -> float:
        return float(np.sum(self._basis.dx * energy(self.deformation(state))))

    def forces(self, deformation: np.ndarray) -> np.ndarray:
        form = LinearForm(lambda v, w: ddot(w["stress"], grad(v)))
        return form.assemble(self._basis, stress=first_piola_stress(deformation))

    def stiffness(self, deformation: np.ndarray) -> coo_array:
        """Tangent matrix, by own code: a form of scikit-fem takes four times as long."""
        cells, count, points, _ = self._gradients.shape
        modulus = stress_tangent(deformation) * self._basis.dx
        modulus = np.ascontiguousarray(modulus.transpose(4, 5, 1, 0, 2, 3))  # T, Q, k, i, j, l
        half = modulus.reshape(cells, points, 8, 2) @ self._gradients.transpose(0, 2, 3, 1)
        blocks = self._gradients.reshape(cells, count, -1) @ half.reshape(cells, 2 * points, -1)
        blocks = blocks.reshape(cells, count, 2, 2, count).transpose(0, 1, 2, 4, 3)
        return coo_array((blocks.ravel(), (self._rows, self._columns)), 2 * (self.load.size,))

    def nodal_deformation(self, state: np.ndarray) -> np.ndarray:
        """F at the vertices (2, 2, N), extrapolated from where it is most accurate and averaged."""
        basis = Basis(self.mesh, self._element, intorder=2)
        x, y = basis.quadrature[0]
        corners = np.array([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [1.0, 0.0, 1.0]])
        extrapolate = corners @ np.linalg.inv(np.stack([np.ones_like(x), x, y], axis=-1))
        at_corners = np.einsum("cq,ijtq->ijct", extrapolate, self.deformation(state, basis))
        vertices = self.mesh.t.ravel()
        sums = [np.bincount(vertices, part) for part in at_corners.reshape(4, -1)]
        return (np.stack(sums) / np.bincount(vertices)).reshape(2, 2, -1)


def solve_cell(mesh: CellMesh, traction: float) -> np.ndarray:
    """Deformation gradients (2, 2, N) at the nodes of a cell clamped below and pulled up above.

    ``traction`` is the dead load on the side y = 1 per reference area, in kPa. It is put on in
    steps that are halved where Newton fails: the first Newton step under the whole load can lead to
    where the tangent is not positive.
    """
    cell = _Cell(mesh, traction)
    state, reached, increment = np.zeros(cell.load.size), 0.0, _FIRST_LOAD_STEP
    while reached < 1.0:
        aim = min(1.0, reached + increment)
        found = _minimise(cell, aim, state, _TOLERANCE if aim == 1.0 else _ROUGH_TOLERANCE)
        if found is not None:
            state, reached = found, aim
        elif increment > _LEAST_LOAD_STEP:
            increment *= 0.5
        else:
            raise Unsolvable(
                f"no equilibrium beyond {reached:.0%} of the load of {traction:.4g} kPa; use a "
                "smaller traction or a smaller void"
            )
    return cell.nodal_deformation(state)


def _minimise(cell: _Cell, share: float, state: np.ndarray, tolerance: float) -> np.ndarray | None:
    """Displacements of least energy under a share of the load; None if Newton gets stuck."""
    load, moving = share * cell.load, cell.moving
    value = cell.energy(state) - load @ state
    for _ in range(_NEWTON_LIMIT):
        deformation = cell.deformation(state)
        residual = cell.forces(deformation) - load
        tangent = cell.stiffness(deformation).tocsc()[moving][:, moving]
        step = np.zeros(load.size)
        step[moving] = factorise(tangent, "MMD_AT_PLUS_A", 0.0).solve(-residual[moving])
        if np.abs(step).max() < tolerance:
            return state + step
        for _ in range(_HALVINGS):
            trial = cell.energy(state + step) - load @ (state + step)
            if trial <= value + 1e-12 * abs(value):
                break
            step = 0.5 * step
        else:
            return None
        state, value = state + step, trial
    return None
