"""The air around the cars: the same cars, cells outside of them, fields of potential flow."""

import numpy as np
import pytest
import pyvista as pv

from physicsnemo_flarepp.builtin import generate
from physicsnemo_flarepp.builtin.sets import CaseId, case_seed
from physicsnemo_flarepp.builtin.sets.car_body import (
    half_surface,
    sample_shape,
    whole_surface,
)
from physicsnemo_flarepp.builtin.sets.car_volumes import graded_axis

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("volumes")
    path = generate("car_volumes", n_train=1, n_test=1, root=root, workers=1, progress=False)
    return path / "run_2"


@pytest.fixture(scope="module")
def volume(folder):
    return pv.read(folder / "volume_2.vtu")


@pytest.fixture(scope="module")
def body(folder):
    return pv.read(folder / "drivaer_2.stl")


def test_the_body_is_that_of_the_surface_set(body):
    shape = sample_shape(np.random.default_rng(case_seed(0, CaseId("test", 0))))
    points, faces = whole_surface(*half_surface(shape))
    np.testing.assert_allclose(body.points.min(axis=0), points.min(axis=0), rtol=1e-6)
    np.testing.assert_allclose(body.points.max(axis=0), points.max(axis=0), rtol=1e-6)
    assert body.n_cells == len(faces)


def test_cells_fill_the_box_but_for_the_car_and_what_touches_it(volume, body):
    sizes = volume.compute_cell_sizes(length=False, area=False)["Volume"]
    assert sizes.min() > 0
    box = np.prod(np.ptp(np.reshape(volume.bounds, (3, 2)), axis=1))
    assert 0.8 * box < sizes.sum() < box - body.volume
    inside = pv.PolyData(volume.points).compute_implicit_distance(body)["implicit_distance"]
    assert inside.min() > 0
    assert volume.cell_data.keys() == ["pMeanTrim", "UMeanTrim"]


def test_pressure_is_bernoullis_and_the_flow_is_free_far_away(volume):
    velocity, pressure = volume["UMeanTrim"], volume["pMeanTrim"]
    expected = (38.889**2 - (velocity.astype(float) ** 2).sum(axis=1)) / 2
    np.testing.assert_allclose(pressure, expected, atol=1e-3)
    centres = volume.cell_centers().points
    upstream = centres[:, 0] < centres[:, 0].min() + 0.1
    np.testing.assert_allclose(velocity[upstream], [[38.889, 0, 0]] * upstream.sum(), atol=1.5)


def test_the_flow_is_symmetric_and_does_not_cross_the_ground(volume):
    centres, velocity = volume.cell_centers().points, volume["UMeanTrim"]
    order = np.lexsort(np.round(centres, 4).T)
    mirrored = np.lexsort(np.round(centres * [1, -1, 1], 4).T)
    np.testing.assert_allclose(velocity[order], velocity[mirrored] * [1, -1, 1], atol=1e-4)
    heights = np.unique(np.round(centres[:, 2], 4))
    lowest = np.isclose(centres[:, 2], heights[0], atol=1e-3)
    above = np.isclose(centres[:, 2], heights[4], atol=1e-3)
    assert np.abs(velocity[lowest, 2]).mean() < 0.5 * np.abs(velocity[above, 2]).mean()


def test_the_flow_has_no_sources(volume):
    """What leaves through the sides of a closed box of cells around the car enters at its front."""
    sampled = volume.cell_data_to_point_data()
    low, high = np.reshape(volume.bounds, (3, 2)).T
    low, high = low + [0.5, 0.5, 1e-3], high - 0.5
    box = pv.Box([low[0], high[0], low[1], high[1], low[2], high[2]], level=40, quads=False)
    box = box.triangulate().compute_normals(auto_orient_normals=True, point_normals=False)
    centres = box.cell_centers().sample(sampled)
    areas = box.compute_cell_sizes(length=False, volume=False)["Area"]
    flux = np.einsum("nx,nx->n", centres["UMeanTrim"], box.cell_data["Normals"]) * areas
    through = 38.889 * (high[1] - low[1]) * (high[2] - low[2])
    assert abs(flux.sum()) < 0.02 * through


def test_axes_are_even_along_the_car_and_grow_beyond():
    planes = graded_axis(-2.0, 0.0, 4.0, 8.0, 30)
    steps = np.diff(planes)
    even = steps[(planes[:-1] > 0.5) & (planes[1:] < 3.5)]
    np.testing.assert_allclose(even, even[0])
    assert np.all(np.diff(steps[planes[:-1] > 4.2]) > 0)
    assert np.all(np.diff(steps[planes[1:] < -0.2]) < 0)
    assert len(planes) == 31 and planes[0] == -2 and planes[-1] == 8
