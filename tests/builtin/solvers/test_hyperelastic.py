"""The elasticity solver against Kirsch, uniaxial tension, force balance and refinement."""

import numpy as np
import pytest
from skfem import MeshTri

from physicsnemo_flarepp.builtin.sets import CaseId, case_seed, elasticity
from physicsnemo_flarepp.builtin.solvers import Unsolvable, hyperelastic
from physicsnemo_flarepp.builtin.solvers.triangulate import (
    CENTRE,
    CellMesh,
    triangulate_cell,
    void_curve,
)

pytestmark = pytest.mark.slow


def circle(size):
    return lambda angle: np.full(np.shape(angle), size)


def void_nodes(mesh):
    """Numbers and angles of the nodes on the void."""
    offset = mesh.nodes - CENTRE
    angle = np.arctan2(offset[:, 1], offset[:, 0])
    distance = np.linalg.norm(offset, axis=1)
    number = np.flatnonzero(np.abs(distance - mesh.radius(angle)) < 1e-9)
    return number, angle[number]


def refined(mesh):
    """The mesh with every triangle cut in four and new nodes on the void moved to its curve."""
    fine = MeshTri(mesh.nodes.T.copy(), mesh.triangles.T.copy()).refined()
    nodes = fine.p.T.copy()
    edge = np.unique(fine.facets[:, fine.boundary_facets()])
    offset = nodes[edge] - CENTRE
    inner = np.abs(offset).max(axis=1) < 0.5 - 1e-9
    angle = np.arctan2(offset[inner, 1], offset[inner, 0])
    nodes[edge[inner]] = void_curve(mesh.radius, angle)
    return CellMesh(nodes, fine.t.T, mesh.radius)


def test_small_circular_void_concentrates_stress_as_kirsch():
    mesh = triangulate_cell(circle(0.06), 3000, np.random.default_rng(0))
    load = 1e-3
    stress = hyperelastic.von_mises_stress(hyperelastic.solve_cell(mesh, load)) / load
    number, angle = void_nodes(mesh)
    kirsch = np.abs(1 + 2 * np.cos(2 * angle))  # hoop stress, pull along y
    assert stress[number].max() == pytest.approx(3, rel=0.05)
    np.testing.assert_allclose(stress[number], kirsch, atol=0.2)
    far = np.all(np.abs(mesh.nodes - [0.5, 0.9]) < 0.05, axis=1)
    assert stress[far].mean() == pytest.approx(1, rel=0.05)


def test_stress_and_tangent_are_derivatives_of_the_energy():
    rng = np.random.default_rng(0)
    gradient = np.eye(2)[..., None] + 0.3 * rng.normal(size=(2, 2, 5))
    step = 1e-5
    for i, k in np.ndindex(2, 2):
        shift = np.zeros((2, 2, 1))
        shift[i, k] = step
        slope = hyperelastic.energy(gradient + shift) - hyperelastic.energy(gradient - shift)
        np.testing.assert_allclose(
            hyperelastic.first_piola_stress(gradient)[i, k], slope / (2 * step), rtol=1e-5
        )
        slope = hyperelastic.first_piola_stress(gradient + shift)
        slope = (slope - hyperelastic.first_piola_stress(gradient - shift)) / (2 * step)
        tangent = hyperelastic.stress_tangent(gradient)[:, :, i, k]
        np.testing.assert_allclose(tangent, slope, rtol=1e-5, atol=1e-3)


def test_small_strains_are_linear_plane_stress_of_an_incompressible_solid():
    strain = 1e-7 * np.array([[1.0, 0.4], [0.4, -0.3]])
    young = 6 * (hyperelastic.C1 + hyperelastic.C2)
    trace = np.trace(strain) * np.eye(2)
    hooke = young / (1 - 0.25) * (0.5 * strain + 0.5 * trace)
    stress = hyperelastic.first_piola_stress(np.eye(2) + strain)
    np.testing.assert_allclose(stress, hooke, rtol=1e-5)


def test_uniaxial_tension_has_the_stress_of_the_closed_form():
    stretch = 1.2
    stress = hyperelastic.von_mises_stress(np.diag([stretch**-0.5, stretch]))
    c1, c2 = hyperelastic.C1, hyperelastic.C2
    assert stress == pytest.approx(2 * (stretch**2 - 1 / stretch) * (c1 + c2 / stretch))


def test_force_through_the_ligaments_is_the_load():
    # The nominal stress along y integrated over the section through the void's centre.
    mesh = triangulate_cell(circle(0.3), 972, np.random.default_rng(1))
    stress = hyperelastic.first_piola_stress(hyperelastic.solve_cell(mesh, elasticity.TRACTION))
    strip = np.abs(mesh.nodes[:, 1] - 0.5) < 0.02
    x, pull = mesh.nodes[strip, 0], stress[1, 1, strip]
    distance = np.abs(x - 0.5)
    fit = np.polynomial.Polynomial.fit(distance, pull, 5).integ()
    assert 2 * (fit(0.5) - fit(0.3)) == pytest.approx(elasticity.TRACTION, rel=0.03)


def test_refining_the_mesh_converges_away_from_the_clamped_corners():
    # At the two clamped corners the exact stress is infinite.
    radius = elasticity.random_radius(np.random.default_rng(1))
    coarse = triangulate_cell(radius, 200, np.random.default_rng(1))
    middle = refined(coarse)
    stresses = [
        hyperelastic.von_mises_stress(hyperelastic.solve_cell(mesh, elasticity.TRACTION))
        for mesh in (coarse, middle, refined(middle))
    ]
    to_corner = np.linalg.norm(np.abs(coarse.nodes - [0.5, 0.0]) - [0.5, 0.0], axis=1)
    rough, better, best = (stress[:200][to_corner > 0.1] for stress in stresses)
    rough_error, better_error = (
        np.linalg.norm(stress - best) / np.linalg.norm(best) for stress in (rough, better)
    )
    assert better_error < 0.03
    assert better_error < 0.5 * rough_error


def test_large_strains_matter_at_the_load_of_the_set():
    mesh = triangulate_cell(circle(0.3), 400, np.random.default_rng(0))
    small = hyperelastic.solve_cell(mesh, 1e-3)
    stretch = hyperelastic.solve_cell(mesh, elasticity.TRACTION)
    identity = np.eye(2)[..., None]
    linear = 1e5 * (small - identity) + identity
    assert np.abs(stretch - linear).max() > 0.1
    assert np.linalg.det(stretch.T).min() > 0.3


def test_an_impossible_load_is_an_error_that_names_the_remedy():
    mesh = triangulate_cell(circle(0.3), 300, np.random.default_rng(0))
    with pytest.raises(Unsolvable, match="no equilibrium.*smaller traction"):
        hyperelastic.solve_cell(mesh, -5000.0)


def test_a_void_whose_load_must_come_in_steps_is_solved():
    # Newton under the whole load at once gets stuck here.
    rng = np.random.default_rng(case_seed(0, CaseId("train", 69)))
    mesh = triangulate_cell(elasticity.random_radius(rng), elasticity.N_NODES, rng)
    most = hyperelastic.solve_cell(mesh, 0.9 * elasticity.TRACTION)
    whole = hyperelastic.solve_cell(mesh, elasticity.TRACTION)
    stresses = [hyperelastic.von_mises_stress(gradient).max() for gradient in (most, whole)]
    assert 800 < stresses[0] < stresses[1] < 1.2 * stresses[0]
