"""What a run leaves behind, and what it reports."""

import csv
import json

import physicsnemo
import pytest
import torch
from run_cases import rows

from physicsnemo_flarepp.datapipes import build_dataloaders
from physicsnemo_flarepp.evaluation import evaluate_run, load_run
from physicsnemo_flarepp.training import train
from physicsnemo_flarepp.training.optimizers import TrainStep

pytestmark = pytest.mark.slow


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
    (result,) = rows(directory, "result")
    assert result["error"] == pytest.approx(mean) == pytest.approx(run.error)


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


def test_derivatives_need_a_grid(make_config):
    with pytest.raises(ValueError, match="derivative_weight is 0.1.*2-D grid, got the grid None"):
        train(make_config(training__derivative_weight=0.1))


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"training__epochs": 0}, "training.epochs is 0, expected at least 1"),
        ({"training__ema_decay": 1.0}, "training.ema_decay is 1.0, expected"),
        ({"training__compile": "yes"}, "training.compile is 'yes'"),
        ({"device": "cuda"}, "finds no CUDA device"),
        ({"parallel__context": 2}, "context_size must divide the number of ranks"),
    ],
)
def test_bad_settings_say_what_is_wrong(make_config, changes, message):
    with pytest.raises(ValueError, match=message):
        train(make_config(**changes))


def test_doubtful_inputs_are_named_once_at_the_start(make_config, capsys):
    """Areas that span orders of magnitude, handed over as stored; nothing is said of the rest."""
    changes = {
        "data__reader__features": ["areas"],
        "data__normalization": {"features": "none"},
        "training__epochs": 1,
    }
    for expected in (1, 0):  # the second goes on with the run
        train(make_config(**changes))
        warnings = [x for x in capsys.readouterr().out.splitlines() if "WARNING" in x]
        assert len(warnings) == expected
        if warnings:
            assert "features: areas is huge" in warnings[0] and "{features: gauss" in warnings[0]
    changes["data__normalization"] = "fit"
    train(make_config(run_dir=f"{make_config().run_dir}_fit", **changes))
    assert "WARNING" not in capsys.readouterr().out


def test_evaluation_measures_as_training_did(make_config):
    for norms in ("separate", "joint"):
        cfg = make_config(training__field_norms=norms, run_dir=f"{make_config().run_dir}_{norms}")
        run = train(cfg)
        errors = evaluate_run(load_run(run.directory), progress=False).errors
        assert errors.values.shape == (3, 2 if norms == "separate" else 1)
        assert errors.values == pytest.approx(run.errors.numpy(), rel=1e-3)
