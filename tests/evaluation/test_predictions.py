"""Predictions of test cases and at points of files, against plain formulas."""

import numpy as np
import pytest
import pyvista as pv
import torch

from physicsnemo_flarepp.evaluation import (
    case_mesh,
    load_run,
    predict_case,
    predict_file,
)
from physicsnemo_flarepp.meshes import mesh_suffix
from physicsnemo_flarepp.runs.trained_run import can_stream
from tests.evaluation import making


def test_a_whole_surface_is_predicted_in_physical_units(loaded, surfaces):
    case = predict_case(loaded, "run_4")
    mesh = pv.read(surfaces / "run_4" / "boundary_4.vtp")
    assert (case.case_id, case.index, case.association) == ("run_4", 1, "cell")
    assert case.field_names == ("pMeanTrim", *(f"wallShearStressMeanTrim_{a}" for a in "xyz"))
    np.testing.assert_allclose(case.coordinates, mesh.cell_centers().points, atol=1e-5)
    np.testing.assert_allclose(case.target[:, 0], mesh["pMeanTrim"], atol=1e-3)
    np.testing.assert_allclose(case.target[:, 1:], mesh["wallShearStressMeanTrim"], atol=1e-4)
    assert case.mesh.n_cells == len(case.prediction) == 320
    # The formula of the normaliser and the plain forward, written out.
    statistics = loaded.normalizer.state_dict()
    x = torch.tensor(mesh.cell_centers().points, dtype=torch.float32)
    x = (x - statistics["coordinates.shift"]) / statistics["coordinates.scale"]
    with torch.no_grad():
        y = loaded.model(x[None])[0]
    y = y * statistics["fields.scale"] + statistics["fields.shift"]
    np.testing.assert_allclose(case.prediction, y, rtol=1e-4, atol=1e-3)


def test_features_and_globals_are_given_to_the_model(featured_run, surfaces):
    run = load_run(featured_run, device="cpu")
    case = predict_case(run, 0)
    mesh = pv.read(surfaces / "run_3" / "boundary_3.vtp").compute_normals(
        point_normals=False, auto_orient_normals=False, consistent_normals=False
    )
    assert case.feature_names == ("normals_x", "normals_y", "normals_z", "areas")
    np.testing.assert_allclose(case.features[:, :3], mesh["Normals"], atol=1e-5)
    np.testing.assert_allclose(case.features[:, 3], mesh.compute_cell_sizes()["Area"], atol=1e-6)


def test_grids_keep_their_order_and_per_point_statistics(darcy_run):
    run = load_run(darcy_run, device="cpu")
    case = predict_case(run, -1)
    assert isinstance(case.mesh, pv.StructuredGrid) and case.mesh.n_cells == 64
    np.testing.assert_allclose(case.mesh.points[:, :2], case.coordinates, atol=1e-6)
    assert case.feature_names == ("a",)
    np.testing.assert_allclose(sorted(set(np.round(case.features[:, 0], 3))), [3, 12])


def test_a_model_that_cannot_stream_is_called_at_once(tmp_path, surfaces):
    directory = making.write_run(
        tmp_path / "run", making.surface_data(surfaces), {"mixer": "attention", "slice_num": None}
    )
    run = load_run(directory, device="cpu")
    assert not can_stream(run.model)
    case = predict_case(run, 0)
    assert case.prediction.shape == (320, 4) and np.isfinite(case.prediction).all()


@pytest.mark.parametrize(
    "case, message",
    [("run_0", "no test case 'run_0'.*run_3, run_4"), (2, "no test case 2; its 2 are run_3")],
)
def test_unknown_cases_are_named(loaded, case, message):
    with pytest.raises(ValueError, match=message):
        predict_case(loaded, case)


@pytest.fixture
def darcy(darcy_run):
    return load_run(darcy_run, device="cpu")


def test_a_case_becomes_a_grid_with_target_prediction_and_error(darcy):
    case = predict_case(darcy, 0)
    mesh = case_mesh({"run": case})
    assert mesh_suffix(mesh) == ".vts"
    np.testing.assert_array_equal(mesh.point_data["u"], case.target[:, 0])
    np.testing.assert_array_equal(mesh.point_data["u_predicted"], case.prediction[:, 0])
    np.testing.assert_array_equal(
        mesh.point_data["u_error"], case.prediction[:, 0] - case.target[:, 0]
    )
    np.testing.assert_array_equal(mesh.point_data["a"], case.features[:, 0])


