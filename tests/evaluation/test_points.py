"""Test cases and points of files as meshes."""

import numpy as np
import pytest
import pyvista as pv

from physicsnemo_flarepp.evaluation import case_mesh, load_run, predict_case, predict_points
from physicsnemo_flarepp.meshes.writing import mesh_suffix


@pytest.fixture
def darcy(darcy_run):
    return load_run(darcy_run, device="cpu")


def test_a_case_becomes_a_grid_with_target_prediction_and_error(darcy):
    case = predict_case(darcy, 0)
    mesh = case_mesh(case)
    assert mesh_suffix(mesh) == ".vts"
    np.testing.assert_array_equal(mesh.point_data["u"], case.target[:, 0])
    np.testing.assert_array_equal(mesh.point_data["u_predicted"], case.prediction[:, 0])
    np.testing.assert_array_equal(
        mesh.point_data["u_error"], case.prediction[:, 0] - case.target[:, 0]
    )
    np.testing.assert_array_equal(mesh.point_data["a"], case.features[:, 0])


def test_a_case_on_cells_keeps_vectors(loaded):
    case = predict_case(loaded, 0)
    mesh = case_mesh(case)
    assert mesh_suffix(mesh) == ".vtp"
    np.testing.assert_array_equal(
        mesh.cell_data["wallShearStressMeanTrim_predicted"], case.prediction[:, 1:]
    )


def test_the_inputs_of_a_case_in_a_file_give_its_prediction(darcy, tmp_path):
    case = predict_case(darcy, 1)
    np.savez(tmp_path / "mine.npz", coordinates=case.coordinates, features=case.features)
    mesh = predict_points(darcy, tmp_path / "mine.npz")
    assert isinstance(mesh, pv.StructuredGrid)
    np.testing.assert_allclose(
        mesh.point_data["u_predicted"], case.prediction[:, 0], rtol=1e-4, atol=1e-4
    )


def test_coordinates_alone_are_enough_for_a_run_without_features(loaded, tmp_path):
    case = predict_case(loaded, 0)
    np.save(tmp_path / "points.npy", case.coordinates)
    mesh = predict_points(loaded, tmp_path / "points.npy")
    assert isinstance(mesh, pv.PolyData) and mesh.n_points == 320
    shear = mesh.point_data["wallShearStressMeanTrim_predicted"]
    np.testing.assert_allclose(shear, case.prediction[:, 1:], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "arrays, message",
    [
        ({"coordinates": np.zeros((81, 2))}, r"no array 'features', which the model needs \(a\)"),
        ({"features": np.zeros((81, 1))}, "no array 'coordinates'"),
        (
            {"coordinates": np.zeros((81, 3)), "features": np.zeros((81, 1))},
            r"coordinates has shape \(81, 3\), expected \(81, 2\)",
        ),
        (
            {"coordinates": np.zeros((81, 2)), "features": np.full((81, 1), np.nan)},
            "features holds NaN",
        ),
        (
            {"coordinates": np.zeros((80, 2)), "features": np.zeros((80, 1))},
            r"statistics for 81 points met values of shape \(80, 1\)",
        ),
    ],
)
def test_wrong_points_are_named(darcy, tmp_path, arrays, message):
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        predict_points(darcy, tmp_path / "bad.npz")


def test_other_files_are_refused(darcy, tmp_path):
    with pytest.raises(ValueError, match="must end in .npy or .npz"):
        predict_points(darcy, tmp_path / "points.csv")
    with pytest.raises(FileNotFoundError, match="none.npz does not exist"):
        predict_points(darcy, tmp_path / "none.npz")
