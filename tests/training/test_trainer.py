"""How a training stops, goes on and fails."""

import json
import os
import signal
import time

import pytest
import torch
from run_cases import compare_runs, killed_at, rows, weights

from physicsnemo_flarepp.datapipes import build_dataloaders
from physicsnemo_flarepp.runs import CheckpointStore
from physicsnemo_flarepp.runs import directory as run_files
from physicsnemo_flarepp.training import train, trainer
from physicsnemo_flarepp.training.optimizers import TrainStep
from physicsnemo_flarepp.training.trainer import NonFiniteLoss

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_signal_saves_and_stops_and_the_run_goes_on_bit_for_bit(make_config, monkeypatch, name):
    whole = train(make_config(run_dir=f"{make_config().run_dir}_whole"))
    original, calls = TrainStep.__call__, []

    def step(self, batches):
        calls.append(None)
        if len(calls) == 7:  # inside the second epoch
            os.kill(os.getpid(), getattr(signal, name))
        return original(self, batches)

    monkeypatch.setattr(TrainStep, "__call__", step)
    stopped = train(make_config())
    assert (stopped.stopped_by, stopped.errors) == (name, None)
    assert stopped.exit_code() == 128 + getattr(signal, name)
    assert [row["step"] for row in rows(stopped.directory, "step")] == list(range(1, 8))
    resumed = train(make_config())
    assert resumed.exit_code() == 0 and len(calls) == 20
    compare_runs(whole.directory, resumed.directory)


@pytest.mark.parametrize(
    "changes",
    [
        {"model__n_layers": 2, "training__accumulate": 2},
        {"training__precision": "bf16"},
        {"training__precision": "fp16"},
        {
            "model___target_": "physicsnemo_flarepp.MixerBackbone",
            "model__mixer": "transolver_plus",  # draws noise in every step
        },
        {"data__n_points": 20},
        {"training__stream": 24, "training__epochs": 2},
        {
            "data__n_points": 20,
            "data__weights": "measure",
            "data__sampling_density": "area",
            "training__norm": "measure",
        },
        {"training__optimizer": "muon"},
        {
            "training__optimizer": "muon",
            "training__schedule": "cosine",
            "training__warmup_steps": 4,
            "training__precision": "fp16",
        },
        {"training__optimizer": "muon", "training__schedule": "wsd", "training__warmup_steps": 4},
    ],
    ids=[
        "accumulate",
        "bf16",
        "fp16",
        "noise",
        "drawn points",
        "streamed",
        "drawn by area",
        "muon",
        "muon, cosine, fp16",
        "muon, wsd",
    ],
)
def test_killed_run_goes_on_bit_for_bit(make_config, monkeypatch, changes):
    changes |= {"training__checkpoint_every": 3}
    whole = train(make_config(run_dir=f"{make_config().run_dir}_whole", **changes))
    total = len(rows(whole.directory, "step"))
    with killed_at(monkeypatch, 9) as calls:
        train(make_config(**changes))
    resumed = train(make_config(**changes))
    assert total < len(calls) < total + 9, "it took up a checkpoint and repeated a few steps"
    compare_runs(whole.directory, resumed.directory)


def test_prolonged_run_with_wsd_is_the_long_run_and_decays_only_at_its_end(
    make_config, monkeypatch
):
    changes = {"training__schedule": "wsd", "training__warmup_steps": 2}
    whole = train(make_config(run_dir=f"{make_config().run_dir}_whole", **changes))
    with killed_at(monkeypatch, 9):  # of 15; the decay would begin after 12
        train(make_config(training__epochs=3, training__checkpoint_every=3, **changes))
    prolonged = train(make_config(training__epochs=4, training__checkpoint_every=3, **changes))
    compare_runs(whole.directory, prolonged.directory)
    rates = [row["learning_rate"] for row in rows(whole.directory, "step")]
    falling = [1e-3 * left / 4 for left in (4, 3, 2, 1)]
    assert rates[2:] == pytest.approx([1e-3] * 14 + falling)

    again = train(make_config(training__epochs=5, **changes))  # a run that had ended
    rates = [row["learning_rate"] for row in rows(again.directory, "step")]
    falling = [1e-3 * left / 5 for left in (5, 4, 3, 2, 1)]
    assert len(rates) == 25 and rates[20:] == pytest.approx(falling)
    (result,) = rows(again.directory, "result")
    assert result["step"] == 25 and result["error"] == pytest.approx(again.error)
    assert json.loads((again.directory / "selected.json").read_text())["epochs"] == 5
    with pytest.raises(ValueError, match="training.epochs is 2, but the run has begun epoch 5"):
        train(make_config(training__epochs=2, **changes))


def test_non_finite_loss_stops_with_step_cases_and_last_good_checkpoint(make_config, monkeypatch):
    original, calls = TrainStep.__call__, []

    def step(self, batches):
        calls.append(batches[0]["case_index"].tolist())
        loss = original(self, batches)
        return loss * torch.nan if len(calls) == 8 else loss

    monkeypatch.setattr(TrainStep, "__call__", step)
    cfg = make_config()
    with pytest.raises(NonFiniteLoss, match="loss is nan at step 8") as caught:
        train(cfg)
    reader = build_dataloaders(cfg.data).train.dataset.reader
    for case in calls[7]:
        assert reader.case_ids[case] in str(caught.value)
    assert "step_00000005" in str(caught.value)
    assert CheckpointStore(f"{cfg.run_dir}/checkpoints").entries()[0].step == 5
    losses = {row["step"]: row["loss"] for row in rows(cfg.run_dir, "step")}
    assert list(losses) == [1, 2, 3, 4, 5, 6, 7], "those that led to it, read with it or before"


