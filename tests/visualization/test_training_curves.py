import numpy as np
import pytest

from physicsnemo_flarepp.visualization import plot_training
from physicsnemo_flarepp.visualization.training_curves import _thinned
from tests.visualization.looking import run_records


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
