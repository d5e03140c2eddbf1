import numpy as np
import pytest
import pyvista as pv
import refinement

from physicsnemo_flarepp.evaluation import load_run, predict_case
from tests.evaluation import making


def cell_areas(mesh):
    return mesh.compute_cell_sizes(length=False, volume=False)["Area"]


@pytest.fixture(scope="module")
def graded():
    """An ellipsoid whose rear is finer."""
    mesh = pv.Icosphere(nsub=3).scale((2.0, 1.0, 0.6))
    rear = mesh.cell_centers().points[:, 0] > 0.5
    parts = [mesh.extract_cells(part).extract_surface(algorithm=None) for part in (~rear, rear)]
    return parts[0].append_polydata(parts[1].subdivide(1, "linear")).clean()


def test_changed_meshes_are_the_same_surface(graded):
    total = cell_areas(graded).sum()
    for name, change in refinement.CHANGES.items():
        changed = change(graded.copy())
        assert cell_areas(changed).sum() == pytest.approx(total, rel=0.05), name
        np.testing.assert_allclose(changed.bounds, graded.bounds, atol=0.15)


def test_changes_do_what_their_names_say(graded):
    def front(mesh):
        return np.count_nonzero(mesh.cell_centers().points[:, 0] < -2 / 3)

    refined = refinement.refine_front(graded)
    assert front(refined) == pytest.approx(16 * front(graded), rel=0.05)
    assert refined.n_cells - front(refined) == pytest.approx(
        graded.n_cells - front(graded), rel=0.05
    )
    assert refinement.decimate(graded).n_cells == pytest.approx(graded.n_cells / 2, rel=0.05)
    before, after = (cell_areas(mesh) for mesh in (graded, refinement.remesh(graded)))
    assert after.std() / after.mean() < before.std() / before.mean()


def test_the_own_mesh_gives_the_errors_of_the_test_cases(tmp_path):
    surfaces = making.write_surfaces(tmp_path / "set")
    errors = {}
    for weights in ("none", "measure"):
        data = making.surface_data(surfaces, weights=weights)
        run = load_run(making.write_run(tmp_path / weights, data), device="cpu")
        errors[weights] = refinement.measure(run, 1)
        expected = np.mean(list(predict_case(run, 0).errors.values()))
        assert errors[weights]["own mesh"] == pytest.approx(expected, rel=1e-4)
    refinement.draw(refinement.by_seeds(errors), tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def write_clouds(root, n=3, n_points=972):
    """Square plates with a round hole, in the layout of Elasticity."""
    generator = np.random.default_rng(0)
    points = generator.uniform(-1, 1, (n, 2 * n_points, 2))
    points = np.stack([p[np.linalg.norm(p, axis=1) > 0.3][:n_points] for p in points])
    root.mkdir()
    np.save(root / "Random_UnitCell_XY_10.npy", points.transpose(1, 2, 0))
    np.save(root / "Random_UnitCell_sigma_10.npy", np.cos(3 * points[..., 0]).T)
    return {
        "root": str(root),
        "reader": {"_target_": "GeoFNOReader", "name": "elasticity"},
        "normalization": {"fields": "gaussian"},
        "n_train": 2,
        "n_test": 1,
        "weights": "measure",
    }


def test_planar_clouds_are_changed_through_their_triangles(tmp_path):
    run = load_run(making.write_run(tmp_path / "run", write_clouds(tmp_path / "set")), device="cpu")
    errors = refinement.measure(run, None)
    expected = np.mean(list(predict_case(run, 0).errors.values()))
    assert errors["own mesh"] == pytest.approx(expected, rel=1e-3)
    # Twice the points, at most a few percent of another answer: the weights make up for it.
    assert errors["front third x16"] == pytest.approx(expected, rel=0.05)
    assert set(errors) == set(refinement.CHANGES)