def test_weights_that_are_not_finite_are_never_saved(make_config, monkeypatch):
    original = TrainStep.__call__

    def step(self, batches):
        loss = original(self, batches)
        next(self.model.parameters()).data.fill_(torch.inf)
        return torch.ones_like(loss)

    monkeypatch.setattr(TrainStep, "__call__", step)
    cfg = make_config()
    with pytest.raises(NonFiniteLoss, match="in_projection"):
        train(cfg)
    assert not CheckpointStore(f"{cfg.run_dir}/checkpoints").entries()


def test_damaged_newest_checkpoint_is_reported_and_the_previous_one_used(make_config, capsys):
    cfg = make_config(training__epochs=3)
    whole = train(cfg)
    before = weights(whole.directory)
    newest = CheckpointStore(whole.directory / "checkpoints").entries()[0]
    with open(newest.path / "training.pt", "r+b") as file:
        file.truncate((newest.path / "training.pt").stat().st_size // 2)
    train(cfg)
    said = capsys.readouterr().out
    assert "step_00000015 is damaged and was skipped" in said
    assert "resuming from" in said and "step_00000010" in said
    after = weights(whole.directory)
    assert all(torch.equal(value, after["model"][name]) for name, value in before["model"].items())


def test_full_disk_costs_a_checkpoint_but_not_the_run(make_config, monkeypatch, capsys):
    original, saves = CheckpointStore.save, []

    def save(self, step, *arguments, **named):
        saves.append(step)
        if step == 10:
            raise OSError(28, "No space left on device", "step_00000010")
        return original(self, step, *arguments, **named)

    monkeypatch.setattr(trainer.CheckpointStore, "save", save)
    run = train(make_config())
    assert "WARNING no checkpoint at step 10" in capsys.readouterr().out
    kept = [entry.step for entry in CheckpointStore(run.directory / "checkpoints").entries()]
    assert saves == [5, 10, 15, 20] and kept == [20, 15, 5]


def test_losses_are_read_every_log_every_steps_and_after_every_epoch(make_config):
    """Epochs of 5 steps: an interval that divides them must not lose its beat."""
    cfg = make_config(
        training__log_every=5, training__evaluate_every=4, training__checkpoint_every=100
    )
    start = time.perf_counter()
    run = train(cfg)
    elapsed = time.perf_counter() - start
    steps = rows(run.directory, "step")
    reads = [row for row in steps if "seconds_per_step" in row]
    assert [row["step"] for row in reads] == [5, 10, 15, 20]
    assert 0 < sum(5 * row["seconds_per_step"] for row in reads) < elapsed
    cfg = make_config(run_dir=f"{cfg.run_dir}2", training__log_every=2, training__evaluate_every=4)
    reads = [row["step"] for row in rows(train(cfg).directory, "step") if "memory_mb" in row]
    assert reads == [2, 4, 5, 6, 8, 10, 12, 14, 15, 16, 18, 20]


def test_stop_in_the_last_step_of_an_epoch_keeps_the_metric(make_config, monkeypatch):
    original, calls = TrainStep.__call__, []

    def step(self, batches):
        calls.append(None)
        if len(calls) == 10:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(self, batches)

    monkeypatch.setattr(TrainStep, "__call__", step)
    run = train(make_config())
    entries = CheckpointStore(run.directory / "checkpoints").entries()
    assert run.stopped_by == "SIGTERM" and [entry.step for entry in entries] == [10, 5]
    assert all(entry.metric is not None for entry in entries)


def test_metrics_that_a_full_disk_refused_are_written_later(make_config, monkeypatch, capsys):
    original, refused = run_files.append_whole, []

    def append_whole(path, text):
        if path.name == "metrics.jsonl" and 0 < len(rows_of(path)) < 9 and len(refused) < 3:
            refused.append(None)
            raise OSError(28, "No space left on device", str(path))
        original(path, text)

    def rows_of(path):
        return path.read_text().splitlines() if path.exists() else []

    monkeypatch.setattr(run_files, "append_whole", append_whole)
    run = train(make_config())
    assert "WARNING metrics are kept for later" in capsys.readouterr().out and refused
    assert [row["step"] for row in rows(run.directory, "step")] == list(range(1, 21))


@pytest.mark.parametrize("epochs", [1, 2])
def test_shortest_runs(make_config, epochs):
    """The one-cycle schedule needs three steps; torch divides by zero below."""
    cfg = make_config(training__epochs=epochs, data__batch_size=10)
    with pytest.raises(ValueError, match=f"{epochs} optimisation steps, .* needs 3"):
        train(cfg)
    cfg = make_config(training__epochs=3, data__batch_size=10)
    assert len(rows(train(cfg).directory, "step")) == 3
