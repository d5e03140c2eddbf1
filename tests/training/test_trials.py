"""Several models at equal settings."""

import csv
import os
import pickle
import signal

import pytest

from physicsnemo_flarepp.runs.metrics import read_metrics
from physicsnemo_flarepp.training.step import TrainStep
from physicsnemo_flarepp.training.trials import (
    Trial,
    TrialResult,
    TrialStopped,
    compare,
    comparison_table,
)


@pytest.fixture
def make_trials(make_config, tmp_path):
    def make(**changes):
        return [
            Trial(
                name,
                seed,
                make_config(
                    run_dir=str(tmp_path / f"{name}{seed}"),
                    seed=seed,
                    training__epochs=1,
                    model___target_="physicsnemo_flarepp.MixerBackbone",
                    model__mixer=name,
                    **changes,
                ),
            )
            for name in ("flare", "flarepp")
            for seed in (0, 1)
        ]

    return make


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_table_holds_what_the_runs_reported(make_trials, tmp_path, jobs):
    table = compare(make_trials(), tmp_path / "table", jobs)
    with open(tmp_path / "table" / "comparison.csv") as file:
        rows = list(csv.DictReader(file))
    assert [(row["model"], row["seed"]) for row in rows] == [
        (name, seed) for name in ("flare", "flarepp") for seed in ("0", "1")
    ]
    for row in rows:
        reported = read_metrics(tmp_path / f"{row['model']}{row['seed']}")[-1]["error"]
        assert float(row["error"]) == pytest.approx(reported)
    means = [100 * sum(float(r["error"]) for r in rows[i : i + 2]) / 2 for i in (0, 2)]
    assert f"| flare | {means[0]:.2f} ± " in table and f"| flarepp | {means[1]:.2f} ± " in table
    assert (tmp_path / "table" / "comparison.md").read_text() == table
    assert (tmp_path / "flare0" / "log.txt").exists() == (jobs > 1)
    assert table.count("- Recipe ") == 1 and f"- Recipe A: {rows[0]['recipe']}" in table


def test_errors_on_validation_cases_are_not_called_test_errors():
    result = TrialResult("flare", 0, 0.2, 1000, 0.1, 80, "", "batch 2", split="val")
    table = comparison_table([result])
    assert "| validation error, % |" in table and "on the validation set" in table
    assert "test" not in table


def test_failing_trial_starts_no_further_one(make_trials, tmp_path):
    trials = make_trials()
    trials[0].config.model.n_hidden = 17
    with pytest.raises(ValueError, match="n_hidden"):
        compare(trials, tmp_path / "table", jobs=2)
    assert not (tmp_path / "flarepp1").exists()


def test_ranks_are_refused(make_trials, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="under 2 ranks; start it as one process"):
        compare(make_trials(), tmp_path)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR1"])
def test_a_signal_stops_the_comparison_with_its_own_exit_code(
    make_trials, tmp_path, monkeypatch, name
):
    original = TrainStep.__call__

    def step(self, batches):
        os.kill(os.getpid(), getattr(signal, name))
        return original(self, batches)

    monkeypatch.setattr(TrainStep, "__call__", step)
    with pytest.raises(TrialStopped, match=f"flare0 was stopped by {name}") as stopped:
        compare(make_trials(), tmp_path / "table")
    assert stopped.value.exit_code == 128 + getattr(signal, name)
    assert not (tmp_path / "flare1").exists()


def test_a_stop_travels_whole_from_a_worker():
    stopped = pickle.loads(pickle.dumps(TrialStopped("run was stopped by SIGTERM", 143)))
    assert (stopped.message, stopped.exit_code) == ("run was stopped by SIGTERM", 143)
