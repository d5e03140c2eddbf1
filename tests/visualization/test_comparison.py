import re
from dataclasses import replace

import numpy as np
import pytest
import pyvista as pv
from matplotlib.colors import to_rgb
from PIL import Image

from physicsnemo_flarepp.visualization import DARK, LIGHT, Theme, plot_comparison
from physicsnemo_flarepp.visualization.canvases import make_canvas
from physicsnemo_flarepp.visualization.scales import field_limits


def rgb(color):
    return np.round(np.array(to_rgb(color)) * 255).astype(int)


def near(pixel, color, tolerance=3):
    return np.abs(np.asarray(pixel, int) - rgb(color)).max() <= tolerance


def quantile_by_sorting(values, percent):
    """Percentile by sorting and linear interpolation, written out."""
    ordered = np.sort(values)
    place = percent / 100 * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


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


def test_one_view_has_fields_above_and_errors_below(grid, small):
    truth = np.linspace(0, 1, 77)
    models = {"a": truth + 0.1, "b": truth}
    drawn = plot_comparison(grid, truth, models, field="u", theme=small)
    places = {(p.kind, p.name): (p.row, p.column) for p in drawn.panels}
    assert places == {
        ("field", "reference"): (0, 0),
        ("field", "a"): (0, 1),
        ("field", "b"): (0, 2),
        ("error", "a"): (1, 1),
        ("error", "b"): (1, 2),
    }
    assert_panels_apart(drawn)
    widths = {p.rectangle[2] for p in drawn.panels}
    assert widths == {90}  # 1.5 inches at 60 dots


def test_several_views_are_rows_and_errors_follow_the_fields(car, small):
    truth = car.cell_centers().points[:, 0]
    drawn = plot_comparison(car, truth, {"a": truth + 1, "b": truth}, field="p", theme=small)
    assert drawn.cameras == ("three-quarter", "side", "top", "front")
    places = {(p.kind, p.name, p.camera): (p.row, p.column) for p in drawn.panels}
    assert len(places) == 20
    assert places["field", "reference", "side"] == (1, 0)
    assert places["field", "b", "side"] == (1, 2)
    assert places["error", "a", "top"] == (2, 3)
    assert places["error", "b", "front"] == (3, 4)
    assert_panels_apart(drawn)


def test_all_views_share_one_length_scale(car, small):
    truth = np.zeros(car.n_cells)
    drawn = plot_comparison(
        car, truth, {"a": truth}, field="p", cameras=["side", "top", "front"], theme=small
    )
    covered = {}
    for name in drawn.cameras:
        painted = np.abs(drawn.panel("field", "a", name).astype(int) - rgb("white")).max(-1) > 20
        rows, columns = np.where(painted)
        covered[name] = (np.ptp(columns) + 1, np.ptp(rows) + 1)
    unit = covered["side"][0] / 4
    assert covered["side"][1] == pytest.approx(unit, abs=2)
    assert covered["top"] == pytest.approx((4 * unit, 2 * unit), abs=2)
    assert covered["front"] == pytest.approx((2 * unit, unit), abs=2)


def assert_panels_apart(drawn):
    height, width = drawn.image.shape[:2]
    taken = np.zeros((height, width), int)
    for panel in drawn.panels:
        left, top, w, h = panel.rectangle
        assert 0 <= left and 0 <= top and left + w <= width and top + h <= height
        taken[top : top + h, left : left + w] += 1
    assert taken.max() == 1


def test_equal_values_have_equal_colours_in_every_field_panel(grid, small):
    truth = np.linspace(-1, 1, 77)
    models = {"a": truth.copy(), "b": truth * 0.2}
    drawn = plot_comparison(grid, truth, models, field="u", theme=small)
    reference = drawn.panel("field", "reference")
    np.testing.assert_array_equal(reference, drawn.panel("field", "a"))
    # On a scale of its own the scaled field would look like the reference.
    assert np.abs(reference.astype(int) - drawn.panel("field", "b").astype(int)).max() > 50


def test_error_scale_is_shared(grid, small):
    truth = np.zeros(77) + 1.0
    models = {"small": truth + 0.25, "large": truth + 1.0}
    drawn = plot_comparison(grid, truth, models, field="u", theme=small)
    colors = small.errors()
    middle = drawn.panel("error", "small").shape[0] // 2, 45
    assert near(drawn.panel("error", "large")[middle], colors(1.0))
    assert near(drawn.panel("error", "small")[middle], colors(0.625), tolerance=5)


