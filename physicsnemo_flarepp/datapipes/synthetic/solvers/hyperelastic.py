"""Plane-stress deformation of an incompressible Rivlin-Saunders solid by quadratic elements.

The energy per reference volume is C1 (I1 - 3) + C2 (I2 - 3). In plane stress incompressibility
fixes the thickness stretch to 1 / J with J = det F of the in-plane gradient, so the energy is a
function of the in-plane deformation alone and needs neither a pressure nor a penalty:

    I1 = I + J**-2,   I2 = I / J**2 + J**2,   I = F : F.

For small strains this is linear plane stress with E = 6 (C1 + C2) and Poisson number 1/2.
"""

import numpy as np
from scipy.sparse import coo_array
from skfem import Basis, ElementTriP2, FacetBasis, MeshTri, MeshTri2

from .triangulate import CENTRE, CellMesh, void_curve
from .unsolvable import Unsolvable, factorise

C1, C2 = 186.3, 9.79  # kPa

# Convergence is quadratic: a step this small leaves an error near rounding.
_TOLERANCE, _ROUGH_TOLERANCE = 1e-5, 1e-2
_NEWTON_LIMIT = 40
_HALVINGS = 12
_FIRST_LOAD_STEP, _LEAST_LOAD_STEP = 0.5, 1 / 64

# dH_ik / dF_jl of the cofactor H = [[F22, -F21], [-F12, F11]].
_COFACTOR_SLOPE = np.zeros((2, 2, 2, 2))
_COFACTOR_SLOPE[0, 0, 1, 1] = _COFACTOR_SLOPE[1, 1, 0, 0] = 1.0
_COFACTOR_SLOPE[0, 1, 1, 0] = _COFACTOR_SLOPE[1, 0, 0, 1] = -1.0


