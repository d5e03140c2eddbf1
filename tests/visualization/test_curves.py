import re

import numpy as np
import pytest

from physicsnemo_flarepp.visualization import (
    LIGHT,
    Theme,
    plot_parity,
    plot_spectrum,
    plot_training,
)
from physicsnemo_flarepp.visualization.curves import _thinned, log_numbers
from physicsnemo_flarepp.visualization.pages import Page
from tests.visualization.looking import numbers, run_records, texts

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
def test_words_are_on_the_page_apart_from_each_other_and_from_curves(kind, pages):
    draw(kind, LONG)
    (page,) = pages
    frames = [axis.get_window_extent() for axis in page.figure.axes]
    width, height = page.figure.get_size_inches() * page.theme.dpi
    starts = ("title", "line: ", "predicting", *(name[:8] for name in LONG))
    boxes = {text: box for text, box in texts(page).items() if text.startswith(starts)}
    assert len(boxes) == 5
    for words, box in boxes.items():
        assert 0 <= box.x0 and box.x1 <= width, words
        assert 0 <= box.y0 and box.y1 <= height, words
        others = [*frames, *(boxes[other] for other in boxes if other != words)]
        assert not box.count_overlaps(others), words


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["training", "spectrum1"])
def test_samples_beside_the_names_have_the_colors_of_the_curves(kind, pages):
    draw(kind, LONG)
    (legend,) = pages[0].figure.legends
    samples = [line.get_color() for line in legend.get_lines()][: len(LONG)]
    curves = [line.get_color() for line in pages[0].axes[0, 0].lines][: len(LONG)]
    assert samples == curves and len(set(samples)) == len(LONG)


RANGES = [(10.4, 67), (0.11, 0.8), (0.3, 4e3), (8.1, 11.9), (99, 101), (1e-9, 2), (3e-7, 5e-6)]


@pytest.mark.parametrize(("low", "high"), [*RANGES, (1e-30, 1e4), (0.02, 0.4), (1e-3, 1e3)])
def test_logarithmic_axes_have_numbers_all_along(low, high):
    with Page(LIGHT, [360], [448]) as page:
        axis = page.axes[0, 0]
        axis.plot([0, 1], [low, high])
        log_numbers(axis)
    low, high = axis.get_ylim()
    values, labels = zip(*numbers(axis.yaxis, (low, high)).items(), strict=True)
    assert len(values) >= 4 and all(label.get_text() for label in labels)
    gaps = np.diff(np.log([low, *values, high])) / np.log(high / low)
    assert gaps.max() < 0.4
    boxes = [label.get_window_extent() for label in labels]
    assert all(a.y1 < b.y0 for a, b in zip(boxes, boxes[1:], strict=False))
    if 1e-4 < low and high < 1e5:
        np.testing.assert_allclose([float(label.get_text()) for label in labels], values)


def test_training_gives_last_and_best_error(tmp_path, small):
    runs = {name: list(run_records(factor)) for name, factor in (("a", 1), ("b", 2))}
    drawn = plot_training(runs, theme=small, path=tmp_path / "t.svg")
    assert drawn.final_error == pytest.approx({"a": 1 / 50, "b": 2 / 50})
    assert drawn.best_error == pytest.approx({"a": 0.5 / 30, "b": 1 / 30})
    text = (tmp_path / "t.svg").read_text()
    assert ">a<" in text and ">b<" in text and "predicting the training mean" in text


def test_the_error_of_the_mean_is_drawn_only_where_it_is_known(tmp_path, small):
    rows = [dict(row, mean_predictor_error=None) for row in run_records(1)]
    plot_training({"a": rows}, theme=small, path=tmp_path / "t.svg")
    assert "training mean" not in (tmp_path / "t.svg").read_text()


def test_both_curves_share_their_steps_and_a_dashed_line_is_told(tmp_path, small):
    rows = [{"kind": "step", "step": step, "loss": 1 / step} for step in range(1, 801)]
    rows += [{"kind": "evaluation", "split": s, "step": 800, "error": 0.1} for s in ("test", "val")]
    plot_training({"a": rows}, theme=small, path=tmp_path / "t.svg")
    text = (tmp_path / "t.svg").read_text()
    assert text.count(">400<") == 2, "the one evaluation is not alone on its axis"
    assert "validation and test (dashed) error" in text


def test_runs_without_numbers_are_named():
    with pytest.raises(ValueError, match="run 'a' has logged neither a loss nor an error"):
        plot_training({"a": []})
    with pytest.raises(ValueError, match="histories is empty"):
        plot_training({})


