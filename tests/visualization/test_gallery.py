import numpy as np
import pytest

from physicsnemo_flarepp.visualization import (
    Exhibit,
    plot_gallery,
)
from tests.visualization.looking import texts


@pytest.mark.slow
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
    assert np.ptp(drawn.panel("Cars", "input").astype(int), axis=-1).max() < 40


@pytest.mark.slow
def test_gallery_names_the_cases(grid, small, pages):
    values = np.linspace(0, 1, 77)
    named = Exhibit("Darcy", grid, values, "u", case="test_12")
    drawn = plot_gallery([named, Exhibit("Pipe", grid, values, "u")], theme=small)
    box = texts(pages[0])["Darcy\ncase test_12"]
    _, top, _, _ = drawn.rectangles["Darcy", "input"]
    assert len(drawn.image) - top < box.y0 and box.y1 < len(drawn.image)
    without = plot_gallery([Exhibit("Pipe", grid, values, "u")], theme=small)
    assert without.image.shape[0] < drawn.image.shape[0]


def test_gallery_names_bad_columns(grid):
    with pytest.raises(ValueError, match="target of Darcy holds nan at token 0"):
        plot_gallery([Exhibit("Darcy", grid, np.r_[np.nan, np.ones(76)], "u")])
    column = Exhibit("Darcy", grid, np.ones(77), "u")
    with pytest.raises(ValueError, match="titles of their own"):
        plot_gallery([column, column])
