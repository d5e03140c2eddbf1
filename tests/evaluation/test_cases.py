"""Predictions and errors of test cases against plain formulas."""

import numpy as np
import pytest
import pyvista as pv
import torch

from physicsnemo_flarepp.evaluation import case_errors, load_run, predict_case
from physicsnemo_flarepp.evaluation.cases import can_stream
from physicsnemo_flarepp.ops.errors import relative_l2
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


def test_errors_are_relative_l2_of_each_field(loaded):
    errors = case_errors(loaded)
    assert errors.case_ids == ("run_3", "run_4")
    assert errors.fields == ("pMeanTrim", "wallShearStressMeanTrim")
    for row, case_id in enumerate(errors.case_ids):
        case = predict_case(loaded, case_id)
        prediction, target = (torch.tensor(a)[None] for a in (case.prediction, case.target))
        parts = [(slice(0, 1), 0), (slice(1, 4), 1)]
        for channels, column in parts:
            expected = relative_l2(prediction[..., channels], target[..., channels])
            assert errors.values[row, column] == pytest.approx(float(expected), rel=1e-5)
    assert errors.mean == pytest.approx(errors.values.sum() / 4)
    assert errors.ranked()[0] == errors.case_ids[int(np.argmin(errors.values.sum(1)))]


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
        tmp_path / "run", making.surface_data(surfaces), {"mixer": "attention"}
    )
    run = load_run(directory, device="cpu")
    assert not can_stream(run.model)
    case = predict_case(run, 0)
    assert case.prediction.shape == (320, 4) and np.isfinite(case.prediction).all()


@pytest.mark.parametrize(
    "case, message",
    [("run_0", "no test case 'run_0'.*run_3, run_4"), (2, "case is 2, but.*0 to 1")],
)
def test_unknown_cases_are_named(loaded, case, message):
    with pytest.raises(ValueError, match=message):
        predict_case(loaded, case)
