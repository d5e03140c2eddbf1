"""What a run leaves behind, and how it stops and fails."""

import csv
import json
import os
import shutil
import signal
import time

import physicsnemo
import pytest
import torch

from physicsnemo_flarepp.datapipes import build_dataloaders
from physicsnemo_flarepp.evaluation import evaluate_run, load_run
from physicsnemo_flarepp.training import metrics, train, trainer
from physicsnemo_flarepp.training.checkpoints.store import CheckpointStore, load_training_state
from physicsnemo_flarepp.training.metrics import read_metrics
from physicsnemo_flarepp.training.run_directory import RunDirectory
from physicsnemo_flarepp.training.step import TrainStep
from physicsnemo_flarepp.training.trainer import NonFiniteLoss


def rows(directory, kind):
    return [row for row in read_metrics(directory) if row["kind"] == kind]


def weights(run_dir):
    return load_training_state(CheckpointStore(f"{run_dir}/checkpoints").newest_sound(print))


def test_run_directory_is_complete_and_the_model_predicts_what_was_reported(make_config):
    cfg = make_config(training__epochs=15, training__learning_rate=1e-2)
    run = train(cfg)
    directory = run.directory
    assert run.error < run.mean_predictor_error / 2, "it learns"
    for name in ("config.yaml", "versions.json", "table.md", "command.txt", "channels.json"):
        assert (directory / name).stat().st_size > 0
    versions = json.loads((directory / "versions.json").read_text())
    assert torch.__version__.startswith(versions["torch"])
    assert any((directory / "tensorboard").iterdir())
    steps = rows(directory, "step")
    assert [row["step"] for row in steps] == list(range(1, 15 * 5 + 1))
    evaluations = rows(directory, "evaluation")
    assert [row["epoch"] for row in evaluations] == list(range(1, 16))

    # The errors again, from the files alone and in another way.
    model = physicsnemo.Module.from_checkpoint(str(directory / "model.mdlus"))
    stored = {"load": str(directory / "normalizer.safetensors")}
    test = build_dataloaders({**cfg.data, "normalization": stored}).test
    plain = build_dataloaders({**cfg.data, "normalization": "none"}).test
    affine = test.dataset.transforms.affine["fields"]
    with open(directory / "errors.csv") as file:
        reported = list(csv.DictReader(file))
    with torch.no_grad():
        for row, batch, physical in zip(reported, test, plain, strict=True):
            predicted = model(batch["coordinates"]) * affine.scale + affine.shift
            for name, columns in (("pMeanTrim", [0]), ("wallShearStressMeanTrim", [1, 2, 3])):
                truth = physical["fields"][..., columns].double()
                error = (predicted[..., columns].double() - truth).norm() / truth.norm()
                assert float(row[name]) == pytest.approx(error.item(), rel=1e-4)
    mean = sum(float(r[f]) for r in reported for f in run.fields) / (len(reported) * 2)
    assert evaluations[-1]["error"] == pytest.approx(mean) == pytest.approx(run.error)


def test_mean_predictor_is_the_mean_of_the_training_fields(make_config):
    cfg = make_config(training__epochs=1)
    run = train(cfg)
    train_fields, test_fields = (
        [batch["fields"].double() for batch in loader]
        for loader in build_dataloaders({**cfg.data, "normalization": "none", "batch_size": 1})[:2]
    )
    mean = torch.cat(train_fields).mean((0, 1))
    errors = [
        (mean[c] - y[..., c]).norm() / y[..., c].norm()
        for y in test_fields
        for c in ([0], [1, 2, 3])
    ]
    assert run.mean_predictor_error == pytest.approx(torch.stack(errors).mean().item(), rel=1e-4)


@pytest.mark.parametrize("kind", ["unit_box", "none"])
def test_nothing_else_is_called_the_training_mean(make_config, kind, capsys):
    cfg = make_config(training__epochs=1)
    cfg.data.normalization = {"coordinates": "unit_box", "fields": kind}
    run = train(cfg)
    assert run.mean_predictor_error is None
    assert "training mean" not in capsys.readouterr().out + (run.directory / "table.md").read_text()
    assert rows(run.directory, "evaluation")[-1]["mean_predictor_error"] is None


def test_finished_run_is_not_trained_again(make_config, monkeypatch):
    first = train(make_config())
    monkeypatch.setattr(TrainStep, "__call__", None)
    again = train(make_config())
    assert torch.equal(first.errors, again.errors)
    assert (len(rows(again.directory, "step")), len(rows(again.directory, "evaluation"))) == (20, 4)


def test_restart_begins_anew(make_config):
    train(make_config(training__epochs=1))
    run = train(make_config(training__epochs=2, restart=True))
    assert [row["step"] for row in rows(run.directory, "step")] == list(range(1, 11))


def test_other_config_in_the_run_directory_is_refused_with_the_difference(make_config):
    train(make_config(training__epochs=1))
    with pytest.raises(ValueError, match=r"model.n_hidden: 16 in the checkpoint, 32 now"):
        train(make_config(training__epochs=1, model__n_hidden=32))
    with pytest.raises(ValueError, match=r"data.batch_size: 2 in the checkpoint, 5 now"):
        train(make_config(training__epochs=1, data__batch_size=5))


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