def test_a_case_on_cells_keeps_vectors(loaded):
    case = predict_case(loaded, 0)
    mesh = case_mesh({"run": case})
    assert mesh_suffix(mesh) == ".vtp"
    np.testing.assert_array_equal(
        mesh.cell_data["wallShearStressMeanTrim_predicted"], case.prediction[:, 1:]
    )


def test_the_inputs_of_a_case_in_a_file_give_its_prediction(darcy, tmp_path):
    case = predict_case(darcy, 1)
    np.savez(tmp_path / "mine.npz", coordinates=case.coordinates, features=case.features)
    mesh = predict_file(darcy, tmp_path / "mine.npz").mesh
    assert isinstance(mesh, pv.StructuredGrid)
    np.testing.assert_allclose(
        mesh.point_data["u_predicted"], case.prediction[:, 0], rtol=1e-4, atol=1e-4
    )


def test_coordinates_alone_are_enough_for_a_run_without_features(loaded, tmp_path):
    case = predict_case(loaded, 0)
    np.save(tmp_path / "points.npy", case.coordinates)
    mesh = predict_file(loaded, tmp_path / "points.npy").mesh
    assert isinstance(mesh, pv.PolyData) and mesh.n_points == 320
    shear = mesh.point_data["wallShearStressMeanTrim_predicted"]
    np.testing.assert_allclose(shear, case.prediction[:, 1:], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "arrays, message",
    [
        ({"coordinates": np.zeros((81, 2))}, r"no array 'features', which run .* needs \(a\)"),
        ({"features": np.zeros((81, 1))}, "no array 'coordinates'"),
        (
            {"coordinates": np.zeros((81, 3)), "features": np.zeros((81, 1))},
            r"coordinates has shape \(81, 3\), expected \(81, 2\)",
        ),
        (
            {"coordinates": np.zeros((81, 2)), "features": np.full((81, 1), np.nan)},
            "81 of 81 values of features NaN",
        ),
        (
            {"coordinates": np.zeros((80, 2)), "features": np.zeros((80, 1))},
            r"for 81 points met values of shape \(80, 1\)",
        ),
    ],
)
def test_wrong_points_are_named(darcy, tmp_path, arrays, message):
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        predict_file(darcy, tmp_path / "bad.npz")


def test_other_files_are_refused(darcy, tmp_path):
    with pytest.raises(ValueError, match="points in a .npy or .npz file"):
        predict_file(darcy, tmp_path / "points.csv")
    with pytest.raises(FileNotFoundError, match="none.npz does not exist"):
        predict_file(darcy, tmp_path / "none.npz")


def test_points_of_a_weighted_grid_weigh_its_cells_unless_the_file_says_otherwise(tmp_path):
    root = making.write_darcy(tmp_path / "set")
    data = making.darcy_data(root) | {"weights": "measure"}
    run = load_run(making.write_run(tmp_path / "run", data), device="cpu")
    case = predict_case(run, 0)
    arrays = {"coordinates": case.coordinates, "features": case.features}
    np.savez(tmp_path / "points.npz", **arrays)
    mesh = predict_file(run, tmp_path / "points.npz", progress=False).mesh
    np.testing.assert_allclose(mesh["u_predicted"], case.prediction[:, 0], rtol=1e-4, atol=1e-4)
    np.savez(tmp_path / "even.npz", **arrays, weights=np.ones(81))
    other = predict_file(run, tmp_path / "even.npz", progress=False).mesh["u_predicted"]
    assert not np.allclose(other, mesh["u_predicted"], rtol=1e-4, atol=1e-4)
    np.savez(tmp_path / "bad.npz", **arrays, weights=np.where(np.arange(81) == 4, -1.0, 1.0))
    with pytest.raises(ValueError, match="bad.npz: case bad has the weight -1 at row 4 of weights"):
        predict_file(run, tmp_path / "bad.npz")
