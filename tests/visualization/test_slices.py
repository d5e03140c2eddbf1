import numpy as np
import pytest
import pyvista as pv

from physicsnemo_flarepp.visualization.canvases import is_volume, slice_volume


@pytest.fixture
def box():
    return pv.ImageData(dimensions=(5, 7, 9), spacing=(0.5, 1.0, 0.25)).cast_to_unstructured_grid()


@pytest.mark.parametrize("normal", ["x", "y", "z"])
def test_cells_of_the_cut_have_the_values_of_the_cells_that_are_cut(box, normal):
    across = "xyz".index(normal)
    centres = box.cell_centers().points
    kept = np.delete(np.arange(3), across)
    cut, found = slice_volume(
        box, {"first": centres[:, kept[0]], "second": centres[:, kept[1]]}, "cell", normal=normal
    )
    expected = cut.cell_centers().points
    np.testing.assert_allclose(found["first"], expected[:, 0], atol=1e-5)
    np.testing.assert_allclose(found["second"], expected[:, 1], atol=1e-5)
    assert np.ptp(cut.points[:, 2]) == 0


def test_values_of_points_are_interpolated(box):
    cut, found = slice_volume(box, {"y": box.points[:, 1]}, "point", origin=2.25)
    np.testing.assert_allclose(found["y"], 2.25, atol=1e-2)
    assert cut.n_points == len(found["y"])


def test_only_meshes_that_fill_space_are_volumes(box):
    assert is_volume(box)
    assert not is_volume(pv.Sphere())
    assert not is_volume(pv.Plane().cast_to_unstructured_grid())
    assert not is_volume(pv.Sphere().cast_to_unstructured_grid())


def test_a_plane_beside_the_volume_is_named(box):
    with pytest.raises(ValueError, match="y = 50 does not meet the volume"):
        slice_volume(box, {"a": np.zeros(box.n_cells)}, "cell", origin=50.0)
    with pytest.raises(ValueError, match="normal is 'w'"):
        slice_volume(box, {}, "cell", normal="w")