def compare_runs(first, second):
    """The two runs have the same losses and the same weights, to the last bit."""
    losses = [
        [(row["step"], row["loss"], row["learning_rate"]) for row in rows(directory, "step")]
        for directory in (first, second)
    ]
    assert losses[0] == losses[1]
    a, b = weights(first), weights(second)
    for part in ("model", "average"):
        assert all(torch.equal(value, b[part][name]) for name, value in a[part].items())


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
        {
            "data__n_points": 20,
            "data__weights": "measure",
            "data__sampling_density": "area",
            "training__norm": "measure",
        },
    ],
    ids=["accumulate", "bf16", "fp16", "noise", "drawn points", "drawn by area"],
)
def test_killed_run_goes_on_bit_for_bit(make_config, monkeypatch, changes):
    """An exception in place of SIGKILL: nothing is saved beyond the last checkpoint."""
    changes |= {"training__checkpoint_every": 3}
    whole = train(make_config(run_dir=f"{make_config().run_dir}_whole", **changes))
    total = len(rows(whole.directory, "step"))
    original, calls = TrainStep.__call__, []

    def step(self, batches):
        calls.append(None)
        if len(calls) == 9:
            raise MemoryError
        return original(self, batches)

    monkeypatch.setattr(TrainStep, "__call__", step)
    with pytest.raises(MemoryError):
        train(make_config(**changes))
    resumed = train(make_config(**changes))
    assert total < len(calls) < total + 9, "it took up a checkpoint and repeated a few steps"
    compare_runs(whole.directory, resumed.directory)


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
    with open(newest.training_path, "r+b") as file:
        file.truncate(newest.training_path.stat().st_size // 2)
    train(cfg)
    said = capsys.readouterr().out
    assert "step_00000015 is damaged and was skipped" in said
    assert "going on from" in said and "step_00000010" in said
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


def test_derivatives_need_a_grid(make_config):
    with pytest.raises(ValueError, match="derivative_weight is 0.1.*2-D grid, got the grid None"):
        train(make_config(training__derivative_weight=0.1))


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"training__epochs": 0}, "training.epochs is 0, expected at least 1"),
        ({"training__ema_decay": 1.0}, "ema_decay 1.0"),
        ({"training__compile": "yes"}, "training.compile is 'yes'"),
        ({"device": "cuda"}, "no CUDA device is present"),
        ({"parallel__context": 2}, "context_size must divide the number of ranks"),
    ],
)
def test_bad_settings_say_what_is_wrong(make_config, changes, message):
    with pytest.raises(ValueError, match=message):
        train(make_config(**changes))


@pytest.mark.parametrize("restart", [False, True])
def test_files_that_are_not_of_a_run_stay(make_config, tmp_path, restart):
    (tmp_path / "notes.txt").write_text("mine")
    other = tmp_path / "other"
    (other / "figures").mkdir(parents=True)
    (other / "figures" / "mine.png").write_text("mine")
    (other / "config.yaml").write_text("mine: 1")
    train(make_config(run_dir=str(tmp_path), training__epochs=1, restart=restart))
    assert (tmp_path / "notes.txt").read_text() == "mine"
    with pytest.raises(FileExistsError, match="holds config.yaml, figures, but they are not of"):
        train(make_config(run_dir=str(other), training__epochs=1, restart=restart))
    assert (other / "figures" / "mine.png").read_text() == "mine"
    assert (other / "config.yaml").read_text() == "mine: 1"


def test_results_without_a_usable_checkpoint_are_not_deleted_unasked(make_config):
    run = train(make_config(training__epochs=1))
    shutil.rmtree(run.directory / "checkpoints")
    with pytest.raises(FileExistsError, match="model.mdlus, .* of a run, but no checkpoint"):
        train(make_config(training__epochs=1))
    with pytest.raises(ValueError, match="n_hidden"):  # before anything is deleted
        train(make_config(training__epochs=1, restart=True, model__n_hidden=17))
    assert (run.directory / "model.mdlus").exists()
    train(make_config(training__epochs=2, restart=True))
    assert len(rows(run.directory, "evaluation")) == 2


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
    original, refused = metrics.append_whole, []

    def append_whole(path, text):
        if path.name == "metrics.jsonl" and 0 < len(rows_of(path)) < 9 and len(refused) < 3:
            refused.append(None)
            raise OSError(28, "No space left on device", str(path))
        original(path, text)

    def rows_of(path):
        return path.read_text().splitlines() if path.exists() else []

    monkeypatch.setattr(metrics, "append_whole", append_whole)
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


def test_evaluation_measures_as_training_did(make_config):
    for norms in ("separate", "joint"):
        cfg = make_config(training__field_norms=norms, run_dir=f"{make_config().run_dir}_{norms}")
        run = train(cfg)
        errors = evaluate_run(load_run(run.directory), progress=False).errors
        assert errors.values.shape == (3, 2 if norms == "separate" else 1)
        assert errors.values == pytest.approx(run.errors.numpy(), rel=1e-3)


def test_two_processes_do_not_train_in_one_directory(make_config, monkeypatch):
    original = TrainStep.__call__

    def step(self, batches):
        other = RunDirectory(make_config().run_dir)
        with other:
            assert other.lock().startswith("another process trains in")
        return original(self, batches)

    monkeypatch.setattr(TrainStep, "__call__", step)
    run = train(make_config(training__epochs=1))
    with RunDirectory(run.directory) as free:
        assert free.lock() is None
