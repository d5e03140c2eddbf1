"""What of a mesh is drawn (masks, voids, crops, clouds, slices) and on which scales."""

from dataclasses import replace

import numpy as np
import pytest
import pyvista as pv

from physicsnemo_flarepp.visualization import DARK, LIGHT, plot_comparison
from physicsnemo_flarepp.visualization.canvases import (
    field_limits,
    is_volume,
    make_canvas,
    slice_volume,
)
from tests.visualization.looking import near, rgb


@pytest.mark.slow
@pytest.mark.parametrize("association", ["point", "cell"])
def test_masked_region_of_a_flat_mesh_is_grey(association, small):
    mesh = pv.Plane(i_size=2, j_size=1, i_resolution=20, j_resolution=10)
    x = (mesh.points if association == "point" else mesh.cell_centers().points)[:, 0]
    mask = x < 0.3
    values = np.where(mask, 1 + x, np.nan)
    drawn = plot_comparison(
        mesh,
        values,
        {"a": values},
        field="u",
        association=association,
        mask=mask,
        theme=small,
    )
    for kind, name in (("field", "reference"), ("field", "a"), ("error", "a")):
        panel = drawn.panel(kind, name)
        row = panel[panel.shape[0] // 2]
        place = np.linspace(-1, 1, len(row))
        grey = np.abs(row.astype(int) - rgb(small.no_data)).max(-1) <= 1
        assert grey[place > 0.45].all()
        assert not grey[place < 0.15].any()


def test_masked_cells_of_a_surface_are_grey(car, small):
    centres = car.cell_centers().points
    mask = centres[:, 0] < 2
    truth = centres[:, 0] + 1.0
    drawn = plot_comparison(
        car, truth, {"a": truth}, field="p", mask=mask, cameras=["side"], theme=small
    )
    panel = drawn.panel("field", "a")
    row = panel[panel.shape[0] // 2]
    assert near(row[-10], small.no_data, 2)  # seen frontally: the full colour
    assert not near(row[10], small.no_data, 20)


def test_void_of_a_cloud_is_grey(small):
    rng = np.random.default_rng(1)
    points = np.stack(np.meshgrid(np.linspace(0, 1, 25), np.linspace(0, 1, 25)), -1).reshape(-1, 2)
    points += 0.004 * rng.normal(size=points.shape)
    points = points[np.linalg.norm(points - 0.5, axis=1) > 0.25]
    cloud = pv.PolyData(np.c_[points, np.zeros(len(points))])
    truth = 2 + points[:, 0]
    drawn = plot_comparison(cloud, truth, {"a": truth}, field="stress", theme=small)
    panel = drawn.panel("field", "reference")
    height, width = panel.shape[:2]
    y, x = np.mgrid[:height, :width] / (width - 1) - 0.5
    grey = np.abs(panel.astype(int) - rgb(small.no_data)).max(-1) <= 1
    radius = np.hypot(x, y)
    assert grey[radius < 0.24].all()
    inside = (radius > 0.31) & (np.abs(x) < 0.45) & (np.abs(y) < 0.45)
    assert not grey[inside].any()


def test_crop_shows_that_part_at_its_aspect_ratio(grid, small):
    truth = grid.points[:, 0].copy()
    crop = (0.5, 1.5, 0.3, 0.8)
    drawn = plot_comparison(
        grid, truth, {"a": truth}, field="u", crop=crop, field_range=(0, 2), theme=small
    )
    panel = drawn.panel("field", "a")
    assert panel.shape[:2] == (45, 90)
    colors = small.fields()
    assert near(panel[20, 0], colors(0.5 / 2), 6)
    assert near(panel[20, -1], colors(1.5 / 2), 6)


def test_point_cloud_in_space_is_drawn_as_points(small):
    sphere = pv.Sphere(radius=1.0, theta_resolution=40, phi_resolution=40)
    truth = sphere.points[:, 2].astype(float)
    cloud = pv.PolyData(sphere.points)
    drawn = plot_comparison(cloud, truth, {"a": truth}, field="p", cameras=["side"], theme=small)
    panel = drawn.panel("field", "a").astype(int)
    middle = panel[panel.shape[0] // 2, panel.shape[1] // 2]
    assert np.abs(middle - rgb("white")).max() > 40
    # Dark below, bright above, as viridis is.
    assert panel[-25, 45].sum() < panel[25, 45].sum()


@pytest.mark.slow
@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_zero_error_of_a_surface_is_never_taken_for_no_data(theme):
    sphere = pv.Sphere(theta_resolution=40, phi_resolution=40)
    truth = np.ones(sphere.n_points)
    hidden = sphere.points[:, 0] > 0.1
    theme = replace(theme, dpi=60, panel_width=1.5)
    drawn = plot_comparison(
        sphere,
        truth,
        {"a": truth},
        field="p",
        association="point",
        mask=~hidden,
        cameras=["side"],
        theme=theme,
    )
    panel = drawn.panel("error", "a").astype(int)
    height, width = panel.shape[:2]
    y, x = (np.mgrid[:height, :width] + 0.5) / height * 1.04 - 0.52
    inside = np.hypot(x, y) < 0.47
    zero, grey = panel[inside & (x < 0.0)], panel[inside & (x > 0.2)]
    middle = rgb(theme.error_colors[2])
    assert (np.abs(zero - middle) <= 0.13 * middle + 2).all()
    gap = np.abs(zero[:, None].mean(-1) - grey[None].mean(-1)).min()
    assert gap > 25


def test_values_that_fit_points_and_cells_need_an_association(small):
    tetrahedron = pv.Tetrahedron()
    values = np.arange(1.0, 5.0)
    with pytest.raises(ValueError, match="4 points and 4 cells"):
        plot_comparison(tetrahedron, values, {"a": values}, field="p")


def test_mask_fits_surfaces_with_points_and_lines_beside_their_faces(car):
    mixed = pv.PolyData(
        car.points, faces=car.faces, lines=np.array([2, 0, 1]), verts=np.array([1, 0, 1, 1])
    )
    mask = car.points[:, 0] < 2.5
    plain, canvas = (
        make_canvas(mesh, car.n_points, mask=mask, association="point") for mesh in (car, mixed)
    )
    assert canvas.faces.n_faces == plain.faces.n_faces > 0
    assert canvas.hidden.n_faces == plain.hidden.n_faces > 0
    np.testing.assert_allclose(canvas.faces.points, car.points[canvas.rows])
    assert mask[canvas.rows].all()


def test_mask_that_leaves_nothing_of_the_crop_is_named(grid, small):
    truth = grid.points[:, 0].astype(float)
    with pytest.raises(ValueError, match="leave no token with data"):
        plot_comparison(
            grid, truth, {"a": truth}, field="u", mask=truth > 1.5, crop=(0, 1, 0, 1), theme=small
        )


@pytest.fixture
def box():
    return pv.ImageData(dimensions=(5, 7, 9), spacing=(0.5, 1.0, 0.25)).cast_to_unstructured_grid()


@pytest.mark.parametrize("axis", range(3))
def test_cells_of_the_cut_have_the_values_of_the_cells_that_are_cut(box, axis):
    kept = np.delete(box.cell_centers().points, axis, axis=1)
    cut, found = slice_volume(box, kept, "cell", axis)
    np.testing.assert_allclose(found, cut.cell_centers().points[:, :2], atol=1e-5)
    assert np.ptp(cut.points[:, 2]) == 0


def test_values_of_points_are_interpolated():
    box = pv.ImageData(dimensions=(5, 6, 9)).cast_to_unstructured_grid()  # no layer in the middle
    cut, found = slice_volume(box, box.points[:, 1:2], "point")
    np.testing.assert_allclose(found, 2.5, atol=1e-2)
    assert cut.n_points == len(found)


def test_only_meshes_that_fill_space_are_volumes(box):
    assert is_volume(box)
    assert not is_volume(pv.Sphere())
    assert not is_volume(pv.Plane().cast_to_unstructured_grid())
    assert not is_volume(pv.Sphere().cast_to_unstructured_grid())


def test_a_plane_through_a_gap_of_the_volume_is_named(box):
    halves = box.merge(box.translate((0, 50, 0)))
    with pytest.raises(ValueError, match="y = 28.* meets no cell of the volume"):
        slice_volume(halves, np.zeros((halves.n_cells, 1)), "cell")


def quantile_by_sorting(values, percent):
    """Percentile by sorting and linear interpolation, written out."""
    ordered = np.sort(values)
    place = percent / 100 * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


@pytest.mark.slow
def test_limits_follow_the_papers_definition(grid, small):
    rng = np.random.default_rng(0)
    truth = rng.normal(size=77)
    models = {"a": truth + 0.1 * rng.normal(size=77), "b": truth + 0.3 * rng.normal(size=77)}
    drawn = plot_comparison(grid, truth, models, field="u", theme=small)
    larger = max(quantile_by_sorting(np.abs(m - truth), 99.5) for m in models.values())
    np.testing.assert_allclose(drawn.error_limits, (-larger, larger), rtol=1e-12)
    expected = [quantile_by_sorting(truth, p) for p in (0.5, 99.5)]
    np.testing.assert_allclose(drawn.field_limits, expected, rtol=1e-12)
    for name, values in models.items():
        error = (sum((values - truth) ** 2) / sum(truth**2)) ** 0.5
        assert drawn.relative_l2[name] == pytest.approx(error)


def test_limits_are_those_of_the_tokens_in_the_picture(grid, small):
    truth, x, y = grid.points[:, 0].copy(), grid.points[:, 0], grid.points[:, 1]
    error = np.where(x > 1.5, 50.0, 0.01 * (1 + x))
    crop = (0.0, 1.0, 0.0, 0.8)
    drawn = plot_comparison(grid, truth, {"a": truth + error}, field="u", crop=crop, theme=small)
    seen = (x <= 1.0) & (y <= 0.8)
    assert drawn.error_limits[1] == pytest.approx(quantile_by_sorting(error[seen], 99.5))
    assert drawn.field_limits[1] == pytest.approx(quantile_by_sorting(truth[seen], 99.5))
    # The figure of merit is that of the whole case.
    assert drawn.relative_l2["a"] == pytest.approx(np.linalg.norm(error) / np.linalg.norm(truth))


def test_error_scale_is_shared(grid, small):
    truth = np.zeros(77) + 1.0
    models = {"small": truth + 0.25, "large": truth + 1.0}
    drawn = plot_comparison(grid, truth, models, field="u", theme=small)
    colors = small.errors()
    middle = drawn.panel("error", "small").shape[0] // 2, 45
    assert near(drawn.panel("error", "large")[middle], colors(1.0))
    assert near(drawn.panel("error", "small")[middle], colors(0.625), tolerance=5)


def test_all_errors_zero_still_has_a_scale(grid, small):
    truth = np.linspace(0, 1, 77)
    drawn = plot_comparison(grid, truth, {"exact": truth}, field="u", theme=small)
    assert drawn.error_limits == (-1.0, 1.0)
    panel = drawn.panel("error", "exact")
    assert near(panel[panel.shape[0] // 2, 45], small.error_colors[2], 1)


def test_sparse_fields_and_references_of_zero_have_scales(grid, small):
    peak = np.zeros(1000)
    peak[3] = 7.0
    assert field_limits(peak) == (0.0, 7.0)
    zero = np.zeros(77)
    models = {"exact": zero, "off": zero + 1}
    drawn = plot_comparison(grid, zero, models, field="u", theme=small)
    assert drawn.relative_l2 == {"exact": 0.0, "off": np.inf}
