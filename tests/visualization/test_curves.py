import json
import re

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from physicsnemo_flarepp.visualization import Theme, plot_parity, plot_spectrum, plot_training
from physicsnemo_flarepp.visualization.curves import log_numbers
from physicsnemo_flarepp.visualization.sheets import styled
from physicsnemo_flarepp.visualization.training_curves import read_metrics


def write_metrics(path, records):
    path.mkdir(parents=True)
    (path / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    return path


def run_records(factor, n=50):
    for step in range(1, n + 1):
        yield {"kind": "step", "step": step, "epoch": 0, "loss": factor / step}
        if step % 10 == 0:
            yield {
                "kind": "evaluation",
                "step": step,
                "epoch": 0,
                "error": factor * (0.5 if step == 30 else 1) / step,
                "mean_predictor_error": 0.8,
            }


def test_training_gives_last_and_best_error(tmp_path, small):
    runs = {
        name: write_metrics(tmp_path / name, run_records(f)) for name, f in (("a", 1), ("b", 2))
    }
    drawn = plot_training(runs, theme=small, path=tmp_path / "t.svg")
    assert drawn.final_error == pytest.approx({"a": 1 / 50, "b": 2 / 50})
    assert drawn.best_error == pytest.approx({"a": 0.5 / 30, "b": 1 / 30})
    text = (tmp_path / "t.svg").read_text()
    assert ">a<" in text and ">b<" in text and "predicting the training mean" in text


def test_resumed_steps_count_once_and_a_cut_last_line_is_left_out(tmp_path):
    records = [{"kind": "step", "step": s, "loss": 1.0} for s in (1, 2, 3)]
    records += [{"kind": "step", "step": s, "loss": 2.0} for s in (2, 3, 4)]
    path = write_metrics(tmp_path / "run", records)
    with open(path / "metrics.jsonl", "a") as file:
        file.write('{"kind": "step", "st')
    found = read_metrics(path)
    assert [(r["step"], r["loss"]) for r in found] == [(1, 1.0), (2, 2.0), (3, 2.0), (4, 2.0)]


def test_broken_metrics_are_named(tmp_path):
    path = write_metrics(tmp_path / "run", [{"kind": "step", "loss": 1.0}, {}])
    with pytest.raises(ValueError, match="metrics.jsonl, line 1 is no record with step and kind"):
        read_metrics(path)
    with pytest.raises(FileNotFoundError, match="training writes it"):
        plot_training({"a": tmp_path})
    empty = write_metrics(tmp_path / "empty", [])
    with pytest.raises(ValueError, match="run 'a' has logged neither a loss nor an error"):
        plot_training({"a": empty})


def test_long_runs_are_drawn_as_means(tmp_path):
    from physicsnemo_flarepp.visualization.training_curves import _thinned

    series = np.stack([np.arange(1000.0), np.arange(1000.0) ** 2], 1)
    thin = _thinned(series)
    assert len(thin) == 200
    np.testing.assert_allclose(thin[3], series[15:20].mean(0))
    np.testing.assert_allclose(thin[-1], series[995:].mean(0))


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
    with pytest.raises(ValueError, match="drag of 'a' holds nan for case number 1"):
        plot_parity(truth, {"a": {"drag": np.array([1, np.nan, 1])}})


def test_names_of_a_parity_are_above_its_axes_and_keep_their_scores():
    truth = {"drag": np.array([0.1, 0.2, 0.3])}
    names = ["short", "a run with a name that is much longer than the axes are wide, by far"]
    small = Theme(dpi=100)
    drawn = plot_parity(truth, {name: truth for name in names}, theme=small)
    more = plot_parity(truth, {name: truth for name in "abcde"}, theme=small)
    assert more.image.shape[0] - drawn.image.shape[0] == 48  # three lines more
    assert (drawn.image[:, -4:] == 255).all()
    blue, orange = (np.array([0x00, 0x72, 0xB2]), np.array([0xD5, 0x5E, 0x00]))
    for color, line in ((blue, 0), (orange, 1)):
        row = drawn.image[32 + 8 + 16 * line - 10 : 32 + 8 + 16 * line + 2, 60:78].astype(int)
        assert (np.abs(row - color).max(-1) < 40).any()


LONG = ["drivaerml_curated-flarepp-seed0", "drivaerml_curated-flare-seed0", "run " * 60]


def draw(kind, names, tmp_path):
    if kind == "training":
        numbered = list(enumerate(names, start=1))
        runs = {name: write_metrics(tmp_path / str(i), run_records(i)) for i, name in numbered}
        plot_training(runs, title="title", theme=Theme(dpi=100))
    else:
        blocks = int(kind.removeprefix("spectrum"))
        values = np.geomspace(1, 1e-9, 16) * np.ones((blocks, 3, 1))
        plot_spectrum({n: values for n in names}, title="title", theme=Theme(dpi=100))


@pytest.mark.parametrize("kind", ["training", "spectrum1", "spectrum3"])
def test_words_are_on_the_page_apart_from_each_other_and_from_curves(kind, tmp_path, sheets):
    draw(kind, LONG, tmp_path)
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


@pytest.mark.parametrize("kind", ["training", "spectrum1"])
def test_samples_beside_the_names_have_the_colors_of_the_curves(kind, tmp_path, sheets):
    draw(kind, LONG, tmp_path)
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


def test_spectrum_explains_its_band_and_its_floor_where_it_has_one(small, sheets):
    for last in (1e-9, 1e-7):
        plot_spectrum({"a": np.geomspace(1, last, 8) * np.ones((1, 2, 1))}, theme=small)
    deep, shallow = ([text.get_text() for text in sheet.figure.texts] for sheet in sheets)
    band = "line: geometric mean of the heads; band: from the least to the greatest head"
    assert band in deep and band in shallow
    assert [any("10$^{-8}$" in words for words in texts) for texts in (deep, shallow)] == [1, 0]
    # The floor that is told is the one that is drawn.
    lowest = [sheet.figure.axes[0].lines[0].get_ydata().min() for sheet in sheets]
    np.testing.assert_allclose(lowest, [1e-8, 1e-7])