def _invariants(gradient: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """I = F : F, J = det F and the cofactor of F for gradients of shape (..., 2, 2)."""
    (a, b), (c, d) = np.moveaxis(gradient, (-2, -1), (0, 1))
    cofactor = np.stack([np.stack([d, -c], -1), np.stack([-b, a], -1)], -2)
    return np.sum(gradient**2, axis=(-2, -1)), a * d - b * c, cofactor


def energy(gradient: np.ndarray) -> np.ndarray:
    """Energy per reference volume in kPa, +inf where the material would be turned inside out.

    Parameters
    ----------
    gradient : np.ndarray
        In-plane deformation gradients, shape (..., 2, 2).

    Returns
    -------
    np.ndarray
        Energy, shape (...).

    Examples
    --------
    >>> energy(np.eye(2)).item()
    0.0
    """
    first, volume, _ = _invariants(gradient)
    safe = np.where(volume > 0, volume, 1.0)
    value = C1 * (first + safe**-2 - 3) + C2 * (first / safe**2 + safe**2 - 3)
    return np.where(volume > 0, value, np.inf)


def first_piola_stress(gradient: np.ndarray) -> np.ndarray:
    """First Piola-Kirchhoff stress dW/dF in kPa, shape (..., 2, 2).

    Examples
    --------
    >>> first_piola_stress(np.eye(2)).tolist()
    [[0.0, 0.0], [0.0, 0.0]]
    """
    first, volume, cofactor = _invariants(gradient)
    by_first = C1 + C2 * volume**-2
    by_volume = -2 * (C1 + C2 * first) * volume**-3 + 2 * C2 * volume
    return 2 * by_first[..., None, None] * gradient + by_volume[..., None, None] * cofactor


def stress_tangent(gradient: np.ndarray) -> np.ndarray:
    """Derivative d2W/dF dF of the stress, shape (..., 2, 2, 2, 2).

    Examples
    --------
    >>> stress_tangent(np.eye(2)).shape
    (2, 2, 2, 2)
    """
    first, volume, cofactor = _invariants(gradient)
    by_first = C1 + C2 * volume**-2
    by_volume = -2 * (C1 + C2 * first) * volume**-3 + 2 * C2 * volume
    mixed = -2 * C2 * volume**-3
    second = 6 * (C1 + C2 * first) * volume**-4 + 2 * C2

    def scaled(factor: np.ndarray, tensor: np.ndarray) -> np.ndarray:
        return factor[..., None, None, None, None] * tensor

    crossed = np.einsum("...ik,...jl->...ikjl", gradient, cofactor)
    crossed = crossed + np.einsum("...ik,...jl->...ikjl", cofactor, gradient)
    squared = np.einsum("...ik,...jl->...ikjl", cofactor, cofactor)
    identity = np.einsum("ij,kl->ikjl", np.eye(2), np.eye(2))
    return (
        scaled(2 * by_first, identity)
        + scaled(2 * mixed, crossed)
        + scaled(second, squared)
        + scaled(by_volume, _COFACTOR_SLOPE)
    )


def von_mises_stress(gradient: np.ndarray) -> np.ndarray:
    """Von Mises norm of the Cauchy stress in kPa, shape (...).

    The out-of-plane stress is zero and the volume is kept, so the Cauchy stress is P F^T.

    Examples
    --------
    >>> stretch = 1.2
    >>> uniaxial = von_mises_stress(np.diag([stretch**-0.5, stretch]))
    >>> bool(np.isclose(uniaxial, 2 * (stretch**2 - 1 / stretch) * (C1 + C2 / stretch)))
    True
    """
    cauchy = first_piola_stress(gradient) @ np.swapaxes(gradient, -1, -2)
    xx, yy, xy = cauchy[..., 0, 0], cauchy[..., 1, 1], cauchy[..., 0, 1]
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


def _basis_gradients(basis: Basis) -> np.ndarray:
    """Gradients of the scalar basis at the quadrature points, (T, Q, A, 2)."""
    return np.stack([function[0].grad for function in basis.basis]).transpose(2, 3, 0, 1)


def _deformation_gradient(gradients: np.ndarray, displacement: np.ndarray) -> np.ndarray:
    """F = 1 + grad u at the quadrature points from element displacements (T, A, 2)."""
    return np.eye(2) + np.einsum("tai,tqak->tqik", displacement, gradients)


def _top_load(mesh: MeshTri2, element: ElementTriP2, traction: float) -> np.ndarray:
    """Nodal forces (D,) of a unit-width dead load on the side y = 1, upward."""
    top = FacetBasis(mesh, element, facets=mesh.facets_satisfying(lambda x: x[1] > 1 - 1e-9))
    forces = np.zeros(top.N)
    for a, function in enumerate(top.basis):
        np.add.at(forces, top.element_dofs[a], traction * np.sum(function[0] * top.dx, axis=1))
    return forces


def solve_cell(mesh: CellMesh, traction: float) -> np.ndarray:
    """Deformation gradients at the nodes of a cell clamped below and pulled up at its top.

    Parameters
    ----------
    mesh : CellMesh
        The unit cell with its void.
    traction : float
        Dead load on the side y = 1 per reference area, in kPa.

    Returns
    -------
    np.ndarray
        In-plane deformation gradients at the nodes of the mesh, shape (N, 2, 2).

    Raises
    ------
    RuntimeError
        If Newton's method finds no equilibrium.
    """
    element = ElementTriP2()
    quadratic = _quadratic_mesh(mesh)
    basis = Basis(quadratic, element, intorder=4)
    gradients, weights = _basis_gradients(basis), basis.dx
    nodes = basis.element_dofs.T
    unknowns = (2 * nodes[:, :, None] + np.arange(2)).reshape(len(nodes), -1)
    bottom = basis.get_dofs(lambda x: x[1] < 1e-9).flatten()
    moving = np.setdiff1d(np.arange(2 * basis.N), np.concatenate([2 * bottom, 2 * bottom + 1]))
    load = np.zeros((basis.N, 2))
    load[:, 1] = _top_load(quadratic, element, traction)
    displacement = _load_in_steps(gradients, weights, unknowns, moving, load)
    return _nodal_gradients(quadratic, element, displacement)


def _load_in_steps(
    gradients: np.ndarray,
    weights: np.ndarray,
    unknowns: np.ndarray,
    moving: np.ndarray,
    load: np.ndarray,
) -> np.ndarray:
    """Displacements (D, 2) under the load, put on in steps that are halved where Newton fails.

    The first Newton step under the whole load can lead to where the tangent is not positive.
    """
    state, reached, increment = np.zeros(load.size), 0.0, _FIRST_LOAD_STEP
    while reached < 1.0:
        aim = min(1.0, reached + increment)
        tolerance = _TOLERANCE if aim == 1.0 else _ROUGH_TOLERANCE
        found = _minimise(
            gradients, weights, unknowns, moving, aim * load.ravel(), state, tolerance
        )
        if found is not None:
            state, reached = found, aim
        elif increment > _LEAST_LOAD_STEP:
            increment *= 0.5
        else:
            raise Unsolvable(
                f"no equilibrium beyond {reached:.0%} of the load of {load.sum():.4g} kPa; use a "
                "smaller traction or a smaller void"
            )
    return state.reshape(-1, 2)


def _minimise(
    gradients: np.ndarray,
    weights: np.ndarray,
    unknowns: np.ndarray,
    moving: np.ndarray,
    load: np.ndarray,
    start: np.ndarray,
    tolerance: float,
) -> np.ndarray | None:
    """Displacements (2 D,) of least potential energy, or None if Newton's descent gets stuck."""
    count, local = load.size, unknowns.shape[1]
    rows = np.repeat(unknowns, local, axis=1).ravel()
    columns = np.tile(unknowns, (1, local)).ravel()

    def gradient_of(state: np.ndarray) -> np.ndarray:
        return _deformation_gradient(gradients, state[unknowns].reshape(len(unknowns), -1, 2))

    def potential(state: np.ndarray) -> float:
        return float(np.sum(weights * energy(gradient_of(state))) - load @ state)

    state, value = start, potential(start)
    for _ in range(_NEWTON_LIMIT):
        deformation = gradient_of(state)
        stress = first_piola_stress(deformation) * weights[..., None, None]
        forces = np.einsum("tqik,tqak->tai", stress, gradients)
        residual = np.bincount(unknowns.ravel(), forces.ravel(), count) - load
        modulus = stress_tangent(deformation) * weights[..., None, None, None, None]
        half = np.einsum("tqikjl,tqbl->tqikbj", modulus, gradients, optimize=True)
        blocks = np.einsum("tqak,tqikbj->taibj", gradients, half, optimize=True)
        tangent = coo_array((blocks.ravel(), (rows, columns)), (count, count)).tocsc()
        factors = factorise(
            tangent[moving][:, moving], permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0
        )
        step = np.zeros(count)
        step[moving] = factors.solve(-residual[moving])
        if np.abs(step).max() < tolerance:
            return state + step
        for _ in range(_HALVINGS):
            trial = potential(state + step)
            if trial <= value + 1e-12 * abs(value):
                break
            step = 0.5 * step
        else:
            return None
        state, value = state + step, trial
    return None


def _nodal_gradients(mesh: MeshTri2, element: ElementTriP2, displacement: np.ndarray) -> np.ndarray:
    """Deformation gradients at the vertices, averaged over the elements that meet there.

    In each element they are extrapolated linearly from the three points of the second-order rule,
    where gradients of quadratic elements are most accurate.
    """
    basis = Basis(mesh, element, intorder=2)
    local = displacement[basis.element_dofs.T]
    inside = _deformation_gradient(_basis_gradients(basis), local)
    x, y = basis.quadrature[0]
    corners = np.array([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [1.0, 0.0, 1.0]])
    extrapolate = corners @ np.linalg.inv(np.stack([np.ones_like(x), x, y], axis=-1))
    at_corners = np.einsum("cq,tqij->tcij", extrapolate, inside)
    vertices = mesh.t.T.ravel()
    shares = np.bincount(vertices)
    sums = np.stack([np.bincount(vertices, part) for part in at_corners.reshape(-1, 4).T], axis=-1)
    return (sums / shares[:, None]).reshape(-1, 2, 2)
