import long_runs
import numpy as np
import pytest

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("data", long_runs.SETS)
def test_runs_have_the_steps_that_are_asked_for_at_the_default_rates(data, tmp_path):
    cfg = long_runs.config(long_runs.Run(data, "FLARE", "fp16", 2), 10_000, tmp_path)
    cases = 40 if data == "cars" else cfg.data.n_train
    assert cfg.training.epochs * cases == 10_000 * cfg.data.batch_size
    assert cfg.seed == 2 and cfg.model.mixer == "flare"
    assert (cfg.training.optimizer, cfg.training.precision) == ("muon", "fp16")
    assert (cfg.training.learning_rate, cfg.training.muon_learning_rate) == (1e-3, 1e-2)


def test_a_level_that_rises_and_stays_shows_in_the_medians():
    losses = np.ones(2000)
    losses[1000:] = 3.0
    assert long_runs.spikes(losses) == {"loss / median before": 3.0, "median / best before": 3.0}
    losses[1050:] = 1.0
    assert long_runs.spikes(losses) == {"loss / median before": 3.0, "median / best before": 1.0}


@pytest.mark.exhaustive
def test_a_short_run_in_fp16_leaves_its_row_and_picture(tmp_path):
    run = long_runs.Run("darcy", "FLARE++", "fp16", 0)
    row = long_runs.measure(run, 600, tmp_path)
    assert row["steps"] == 600 and row["not finite"] == 0
    assert 0 <= row["updates skipped"] < 50
    assert row["test error, %"] < 30
    long_runs.draw([run], tmp_path, tmp_path / "losses.png")
    assert (tmp_path / "losses.png").stat().st_size > 10_000
