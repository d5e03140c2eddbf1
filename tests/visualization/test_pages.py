"""Where panels and words are on the page of a comparison."""

import numpy as np
import pytest
import pyvista as pv

from physicsnemo_flarepp.visualization import Theme, plot_comparison
from tests.visualization.looking import rgb

pytestmark = pytest.mark.slow


def assert_panels_apart(drawn):
    height, width = drawn.image.shape[:2]
    taken = np.zeros((height, width), int)
    for panel in drawn.panels:
        left, top, w, h = panel.rectangle
        assert 0 <= left and 0 <= top and left + w <= width and top + h <= height
        taken[top : top + h, left : left + w] += 1
    assert taken.max() == 1


def test_one_view_of_one_model_is_one_row_with_its_convention_below(grid, small, sheets):
    truth = np.linspace(0, 1, 77)
    drawn = plot_comparison(grid, truth, {"a": truth + 0.1}, field="u", theme=small)
    assert [(p.kind, p.row, p.column) for p in drawn.panels] == [
        ("field", 0, 0),
        ("field", 0, 1),
        ("error", 0, 2),
    ]
    assert_panels_apart(drawn)
    words = {text.get_text(): text.get_window_extent() for text in sheets[0].figure.texts}
    (note,) = (box for text, box in words.items() if text.startswith("error = prediction"))
    assert 0 <= note.y0 and note.y1 < min(b.y0 for b in words.values() if b is not note)


def test_one_view_of_several_models_has_fields_above_and_errors_below(grid, small):
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
