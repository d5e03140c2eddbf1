"""Surfaces that are not like those of training are noticed, with advice that helps."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
import pyvista as pv

from physicsnemo_flarepp.evaluation import predict_file
from physicsnemo_flarepp.evaluation.file_predictions import compare_size, training_ranges
from tests.evaluation import making

CARS = {
    "coordinates": {"min": [-1.0, -1.0, 0.0], "max": [4.2, 1.0, 1.8]},
    "extent": {"min": [4.2, 1.7, 1.3], "max": [5.0, 2.0, 1.7]},
}


@pytest.mark.parametrize(
    "extent, advice",
    [
        ((4.6, 1.8, 1.5), None),
        ((5.3, 2.1, 1.2), None),  # a little beyond: sampled tokens miss the outermost ones
        ((4600, 1800, 1500), "It looks like millimetres: give --scale 0.001"),
        ((5000, 1700, 1300), "It looks like millimetres: give --scale 0.001"),
        ((460, 180, 150), "It looks like centimetres: give --scale 0.01"),
        ((181, 71, 59), "It looks like inches: give --scale 0.0254"),
        ((0.0046, 0.0018, 0.0015), "metres, and training like millimetres: give --scale 1000"),
        ((0.92, 0.36, 0.3), "Its proportions are right, but it is about 5.02 times smaller"),
        ((1.8, 4.6, 1.5), "Its axes look swapped: its x, y, z match y, x, z of training"),
        (
            (1800, 1500, 4600),
            "--scale 0.001. Its axes look swapped: its x, y, z match y, z, x",
        ),
        ((4.6, 1.8, 4.6), "Its proportions differ as well"),
        (
            (4600, 1800, 4600),
            "differ as well.*It looks like millimetres .--scale 0.001",
        ),
        ((4.6, 1.8, 0.0), "Its proportions differ as well"),
        ((0.0, 0.0, 0.0), "Its proportions differ as well"),
    ],
)
def test_size_and_proportions_are_compared_with_the_training_set(extent, advice):
    corners = np.array([1.6, 0.0, 0.9]) + np.outer([-0.5, 0.5], extent)
    found = compare_size(CARS, corners, "car.stl")
    if advice is None:
        assert found is None
    else:
        assert re.search(f"car.stl differs in size from .*{advice}", found[0])
        assert found[1] == "the surface differs in size from the training surfaces"


def test_a_stored_training_set_goes_before_the_normaliser(loaded):
    assert training_ranges(loaded)["coordinates"]["max"][0] == pytest.approx(1.76, abs=0.1)
    stored = SimpleNamespace(training_set=CARS)
    assert training_ranges(stored) is CARS


@pytest.mark.parametrize(
    "factor, advice",
    [
        (1000, "It looks like millimetres: give --scale 0.001"),
        (100, "It looks like centimetres: give --scale 0.01"),
        (1 / 0.0254, "It looks like inches: give --scale 0.0254"),
        (0.001, "It looks like metres, and training like millimetres: give --scale 1000"),
        (0.2, "about 5 times smaller; if only its scale is wrong, give --scale"),
    ],
)
def test_other_units_are_noticed_and_can_be_scaled(loaded, tmp_path, factor, advice):
    """The run stored no training set: its normaliser tells the size roughly."""
    mesh = making.body(3)
    mesh.scale(factor).save(tmp_path / "other.stl")
    prediction = predict_file(loaded, tmp_path / "other.stl")
    (warning,) = prediction.warnings
    assert "differs in size from the training surfaces: x " in warning
    assert re.sub(r"about [345]\S* times", "about 5 times", warning).find(advice) > 0
    scaled = predict_file(loaded, tmp_path / "other.stl", scale=1 / factor)
    assert not scaled.warnings and scaled.doubt is None
    centres = scaled.mesh.cell_centers().points
    np.testing.assert_allclose(centres, mesh.cell_centers().points, atol=1e-5)


def test_advice_counts_the_scale_that_was_given(loaded, tmp_path):
    making.body(3).save(tmp_path / "metres.stl")
    (warning,) = predict_file(loaded, tmp_path / "metres.stl", scale=0.001).warnings
    assert "give --scale 1" in warning and "--scale 1000" not in warning


def test_a_surface_elsewhere_is_noticed(loaded, tmp_path):
    making.body(3).translate((10, 0, 0)).save(tmp_path / "far.stl")
    prediction = predict_file(loaded, tmp_path / "far.stl")
    (warning,) = prediction.warnings
    assert "x 8." in warning and "Move it" in warning and "y " not in warning
    assert "not where the training surfaces are" in prediction.doubt


def test_loose_points_matter_to_runs_on_points_only(loaded, tmp_path):
    mesh = making.body(2)
    points = np.concatenate([mesh.points, [[0.0, 0.0, 0.0]]])
    pv.PolyData.from_regular_faces(points, mesh.regular_faces).save(tmp_path / "loose.vtp")
    assert not predict_file(loaded, tmp_path / "loose.vtp").warnings
    at_points = predict_file(loaded, tmp_path / "loose.vtp", association="point")
    assert "1 points belong to no cell" in at_points.warnings[0]
    assert len(at_points.values) == mesh.n_points + 1
