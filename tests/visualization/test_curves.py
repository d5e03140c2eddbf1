import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from physicsnemo_flarepp.visualization import Theme, plot_spectrum, plot_training
from physicsnemo_flarepp.visualization.curves import log_numbers
from physicsnemo_flarepp.visualization.sheets import styled
from tests.visualization.looking import run_records

LONG = ["drivaerml_curated-flarepp-seed0", "drivaerml_curated-flare-seed0", "run " * 60]


def draw(kind, names):
    if kind == "training":
        runs = {name: list(run_records(i)) for i, name in enumerate(names, start=1)}
        plot_training(runs, title="title", theme=Theme(dpi=100))
    else:
        blocks = int(kind.removeprefix("spectrum"))
        values = np.geomspace(1, 1e-9, 16) * np.ones((blocks, 3, 1))
        plot_spectrum({n: values for n in names}, title="title", theme=Theme(dpi=100))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["training", "spectrum1", "spectrum3"])
def test_words_are_on_the_page_apart_from_each_other_and_from_curves(kind, sheets):
    draw(kind, LONG)
    (sheet,) = sheets
    frames = [axis.get_window_extent() for axis in sheet.figure.axes]
    starts = ("title", "line: ", "values below", "predicting", *(name[:8] for name in LONG))
    texts = sheet.figure.findobj(lambda a: isinstance(a, Text) and a.get_text().startswith(starts))
    assert len(texts) == (5 if kind == "training" else 6)
    boxes = {text.get_text(): text.get_window_extent() for text in texts}
    for words, box in boxes.items():
        assert 0 <= box.x0 and box.x1 <= sheet.width, words
        assert 0 <= box.y0 and box.y1 <= sheet.height, words
        others = [*frames, *(boxes[other] for other in boxes if other != words)]
        assert not box.count_overlaps(others), words


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["training", "spectrum1"])
def test_samples_beside_the_names_have_the_colors_of_the_curves(kind, sheets):
    draw(kind, LONG)
    samples = [line.get_color() for line in sheets[0].figure.artists][: len(LONG)]
    curves = [line.get_color() for line in sheets[0].figure.axes[0].lines][: len(LONG)]
    assert samples == curves and len(set(samples)) == len(LONG)


RANGES = [(10.4, 67), (0.11, 0.8), (0.3, 4e3), (8.1, 11.9), (99, 101), (1e-9, 2), (3e-7, 5e-6)]


@pytest.mark.parametrize(("low", "high"), [*RANGES, (1e-30, 1e4), (0.02, 0.4), (1e-3, 1e3)])
def test_logarithmic_axes_have_numbers_all_along(low, high):
    with styled(Theme()):
        figure = Figure(figsize=(3, 2.8))
        axis = figure.add_axes((0.3, 0.1, 0.6, 0.8))
        axis.plot([0, 1], [low, high])
        log_numbers(axis)
        figure.draw_without_rendering()
    low, high = axis.get_ylim()
    labels, values = axis.get_yticklabels(), axis.yaxis.get_majorticklocs()
    assert len(values) >= 4 and all(label.get_text() for label in labels)
    gaps = np.diff(np.log([low, *values, high])) / np.log(high / low)
    assert gaps.max() < 0.31
    boxes = [label.get_window_extent() for label in labels]
    assert all(a.y1 < b.y0 for a, b in zip(boxes, boxes[1:], strict=False))
    if 1e-4 < low and high < 1e5:
        np.testing.assert_allclose([float(label.get_text()) for label in labels], values)
