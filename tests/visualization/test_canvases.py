"""What of a mesh is drawn: masks, voids, crops and clouds."""

from dataclasses import replace

import numpy as np
import pytest
import pyvista as pv

from physicsnemo_flarepp.visualization import DARK, LIGHT, plot_comparison
from physicsnemo_flarepp.visualization.canvases import make_canvas
from tests.visualization.looking import near, rgb


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
    with pytest.raises(ValueError, match="mask leaves no token with data inside the crop"):
        plot_comparison(
            grid, truth, {"a": truth}, field="u", mask=truth > 1.5, crop=(0, 1, 0, 1), theme=small
        )
