from types import SimpleNamespace

import numpy as np
import pytest
import pyvista as pv
from matplotlib.colors import to_rgb

from physicsnemo_flarepp.visualization import (
    Exhibit,
    plot_gallery,
    plot_query_change,
    plot_routing,
)


def pixels(drawn, key):
    left, top, width, height = drawn.rectangles[key]
    return drawn.image[top : top + height, left : left + width].astype(int)


def test_gallery_has_input_above_target_on_scales_of_their_own(grid, car, small):
    values = np.linspace(-3, 5, 77)
    columns = [
        Exhibit("Darcy", grid, values, "u", source=values**2, source_label="a"),
        Exhibit("Cars", car, np.arange(car.n_cells, dtype=float), "p", camera="side"),
    ]
    drawn = plot_gallery(columns, theme=small)
    assert drawn.limits["Darcy", "target"] == tuple(np.percentile(values, (0.5, 99.5)))
    assert drawn.limits["Darcy", "input"] == tuple(np.percentile(values**2, (0.5, 99.5)))
    assert drawn.limits["Cars", "input"] is None
    for name in ("Darcy", "Cars"):
        above, below = drawn.rectangles[name, "input"], drawn.rectangles[name, "target"]
        assert above[0] == below[0] and above[2:] == below[2:]
        assert above[1] + above[3] < below[1]
    darcy, cars = drawn.rectangles["Darcy", "input"], drawn.rectangles["Cars", "input"]
    assert darcy[0] + darcy[2] < cars[0]
    # A geometry has no colours of a scale.
    assert np.ptp(pixels(drawn, ("Cars", "input")), axis=-1).max() < 40


def test_gallery_names_the_cases(grid, small, sheets):
    values = np.linspace(0, 1, 77)
    named = Exhibit("Darcy", grid, values, "u", case="test_12")
    drawn = plot_gallery([named, Exhibit("Pipe", grid, values, "u")], theme=small)
    (case,) = (text for text in sheets[0].figure.texts if text.get_text() == "case test_12")
    title = next(text for text in sheets[0].figure.texts if text.get_text() == "Darcy")
    _, top, _, _ = drawn.rectangles["Darcy", "input"]
    box = case.get_window_extent()
    assert sheets[0].height - top < box.y0 and box.y1 < title.get_window_extent().y0
    without = plot_gallery([Exhibit("Pipe", grid, values, "u")], theme=small)
    assert without.image.shape[0] < drawn.image.shape[0]


def test_gallery_names_bad_columns(grid):
    with pytest.raises(ValueError, match="target of Darcy holds nan at token 0"):
        plot_gallery([Exhibit("Darcy", grid, np.r_[np.nan, np.ones(76)], "u")])
    column = Exhibit("Darcy", grid, np.ones(77), "u")
    with pytest.raises(ValueError, match="titles of their own"):
        plot_gallery([column, column])


def head(n_tokens, block=0, number=1, routes=(4, 2)):
    rng = np.random.default_rng(block)
    encode = rng.random((len(routes), n_tokens))
    return SimpleNamespace(
        block=block,
        head=number,
        routes=np.array(routes),
        masses=np.linspace(0.5, 0.1, len(routes)),
        encode=encode / encode.sum(1, keepdims=True),
        decode=rng.random((len(routes), n_tokens)) ** 3,
    )


def test_routing_shares_one_scale_per_kind(grid, small):
    heads = [head(77, block) for block in (0, 1)]
    drawn = plot_routing(grid, heads, theme=small)
    for kind, factor in (("encode", 77), ("decode", 1)):
        together = factor * np.concatenate([getattr(h, kind).ravel() for h in heads])
        assert drawn.limits[kind] == (0.0, np.percentile(together, 99.5))
    keys = {(b, 1, r, k) for b in (0, 1) for r in (4, 2) for k in ("encode", "decode")}
    assert set(drawn.rectangles) == keys
    columns = [drawn.rectangles[0, 1, route, "encode"][0] for route in (4, 2)]
    assert columns[0] < columns[1]  # the greater mass first
    assert drawn.rectangles[0, 1, 4, "encode"][1] < drawn.rectangles[0, 1, 4, "decode"][1]


def test_weight_lights_up_where_it_is(small):
    plane = pv.Plane(i_size=2, j_size=1, i_resolution=10, j_resolution=5)
    x = plane.cell_centers().points[:, 0]
    left, right = (x < 0).astype(float), (x > 0).astype(float)
    weights = head(50, routes=(0,))
    weights.encode, weights.decode = left[None] / left.sum(), right[None]
    drawn = plot_routing(plane, [weights], theme=small)
    nothing = np.round(255 * np.array(to_rgb(small.surface)))
    for kind, empty in (("encode", slice(50, 85)), ("decode", slice(5, 40))):
        picture = pixels(drawn, (0, 1, 0, kind))
        row = picture[picture.shape[0] // 2]
        assert np.abs(row[empty] - nothing).max() <= 1
        assert np.abs(row[90 - empty.stop : 90 - empty.start] - nothing).max(1).min() > 100


def test_bad_weights_are_named(grid):
    weights = head(77)
    weights.decode = weights.decode[:, :76]
    with pytest.raises(ValueError, match="decode weights of block 0, head 1, route 4 has shape"):
        plot_routing(grid, [weights])
    weights = head(77)
    weights.encode = weights.encode[:1]
    with pytest.raises(ValueError, match=r"encode weights of block 0, head 1 have shape \(1, 77\)"):
        plot_routing(grid, [weights])
    with pytest.raises(ValueError, match="weights is empty"):
        plot_routing(grid, [])


def test_query_change_is_relative_to_the_length(small):
    first = np.random.default_rng(0).normal(size=(2, 3, 5, 4))
    drawn = plot_query_change(first, first, cases=("a", "b"), theme=small)
    assert (drawn.change == 0).all()
    drawn = plot_query_change(first, -first, cases=("a", "b"), theme=small)
    np.testing.assert_allclose(drawn.change, 2)
    with pytest.raises(ValueError, match=r"shapes \(2, 3, 5, 4\) and \(2, 3, 4, 4\)"):
        plot_query_change(first, first[:, :, :4], cases=("a", "b"))


def test_query_change_names_run_and_cases(small, sheets):
    first = np.random.default_rng(0).normal(size=(2, 3, 5, 4))
    long = "drivaerml_curated-flarepp-seed0" * 4
    plot_query_change(first, -first, cases=("run_1", "run_2"), title=long, theme=small)
    (sheet,) = sheets
    title, cases = sheet.figure.texts[:2]
    assert title.get_text().startswith("drivaerml_curated-flarepp-seed0")
    assert cases.get_text() == "change of the queries from run_1 to run_2"
    above, below = (text.get_window_extent() for text in (title, cases))
    assert 0 < above.x0 and above.x1 < sheet.width and above.y1 < sheet.height
    assert below.y1 < above.y0 and below.y0 > sheet.figure.axes[0].get_window_extent().y1


def test_low_domains_leave_room_for_the_words_beside_them(small):
    low = pv.ImageData(dimensions=(41, 3, 1))
    drawn = plot_routing(low, [head(123)], theme=small)
    rows = sorted({(top, height) for _, top, _, height in drawn.rectangles.values()})
    assert rows[1][0] - rows[0][0] >= 0.66 * small.dpi > 5 * rows[0][1]