def test_long_runs_are_drawn_as_means():
    series = np.stack([np.arange(1000.0), np.arange(1000.0) ** 2], 1)
    thin = _thinned(series)
    assert len(thin) == 200
    np.testing.assert_allclose(thin[3], series[15:20].mean(0))
    np.testing.assert_allclose(thin[-1], series[995:].mean(0))


def test_parity_gives_r_squared_of_each_model_and_quantity(small):
    rng = np.random.default_rng(0)
    truth = {"drag": rng.random(9), "lift": rng.random(9)}
    models = {n: {q: v + s * rng.normal(size=9) for q, v in truth.items()} for n, s in [("a", 0.1)]}
    drawn = plot_parity(truth, models, theme=small)
    for quantity, true in truth.items():
        residual = np.var(true) * 9
        expected = 1 - np.sum((models["a"][quantity] - true) ** 2) / residual
        assert drawn.r_squared["a"][quantity] == pytest.approx(expected)


def test_bad_parity_input_is_named():
    truth = {"drag": np.ones(3)}
    with pytest.raises(ValueError, match=r"drag of 'a' has shape \(2,\), expected \(3,\)"):
        plot_parity(truth, {"a": {"drag": np.ones(2)}})
    with pytest.raises(ValueError, match=r"'a' predicts \['lift'\], not 'drag'"):
        plot_parity(truth, {"a": {"lift": np.ones(3)}})
    with pytest.raises(ValueError, match="drag of 'a' holds nan at case 1"):
        plot_parity(truth, {"a": {"drag": np.array([1, np.nan, 1])}})


def test_names_of_a_parity_are_above_its_axes_and_keep_their_scores(pages):
    truth = {"drag": np.array([0.1, 0.2, 0.3]), "lift": np.array([1.0, 2.0, 4.0])}
    names = ["short", "a run with a name that is much longer than the axes are wide, by far"]
    drawn = plot_parity(truth, {name: truth for name in names}, theme=Theme(dpi=100))
    (page,) = pages
    for axis in page.axes[0]:
        frame, legend = axis.get_window_extent(), axis.get_legend()
        assert frame.width == frame.height == 220
        words = [text.get_text() for text in legend.get_texts()]
        assert words[0] == "short, R² = 1.000" and words[1].endswith("…, R² = 1.000")
        colors = [line.get_color() for line in legend.get_lines()]
        assert colors == [line.get_color() for line in axis.lines[:2]] and len(set(colors)) == 2
        for text in legend.get_texts():
            box = text.get_window_extent()
            assert frame.y1 < box.y0 and box.y1 < len(drawn.image) and box.x1 <= frame.x1 + 10


def test_spectrum_counts_the_routes_that_carry(small):
    values = np.zeros((2, 3, 8))
    values[0, :, 0] = 1
    values[1, :, :4] = 1
    drawn = plot_spectrum({"a": values, "b": values[:1, :, :5]}, theme=small)
    assert drawn.effective_rank == {"a": (1.0, 4.0), "b": (1.0,)}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.ones((2, 3)), "the spectrum of 'a' has shape (2, 3)"),
        (np.arange(6.0).reshape(1, 2, 3), "the largest first"),
        (np.full((1, 1, 3), np.nan), "finite singular values"),
    ],
)
def test_bad_spectra_are_named(values, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        plot_spectrum({"a": values})


def test_spectrum_explains_its_band_and_its_floor_where_it_has_one(small, pages):
    for last in (1e-9, 1e-7):
        plot_spectrum({"a": np.geomspace(1, last, 8) * np.ones((1, 2, 1))}, theme=small)
    deep, shallow = (list(texts(page)) for page in pages)
    band = "line: geometric mean of the heads; band: from the least to the greatest head"
    assert all(any(words.startswith(band) for words in found) for found in (deep, shallow))
    floors = [any("10$^{-8}$, which" in words for words in found) for found in (deep, shallow)]
    assert floors == [True, False]
    # The floor that is told is the one that is drawn.
    lowest = [page.figure.axes[0].lines[0].get_ydata().min() for page in pages]
    np.testing.assert_allclose(lowest, [1e-8, 1e-7])


def test_lines_are_the_geometric_mean_over_heads_and_bands_their_range(small, pages):
    heads = np.array([[1.0, 1e-2, 1e-4], [1.0, 1e-4, 1e-4], [1.0, 0.1, 1e-4]])
    plot_spectrum({"a": 5 * heads[None]}, theme=small)
    (axis,) = pages[0].figure.axes
    np.testing.assert_allclose(axis.lines[0].get_ydata(), [1.0, 10 ** (-7 / 3), 1e-4])
    band = axis.collections[0].get_paths()[0].vertices[:, 1]
    np.testing.assert_allclose([band.min(), band.max()], [1e-4, 1.0])
