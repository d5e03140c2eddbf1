"""Several models at equal settings."""

import csv
import os
import pickle
import signal
from concurrent.futures import Executor, Future

import pytest
import torch

from physicsnemo_flarepp.runs import read_metrics
from physicsnemo_flarepp.training import comparison
from physicsnemo_flarepp.training.comparison import (
    ComparedResult,
    ComparedRun,
    ComparisonStopped,
    compare,
    comparison_table,
)
from physicsnemo_flarepp.training.optimizers import TrainStep


@pytest.fixture
def make_trials(make_config, tmp_path):
    def make(**changes):
        return [
            ComparedRun(
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
    result = ComparedResult("flare", 0, 0.2, 1000, 0.1, 80, "", "batch 2", split="val")
    table = comparison_table([result])
    assert "| validation error, % |" in table and "on the validation set" in table
    assert "test" not in table


def test_failing_trial_starts_no_further_one(make_trials, tmp_path):
    trials = make_trials()
    trials[0].config.model.n_hidden = 17
    with pytest.raises(ValueError, match="n_hidden"):
        compare(trials, tmp_path / "table", jobs=2)
    assert not (tmp_path / "flarepp1").exists()


class InlinePool(Executor):
    """Takes the place of the pool of processes: trials begin one by one and end all together."""

    def __init__(self, jobs, context, **_):
        self.context, self.begun = context, []

    def submit(self, function, trial):
        self.begun.append((trial.config.device, trial.seed))
        future = Future()
        future.set_result(trial)
        return future


@pytest.mark.parametrize(
    ("jobs", "device", "expected"),
    [
        (2, "auto", ["cuda:0", "cuda:1"] * 2),
        (3, "auto", ["cuda:0", "cuda:1", "cuda:0", "cuda:0"]),
        (2, "cpu", ["cpu"] * 4),
        (2, "cuda:1", ["cuda:1"] * 4),
    ],
)
def test_each_trial_has_a_gpu_of_its_own(make_trials, monkeypatch, jobs, device, expected):
    """Two GPUs and the pool are emulated; which trial goes where is not."""
    pools = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(
        comparison,
        "ProcessPoolExecutor",
        lambda *args, **kwargs: pools.append(InlinePool(*args, **kwargs)) or pools[-1],
    )
    assert len(comparison._run_jobs(make_trials(device=device), jobs)) == 4
    assert [place for place, _ in pools[0].begun] == expected
    assert pools[0].context.get_start_method() == "spawn", "a fork would inherit a dead driver"


def test_recipes_say_what_is_optimised_how(make_config):
    recipe = comparison.recipe_of(make_config(training__beta2=0.99, training__accumulate=3))
    assert {"batch 6", "AdamW lr 0.001", "beta2 0.99"} <= set(recipe.split(", "))
    assert "Muon" in comparison.recipe_of(make_config(training__optimizer="muon"))


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
    with pytest.raises(ComparisonStopped, match=f"flare0 was stopped by {name}") as stopped:
        compare(make_trials(), tmp_path / "table")
    assert stopped.value.exit_code == 128 + getattr(signal, name)
    assert not (tmp_path / "flare1").exists()


def test_a_stop_travels_whole_from_a_worker():
    stopped = pickle.loads(pickle.dumps(ComparisonStopped("run was stopped by SIGTERM", 143)))
    assert (stopped.message, stopped.exit_code) == ("run was stopped by SIGTERM", 143)
