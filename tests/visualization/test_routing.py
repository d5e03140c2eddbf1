from types import SimpleNamespace

import numpy as np
import pytest
import pyvista as pv
from matplotlib.colors import to_rgb

from physicsnemo_flarepp.visualization import (
    plot_routing,
)
from tests.visualization.looking import pixels


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


def test_low_domains_leave_room_for_the_words_beside_them(small):
    low = pv.ImageData(dimensions=(41, 3, 1))
    drawn = plot_routing(low, [head(123)], theme=small)
    rows = sorted({(top, height) for _, top, _, height in drawn.rectangles.values()})
    assert rows[1][0] - rows[0][0] >= 0.66 * small.dpi > 5 * rows[0][1]
