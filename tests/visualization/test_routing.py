from types import SimpleNamespace

import numpy as np
import pytest
import pyvista as pv
from matplotlib.colors import to_rgb

from physicsnemo_flarepp.visualization import plot_query_change, plot_routing
from tests.visualization.looking import assert_apart, texts


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


@pytest.mark.slow
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
        picture = drawn.panel(0, 1, 0, kind).astype(int)
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


@pytest.mark.parametrize("routes", [(0,), (4, 2), (4, 2, 1)])
def test_low_domains_leave_room_for_the_words_and_bars_beside_them(routes, small, pages):
    low = pv.ImageData(dimensions=(41, 3, 1))
    drawn = plot_routing(low, [head(123, routes=routes)], theme=small)
    rows = sorted({(top, height) for _, top, _, height in drawn.rectangles.values()})
    assert rows[1][0] - rows[0][0] >= 0.66 * small.dpi > 5 * rows[0][1]
    words = texts(pages[0])
    boxes = [box for text, box in words.items() if text.startswith(("block", "draws", "returns"))]
    assert len(boxes) == 4
    for box in boxes:
        assert not box.count_overlaps([other for other in boxes if other is not box])


def test_heads_may_have_different_numbers_of_routes(grid, small, pages):
    drawn = plot_routing(grid, [head(77, 0), head(77, 1, routes=(3,))], theme=small)
    assert len(drawn.rectangles) == 6
    assert_apart(pages[0], drawn.rectangles)
    assert not pages[0].axes[2, 1].get_xticks().size


def test_query_change_is_relative_to_the_length(small, pages):
    first = np.random.default_rng(0).normal(size=(2, 3, 5, 4))
    drawn = plot_query_change(first, first, cases=("a", "b"), theme=small)
    assert (drawn.change == 0).all()
    assert any(words.endswith("none, they are fixed") for words in texts(pages[0]))
    drawn = plot_query_change(first, -first, cases=("a", "b"), theme=small)
    np.testing.assert_allclose(drawn.change, 2)
    with pytest.raises(ValueError, match=r"shapes \(2, 3, 5, 4\) and \(2, 3, 4, 4\)"):
        plot_query_change(first, first[:, :, :4], cases=("a", "b"))


def test_query_change_names_run_and_cases(small, pages):
    first = np.random.default_rng(0).normal(size=(2, 3, 5, 4))
    long = "drivaerml_curated-flarepp-seed0" * 4
    drawn = plot_query_change(first, -first, cases=("run_1", "run_2"), title=long, theme=small)
    words, (height, width, _) = texts(pages[0]), drawn.image.shape
    (above,) = (box for text, box in words.items() if text.startswith("drivaerml_curated-flarepp"))
    below = words["change of the queries from run_1 to run_2"]
    assert 0 < above.x0 and above.x1 < width and above.y1 < height
    assert below.y1 < above.y0 and below.y0 > pages[0].axes[0, 0].get_window_extent().y1