@pytest.mark.parametrize("theme", [LIGHT, DARK])
@pytest.mark.parametrize("association", ["point", "cell"])
def test_zero_error_is_the_middle_colour(grid, theme, association):
    theme = Theme(
        dpi=60, panel_width=1.5, error_colors=theme.error_colors, background=theme.background
    )
    n = grid.n_points if association == "point" else grid.n_cells
    truth = np.linspace(0, 1, n)
    models = {"exact": truth, "other": truth + 1}
    drawn = plot_comparison(grid, truth, models, field="u", theme=theme, crop=(0.2, 1.8, 0.4, 0.9))
    panel = drawn.panel("error", "exact").reshape(-1, 3)
    assert (np.abs(panel.astype(int) - rgb(theme.error_colors[2])).max(-1) <= 1).all()


def test_all_errors_zero_still_has_a_scale(grid, small):
    truth = np.linspace(0, 1, 77)
    drawn = plot_comparison(grid, truth, {"exact": truth}, field="u", theme=small)
    assert drawn.error_limits == (-1.0, 1.0)
    panel = drawn.panel("error", "exact")
    assert near(panel[panel.shape[0] // 2, 45], small.error_colors[2], 1)


def test_colours_between_points_are_those_of_the_values_between(small):
    # Between -1 and 1 lies 0, whose colour is not the mean of the colours at the ends.
    square = pv.ImageData(dimensions=(2, 2, 1)).cast_to_structured_grid()
    error = np.array([-1.0, 1.0, -1.0, 1.0])
    drawn = plot_comparison(
        square, np.ones(4), {"a": 1 + error}, field="u", association="point", theme=small
    )
    panel = drawn.panel("error", "a")
    middle = panel[panel.shape[0] // 2, panel.shape[1] // 2 - 1 : panel.shape[1] // 2 + 1]
    assert near(middle.mean(0), small.error_colors[2], 8)


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


def test_two_runs_give_the_same_picture(car, grid, small):
    truth, flat = car.cell_centers().points[:, 0], np.linspace(0, 1, 77)
    for mesh, values in ((car, truth), (grid, flat)):
        first, second = (
            plot_comparison(mesh, values, {"a": values * 1.1}, field="p", theme=small)
            for _ in range(2)
        )
        np.testing.assert_array_equal(first.image, second.image)


def test_files_hold_the_picture(grid, small, tmp_path):
    truth = np.linspace(0, 1, 77)
    paths = [tmp_path / "deep" / f"figure{suffix}" for suffix in (".png", ".pdf", ".svg")]
    drawn = plot_comparison(grid, truth, {"a": truth}, field="u", theme=small, path=paths)
    assert drawn.paths == tuple(paths)
    np.testing.assert_array_equal(np.asarray(Image.open(paths[0])), drawn.image)
    assert paths[1].read_bytes()[:5] == b"%PDF-"
    assert ">reference<" in paths[2].read_text()  # text stays text
    again = tmp_path / "again.pdf"
    plot_comparison(grid, truth, {"a": truth}, field="u", theme=small, path=again)
    assert again.read_bytes() == paths[1].read_bytes()


def test_user_settings_of_matplotlib_do_not_matter(grid, small):
    import matplotlib

    truth = np.linspace(0, 1, 77)
    plain = plot_comparison(grid, truth, {"a": truth}, field="u", theme=small)
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "savefig.dpi": 30}):
        changed = plot_comparison(grid, truth, {"a": truth}, field="u", theme=small)
    np.testing.assert_array_equal(plain.image, changed.image)


def test_long_names_are_kept_inside_their_panel(grid, small):
    truth = np.linspace(0, 1, 77)
    name = "a run with a name that is longer than its panel"
    drawn = plot_comparison(grid, truth, {name: truth}, field="u", theme=small)
    # Nothing is written into the margins at the edges.
    assert (drawn.image[:, -3:] == 255).all() and (drawn.image[:, :3] == 255).all()


@pytest.mark.parametrize("size", [(2, 101), (101, 2)])
def test_domains_of_extreme_shape_give_small_pages(size, small):
    mesh = pv.ImageData(dimensions=(*size, 1))
    truth = np.linspace(0, 1, 202)
    drawn = plot_comparison(mesh, truth, {"a": truth}, field="u", theme=small)
    assert_panels_apart(drawn)
    assert drawn.image.shape[0] < 2 * 1.6 * 90 + 120
    for panel in drawn.panels:
        assert 1 <= panel.rectangle[2] <= 90 and 1 <= panel.rectangle[3] <= 144
    reference = drawn.panel("field", "reference")
    assert reference.max() > 150  # not black


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


@pytest.mark.parametrize("shape", ["grid", "car"])
def test_errors_of_magnitude_and_vector_are_both_named(shape, request, sheets):
    mesh, theme = request.getfixturevalue(shape), Theme(dpi=100)
    truth = np.linspace(1, 2, 77 if shape == "grid" else mesh.n_cells)
    models, vectors = {"a": 1.1 * truth, "b" * 70: truth}, {"a": 0.25, "b" * 70: 0.0614}
    drawn = plot_comparison(
        mesh, truth, models, field="|v|", vector_errors=vectors, title="case 1", theme=theme
    )
    assert drawn.relative_l2 == pytest.approx({"a": 0.1, "b" * 70: 0})
    texts = {text.get_text(): text.get_window_extent() for text in sheets[0].figure.texts}
    cut = next(words for words in texts if words.startswith("bbb") and words.endswith("… error"))
    headings = {
        "a": ("a error", "rel. L2: magnitude 10.00%, vector 25.00%"),
        "b" * 70: (cut, "rel. L2: magnitude 0.00%, vector 6.14%"),
    }
    panels = [p for p in drawn.panels if p.kind == "error" and p.camera == drawn.cameras[0]]
    assert len(panels) == 2
    for panel in panels:
        left, top, width, _ = panel.rectangle
        name, numbers = (texts[words] for words in headings[panel.name])
        assert sheets[0].height - top < numbers.y0 and numbers.y1 < name.y0
        assert name.y1 < texts["case 1"].y0
        assert numbers.width <= theme.panel_width * theme.dpi
        assert abs(numbers.x0 + numbers.x1 - 2 * left - width) < 4


def test_vector_errors_of_other_models_are_named(grid, small):
    truth = np.linspace(0, 1, 77)
    with pytest.raises(ValueError, match=r"vector_errors names \['b'\], but predictions \['a'\]"):
        plot_comparison(
            grid, truth, {"a": truth}, field="|v|", vector_errors={"b": 0.25}, theme=small
        )


def test_sparse_fields_and_references_of_zero_have_scales(grid, small):
    peak = np.zeros(1000)
    peak[3] = 7.0
    assert field_limits(peak) == (0.0, 7.0)
    zero = np.zeros(77)
    models = {"exact": zero, "off": zero + 1}
    drawn = plot_comparison(grid, zero, models, field="u", theme=small)
    assert drawn.relative_l2 == {"exact": 0.0, "off": np.inf}


BAD = [
    ({"reference": np.ones(76)}, "76 reference values for a mesh of 77 points and 60 cells"),
    ({"predictions": {"run_b": np.ones(60)}}, "the prediction of 'run_b' has shape (60,)"),
    ({"predictions": {"run_b": np.ones((77, 2))}}, "the prediction of 'run_b' has shape (77, 2)"),
    ({"predictions": {"run_b": np.r_[np.nan, np.ones(76)]}}, "'run_b' holds nan at token 0"),
    ({"reference": np.r_[np.ones(76), np.inf]}, "reference holds inf at token 76"),
    ({"predictions": {}}, "predictions is empty"),
    ({"predictions": {"reference": np.ones(77)}}, "named 'reference'"),
    ({"association": "edge"}, "association is 'edge'"),
    ({"association": "cell"}, "77 reference values for a mesh of 77 points and 60 cells"),
    ({"mask": np.ones(77)}, "mask must be boolean of shape (77,)"),
    ({"mask": np.zeros(77, bool)}, "mask is False everywhere"),
    ({"crop": (1, 0, 0, 1)}, "crop is (1, 0, 0, 1)"),
    ({"crop": (8, 9, 0, 1)}, "holds no token"),
    ({"cameras": ["side"]}, "the mesh is planar"),
    ({"field_range": (1.0, 1.0)}, "field_range is (1.0, 1.0)"),
    ({"path": "figure.jpg"}, "must end in one of"),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_bad_input_is_named(grid, change, message):
    arguments = {"reference": np.ones(77), "predictions": {"run_b": np.ones(77)}, "field": "u"}
    with pytest.raises(ValueError, match=re.escape(message)):
        plot_comparison(grid, **(arguments | change))


def test_unknown_camera_is_named(car):
    ones = np.ones(car.n_cells)
    with pytest.raises(ValueError, match=r"cameras \['left'\] are not known"):
        plot_comparison(car, ones, {"a": ones}, field="p", cameras=["left"])
    with pytest.raises(ValueError, match="not planar"):
        plot_comparison(car, ones, {"a": ones}, field="p", crop=(0, 1, 0, 1))


def test_values_that_fit_points_and_cells_need_an_association(small):
    tetrahedron = pv.Tetrahedron()
    values = np.arange(1.0, 5.0)
    with pytest.raises(ValueError, match="4 points and 4 cells"):
        plot_comparison(tetrahedron, values, {"a": values}, field="p")


def test_a_panel_that_is_not_there_is_named(grid, small):
    truth = np.linspace(0, 1, 77)
    drawn = plot_comparison(grid, truth, {"a": truth}, field="u", theme=small)
    with pytest.raises(ValueError, match="there is no panel"):
        drawn.panel("field", "b")


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
