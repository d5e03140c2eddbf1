"""Random cells with voids and the files of the set."""

import numpy as np
import pytest

from physicsnemo_flarepp.builtin.sets import elasticity
from physicsnemo_flarepp.builtin.solvers import hyperelastic
from physicsnemo_flarepp.builtin.solvers.triangulate import (
    triangle_areas,
    triangulate_cell,
)

pytestmark = pytest.mark.slow


def test_random_cells_are_sound():
    for seed in range(5):
        rng = np.random.default_rng(seed)
        mesh = triangulate_cell(elasticity.random_radius(rng), elasticity.N_NODES, rng)
        areas = triangle_areas(mesh.nodes, mesh.triangles)
        assert mesh.nodes.shape == (972, 2) and areas.min() > 0
        assert mesh.nodes.min() == 0 and mesh.nodes.max() == 1
        angle = np.linspace(0, 2 * np.pi, 4001)
        void = 0.5 * np.trapezoid(mesh.radius(angle) ** 2, angle)
        assert areas.sum() == pytest.approx(1 - void, rel=2e-3)

        gradient = hyperelastic.solve_cell(mesh, elasticity.TRACTION)
        stress = hyperelastic.von_mises_stress(gradient)
        assert np.all(np.isfinite(stress)) and np.linalg.det(gradient.T).min() > 0.2
        assert 100 < stress.mean() < 300 and 300 < stress.max() < 3000


def test_voids_have_the_moments_of_the_2000_published_ones():
    angle = 2 * np.pi * np.arange(41) / 41
    rngs = map(np.random.default_rng, range(4000))
    radii = np.stack([elasticity.random_radius(rng)(angle) for rng in rngs])
    # Measured on Geo-FNO's Random_UnitCell_rr_10.npy; tolerances are about three standard errors.
    ranges = radii.max(1) - radii.min(1)
    assert radii.mean() == pytest.approx(0.30005, abs=3e-4)
    assert radii.mean(1).std() == pytest.approx(0.00268, rel=0.08)
    assert radii[:, 0].std() == pytest.approx(0.05074, rel=0.06)
    assert ranges.mean() == pytest.approx(0.15732, abs=2e-3)
    assert ranges.std() == pytest.approx(0.02094, rel=0.06)
    waves = np.abs(np.fft.rfft(np.log(0.2 / (radii - 0.2) - 1), axis=1)) / 41
    found = np.sqrt(2 * (waves**2).mean(0))
    expected = [0.899, 0.7135, 0.4993, 0.3554, 0.2687]
    np.testing.assert_allclose(found[1:6], expected, rtol=0.05)
    assert found[0] < 1e-9 and found[6:].max() < 1e-9


def test_a_case_is_a_function_of_its_seed():
    first, again, other = (elasticity.solve_case(seed) for seed in (3, 3, 4))
    for name in first:
        np.testing.assert_array_equal(first[name], again[name])
        assert not np.allclose(first[name], other[name])


def test_files_have_the_published_layout(tmp_path):
    cases = [
        {"nodes": np.full((972, 2), k) + [0.25, 0.5], "stress": np.arange(972.0) + 1000 * k}
        for k in range(3)
    ]
    elasticity.SET.assemble(iter(cases), tmp_path, 2, 1, 0)
    nodes = np.load(tmp_path / "Random_UnitCell_XY_10.npy")
    stress = np.load(tmp_path / "Random_UnitCell_sigma_10.npy")
    assert nodes.shape == (972, 2, 3) and stress.shape == (972, 3)
    np.testing.assert_array_equal(nodes[7], [[0.25, 1.25, 2.25], [0.5, 1.5, 2.5]])
    np.testing.assert_array_equal(stress[5], [5, 1005, 2005])
