"""Where panels and words are on the page of a comparison."""

import numpy as np
import pytest
import pyvista as pv

from physicsnemo_flarepp.visualization import Theme, plot_comparison
from tests.visualization.looking import assert_apart, rgb, texts

pytestmark = pytest.mark.slow


def places(drawn):
    """Row and column of each panel, from where its middle is, to a pixel or two."""
    middles = {key: (y + h / 2, x + w / 2) for key, (x, y, w, h) in drawn.rectangles.items()}

    def rank(key, axis):
        ordered = sorted(middle[axis] for middle in middles.values())
        pairs = zip(ordered, ordered[1:], strict=False)
        gaps = [after for before, after in pairs if after > before + 3]
        return sum(start <= middles[key][axis] for start in gaps)

    return {key: (rank(key, 0), rank(key, 1)) for key in middles}


def test_one_view_of_one_model_is_one_row_with_its_convention_below(grid, small, pages):
    truth = np.linspace(0, 1, 77)
    drawn = plot_comparison(grid, truth, {"a": truth + 0.1}, field="u", theme=small)
    assert places(drawn) == {
        ("field", "reference", "plan"): (0, 0),
        ("field", "a", "plan"): (0, 1),
        ("error", "a", "plan"): (0, 2),
    }
    assert_apart(pages[0], drawn.rectangles)
    words = texts(pages[0])
    (note,) = (box for text, box in words.items() if text.startswith("rel. L2: sums"))
    assert 0 <= note.y0 and note.y1 < min(b.y0 for b in words.values() if b is not note)


def test_one_view_of_several_models_has_fields_above_and_errors_below(grid, small, pages):
    truth = np.linspace(0, 1, 77)
    models = {"a": truth + 0.1, "b": truth}
    drawn = plot_comparison(grid, truth, models, field="u", theme=small)
    assert places(drawn) == {
        ("field", "reference", "plan"): (0, 0),
        ("field", "a", "plan"): (0, 1),
        ("field", "b", "plan"): (0, 2),
        ("error", "a", "plan"): (1, 1),
        ("error", "b", "plan"): (1, 2),
    }
    assert_apart(pages[0], drawn.rectangles)
    assert {width for _, _, width, _ in drawn.rectangles.values()} == {90}  # 1.5 inches at 60 dots


def test_several_views_are_rows_and_errors_follow_the_fields(car, small, pages):
    truth = car.cell_centers().points[:, 0]
    drawn = plot_comparison(car, truth, {"a": truth + 1, "b": truth}, field="p", theme=small)
    assert drawn.cameras == ("three-quarter", "side", "top", "rear")
    found = places(drawn)
    assert len(found) == 20
    assert found["field", "reference", "side"] == (1, 0)
    assert found["field", "b", "side"] == (1, 2)
    assert found["error", "a", "top"] == (2, 3)
    assert found["error", "b", "rear"] == (3, 4)
    assert_apart(pages[0], drawn.rectangles)


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
def test_domains_of_extreme_shape_give_small_pages(size, small, pages):
    mesh = pv.ImageData(dimensions=(*size, 1))
    truth = np.linspace(0, 1, 202)
    drawn = plot_comparison(mesh, truth, {"a": truth}, field="u", theme=small)
    assert_apart(pages[0], drawn.rectangles)
    assert drawn.image.shape[0] < 2 * 1.6 * 90 + 120
    for _, _, width, height in drawn.rectangles.values():
        assert 1 <= width <= 90 and 1 <= height <= 144
    reference = drawn.panel("field", "reference")
    assert reference.max() > 150  # not black


@pytest.mark.parametrize("shape", ["grid", "car"])
def test_errors_of_magnitude_and_vector_are_both_named(shape, request, pages):
    mesh, theme = request.getfixturevalue(shape), Theme(dpi=100)
    truth = np.linspace(1, 2, 77 if shape == "grid" else mesh.n_cells)
    models, vectors = {"a": 1.1 * truth, "b" * 70: truth}, {"a": 0.25, "b" * 70: 0.0614}
    drawn = plot_comparison(
        mesh, truth, models, field="|v|", vector_errors=vectors, title="case 1", theme=theme
    )
    assert drawn.relative_l2 == pytest.approx({"a": 0.1, "b" * 70: 0})
    words, height = texts(pages[0]), len(drawn.image)
    ends = {
        "a": " error, rel. L2\nmagnitude 10.00%, vector 25.00%",
        "b" * 70: "… error, rel. L2\nmagnitude 0.00%, vector 6.14%",
    }
    for name, end in ends.items():
        ((heading, box),) = ((text, box) for text, box in words.items() if text.endswith(end))
        assert heading.startswith(name[:3])
        left, top, width, _ = drawn.rectangles["error", name, drawn.cameras[0]]
        assert height - top < box.y0 and box.y1 < words["case 1"].y0
        assert box.width <= theme.panel_width * theme.dpi
        assert abs(box.x0 + box.x1 - 2 * left - width) < 4
