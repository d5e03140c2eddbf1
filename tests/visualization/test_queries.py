import numpy as np
import pytest

from physicsnemo_flarepp.visualization import (
    plot_query_change,
)


def test_query_change_is_relative_to_the_length(small, sheets):
    first = np.random.default_rng(0).normal(size=(2, 3, 5, 4))
    drawn = plot_query_change(first, first, cases=("a", "b"), theme=small)
    assert (drawn.change == 0).all()
    assert sheets[0].figure.texts[0].get_text().endswith("to b: none, they are fixed")
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
