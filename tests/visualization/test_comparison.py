"""Colours, files and numbers of comparisons."""

import re

import numpy as np
import pytest
import pyvista as pv
from PIL import Image

from physicsnemo_flarepp.visualization import DARK, LIGHT, Theme, plot_comparison
from tests.visualization.looking import near, rgb


def test_equal_values_have_equal_colours_in_every_field_panel(grid, small):
    truth = np.linspace(-1, 1, 77)
    models = {"a": truth.copy(), "b": truth * 0.2}
    drawn = plot_comparison(grid, truth, models, field="u", theme=small)
    reference = drawn.panel("field", "reference")
    np.testing.assert_array_equal(reference, drawn.panel("field", "a"))
    # On a scale of its own the scaled field would look like the reference.
    assert np.abs(reference.astype(int) - drawn.panel("field", "b").astype(int)).max() > 50


@pytest.mark.slow
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


@pytest.mark.slow
def test_two_runs_give_the_same_picture(car, grid, small):
    truth, flat = car.cell_centers().points[:, 0], np.linspace(0, 1, 77)
    for mesh, values in ((car, truth), (grid, flat)):
        first, second = (
            plot_comparison(mesh, values, {"a": values * 1.1}, field="p", theme=small)
            for _ in range(2)
        )
        np.testing.assert_array_equal(first.image, second.image)


@pytest.mark.slow
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


@pytest.mark.slow
def test_user_settings_of_matplotlib_do_not_matter(grid, small):
    import matplotlib

    truth = np.linspace(0, 1, 77)
    plain = plot_comparison(grid, truth, {"a": truth}, field="u", theme=small)
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "savefig.dpi": 30}):
        changed = plot_comparison(grid, truth, {"a": truth}, field="u", theme=small)
    np.testing.assert_array_equal(plain.image, changed.image)


def test_vector_errors_of_other_models_are_named(grid, small):
    truth = np.linspace(0, 1, 77)
    with pytest.raises(ValueError, match=r"vector_errors names \['b'\], but predictions \['a'\]"):
        plot_comparison(
            grid, truth, {"a": truth}, field="|v|", vector_errors={"b": 0.25}, theme=small
        )


BAD = [
    ({"reference": np.ones(76)}, "76 reference values for a mesh of 77 points and 60 cells"),
    ({"predictions": {"run_b": np.ones(60)}}, "the prediction of 'run_b' has shape (60,)"),
    ({"predictions": {"run_b": np.ones((77, 2))}}, "the prediction of 'run_b' has shape (77, 2)"),
    ({"predictions": {"run_b": np.r_[np.nan, np.ones(76)]}}, "'run_b' holds nan at token 0"),
    ({"reference": np.r_[np.ones(76), np.inf]}, "reference holds inf at token 76"),
    ({"predictions": {}}, "predictions is empty"),
    ({"predictions": {"reference": np.ones(77)}}, "named 'reference'"),
    ({"association": "edge"}, "association 'edge'"),
    ({"association": "cell"}, "77 reference values for a mesh of 77 points and 60 cells"),
    ({"mask": np.ones(77)}, "mask must be boolean of shape (77,)"),
    ({"mask": np.zeros(77, bool)}, "mask and crop None leave no token with data"),
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


def test_a_panel_that_is_not_there_is_named(grid, small):
    truth = np.linspace(0, 1, 77)
    drawn = plot_comparison(grid, truth, {"a": truth}, field="u", theme=small)
    with pytest.raises(ValueError, match="there is no panel"):
        drawn.panel("field", "b")
