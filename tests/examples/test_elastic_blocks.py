import elastic_blocks
import numpy as np
import pytest
import pyvista as pv

pytestmark = pytest.mark.slow
CASE = {
    "length_x": 0.8,
    "length_y": 1.2,
    "length_z": 1.5,
    "young": 10.0,
    "poisson": 0.3,
    "traction_x": 0.3,
    "traction_y": -0.2,
    "traction_z": 1.0,
    "loaded": 0.55,
}


def test_loads_add_up_to_traction_times_square_whatever_the_cells():
    for cells in (3, 10):
        shares = elastic_blocks._loaded_shares(cells, 0.55)
        assert shares.sum() == pytest.approx(0.55)
        np.testing.assert_allclose(shares, shares[::-1], atol=1e-12)


def test_a_beam_bends_as_timoshenko_says():
    beam = CASE | {"length_x": 0.1, "length_y": 0.1, "length_z": 0.4, "poisson": 0.0, "loaded": 1.0}
    beam |= {"traction_x": 0.01, "traction_y": 0.0, "traction_z": 0.0}
    tips = []
    for cells in (5, 10):
        nodes, displacement = elastic_blocks.solve(beam, cells)
        tips.append(displacement[nodes[:, 2] == 0.4, 0].mean())
    converged = (4 * tips[1] - tips[0]) / 3  # errors fall with the square of the cells
    force, area, inertia = 1e4 * 0.1**2, 0.1**2, 0.1**4 / 12
    bending, shear = force * 0.4**3 / (3 * 10e9 * inertia), force * 0.4 / (5 / 6 * 5e9 * area)
    assert converged == pytest.approx(1e3 * (bending + shear), rel=0.02)


def test_rigid_motions_cost_no_energy_and_stretching_does():
    sizes = np.array([0.1, 0.2, 0.3])
    stiffness = elastic_blocks.element_stiffness(sizes, 10.0, 0.3)
    corners = elastic_blocks.CORNERS * sizes
    for axis in range(3):
        turned = np.cross(np.eye(3)[axis], corners)
        np.testing.assert_allclose(stiffness @ turned.ravel(), 0, atol=1e-12)
        stretched = np.zeros_like(corners)
        stretched[:, axis] = corners[:, axis]
        # E (1 - nu) / ((1 + nu) (1 - 2 nu)) per volume, the sides held
        energy = 10.0 * 0.7 / (1.3 * 0.4) * sizes.prod()
        assert stretched.ravel() @ stiffness @ stretched.ravel() == pytest.approx(energy)


def test_a_small_set_is_written_as_files_and_trains_as_own_data(tmp_path, monkeypatch):
    for name, value in {"N_TRAIN": 12, "N_TEST": 2, "CELLS": 3, "STEPS": 6, "BATCH": 2}.items():
        monkeypatch.setattr(elastic_blocks, name, value)
    monkeypatch.setattr(elastic_blocks, "POINTS", 32)
    elastic_blocks.make_set(tmp_path / "set", 14)
    block = pv.read(tmp_path / "set/block_003.vtu")
    bottom = block.points[:, 2] == 0
    moved = np.linalg.norm(block.point_data["displacement"], axis=1)
    assert not moved[bottom].any() and moved[~bottom].all()
    assert 0 < elastic_blocks.linear_error(tmp_path / "set") < 10
    for defaults in ("old", "new"):
        rows = elastic_blocks.curve(tmp_path / "set", "FLARE++", defaults, 0, tmp_path / "runs")
        assert rows[-1]["step"] == 6 and np.isfinite(rows[-1]["test error"])


def test_baselines_are_compared_on_cubes(tmp_path, capsys):
    elastic_blocks.make_set(tmp_path / "cubes", 20, one_shape=True)
    cube = pv.read(tmp_path / "cubes/block_003.vtu")
    assert cube.n_points == 343 and cube.bounds[1::2] == (1, 1, 1)
    table = tmp_path / "cubes.csv"
    for _ in range(2):  # the second time, all are there
        elastic_blocks.compare_baselines(
            tmp_path / "cubes", tmp_path / "runs", ["none", "linear"], [3], [0], table
        )
    lines = capsys.readouterr().out.splitlines()
    assert lines[-4].split("|")[1:-1] == [" steps ", " split ", " none ", " linear "]
    assert len(table.read_text().splitlines()) == 3
