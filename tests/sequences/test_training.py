"""Classifiers in the trainer of fields: accuracy, resuming, ranks, what is refused."""

import re

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from physicsnemo_flarepp.evaluation.figures import draw_run
from physicsnemo_flarepp.runs import load_run, read_metrics
from physicsnemo_flarepp.sequences import SequenceConfig, sequence_loaders
from physicsnemo_flarepp.training import train
from tests.training.rank_processes import run_training
from tests.training.run_cases import compare_runs, killed_at

ALONE = {"parallel": {"data_rank": 0, "data_size": 1}, "seed": 0, "device": None}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Sequences of different lengths, whose value is the digit that is there most often."""
    folder, rng = tmp_path_factory.mktemp("sequences"), np.random.default_rng(0)
    for split, count in (("train", 64), ("val", 24), ("test", 25)):
        lines = ["Source\tTarget"]
        for _ in range(count):
            value = rng.choice(3, p=(0.5, 0.25, 0.25))
            digits = [value] * 6 + [7] * rng.integers(0, 6)
            lines.append(f"{' '.join(map(str, rng.permutation(digits)))}\t{value}")
        (folder / f"basic_{split}.tsv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def make_config(root, tmp_path):
    def make(**changes):
        cfg = OmegaConf.create(
            {
                "model": {
                    "_target_": "physicsnemo_flarepp.sequences.SequenceClassifier",
                    "n_layers": 1,
                    "n_hidden": 16,
                    "n_head": 2,
                    "slice_num": 4,
                },
                "data": {
                    "sequences": "listops",
                    "root": str(root),
                    "length": 12,
                    "batch_size": 8,
                },
                "training": {
                    "epochs": 6,
                    "learning_rate": 1e-2,
                    "select": "best",
                    "log_every": 3,
                    "ema_decay": 0.0,
                },
                "run_dir": str(tmp_path / "run"),
            }
        )
        for name, value in changes.items():
            OmegaConf.update(cfg, name.replace("__", "."), value)
        return cfg

    return make


def losses(run_dir):
    return [row["loss"] for row in read_metrics(run_dir) if row["kind"] == "step"]


def test_a_classifier_learns_and_leaves_a_table(make_config):
    cfg = make_config()
    result = train(cfg)
    assert losses(cfg.run_dir)[0] == pytest.approx(np.log(10), rel=0.05)
    assert result.error < 0.1 < 0.3 < result.mean_predictor_error
    assert result.errors.shape == (25, 1) and {*result.errors.unique().tolist()} <= {0.0, 1.0}
    table = (result.directory / "table.md").read_text()
    assert "validation (dev)" in table and "padding masked" in table
    rows = re.findall(r"^\| \d \|(.*)\|$", table, re.MULTILINE)
    counts = np.array([[int(cell) for cell in row.split("|")] for row in rows])
    accuracy = counts.trace() / counts.sum()
    assert counts.sum() == 25 and accuracy == pytest.approx(1 - result.error)
    # Weights are those of the model that the run directory holds.
    model = load_run(result.directory).model
    loaders = sequence_loaders(SequenceConfig(**cfg.data), ALONE)
    batch = next(iter(loaders.test))
    found = model(batch["tokens"], batch["token_mask"]).argmax(1)
    wrong = (found != batch["label"]).float()
    assert torch.equal(wrong, result.errors[: len(wrong), 0])
    assert [path.name for path in draw_run(result.directory)] == ["training.png"]
    with pytest.raises(ValueError, match="sequences have classes, not fields"):
        load_run(result.directory).test_set  # noqa: B018


@pytest.mark.slow
def test_a_run_resumes_bit_for_bit(make_config, monkeypatch, tmp_path):
    changes = {"model__projection_dropout": 0.1, "training__checkpoint_every": 7}
    whole, cut = (make_config(run_dir=str(tmp_path / name), **changes) for name in ("a", "b"))
    train(whole)
    with killed_at(monkeypatch, 19):
        train(cut)
    monkeypatch.undo()
    train(cut)
    compare_runs(whole.run_dir, cut.run_dir)


@pytest.mark.distributed
@pytest.mark.parametrize("world, context, pooling", [(2, 1, "mean"), (2, 2, "mean"), (4, 2, "cls")])
def test_every_mesh_gives_the_curve_of_one_process(make_config, tmp_path, world, context, pooling):
    runs = []
    for ranks, shared in ((1, 1), (world, context)):
        cfg = make_config(run_dir=str(tmp_path / f"{ranks}"), parallel={"context": shared},
                          model__pooling=pooling, training__epochs=2)  # fmt: skip
        run_training(cfg, ranks)
        runs.append(cfg.run_dir)
    alone, sharded = map(losses, runs)
    assert len(alone) == len(sharded) == 16
    np.testing.assert_allclose(alone, sharded, rtol=2e-4)
    tables = [open(f"{run}/table.md").read() for run in runs]
    assert tables[0] == tables[1]


def test_batches_are_masked_or_padded_to_the_length(root):
    settings = {"sequences": "listops", "root": str(root), "length": 12, "batch_size": 8}
    masked = next(iter(sequence_loaders(SequenceConfig(**settings), ALONE).val))
    plain = SequenceConfig(**settings, mask_padding=False)
    whole = next(iter(sequence_loaders(plain, ALONE).val))
    assert whole["tokens"].shape == (24, 12) and "token_mask" not in whole.keys()
    n = masked["tokens"].shape[1]
    assert torch.equal(masked["tokens"], whole["tokens"][:, :n])
    assert torch.equal(masked["token_mask"], masked["tokens"] != 0)


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"data__sequences": "speech"}, "data.sequences is 'speech'; choose one of listops"),
        ({"data__builtin": "listops"}, "set one of them"),
        ({"data__root": None, "data__builtin": "pathfinder"}, "not a set of listops"),
        ({"data__batch_size": 0}, "data.batch_size is 0"),
        ({"data__n_train": 65}, "65 sequences are wanted, but .*basic_train.tsv has 64"),
        ({"data__length": 5}, r"basic_train.tsv, line \d+: the sequence has \d+ tokens"),
        ({"training__stream": 8}, "sequences are not streamed"),
        ({"model__vocabulary": 5}, "model.vocabulary is 5, but the data needs 16"),
    ],
)
def test_bad_configs_are_named(make_config, changes, reason):
    with pytest.raises(ValueError, match=reason):
        train(make_config(**changes))
