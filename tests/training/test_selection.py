"""Which weights a run ends with, and that it looks at test cases only afterwards."""

import json
import shutil

import pytest
import torch
from run_cases import rows

from physicsnemo_flarepp.datapipes.readers.base import CaseReader
from physicsnemo_flarepp.evaluation import load_run
from physicsnemo_flarepp.runs import (
    CheckpointStore,
    load_model,
    load_training_state,
)
from physicsnemo_flarepp.training import train
from physicsnemo_flarepp.training.trainer import Trainer

pytestmark = pytest.mark.slow

TEST_CASES = {"run_10", "run_11", "run_12"}


@pytest.fixture
def guarded(monkeypatch):
    """Reading a test case raises until the weights are chosen; returns what was read after."""
    load, choose, read, chosen = CaseReader._load_sample, Trainer._select, [], []

    def guarded_load(self, index):
        case = self.case_ids[index]
        assert chosen or case not in TEST_CASES, f"{case} is read while training or choosing"
        read.append(case)
        return load(self, index)

    def guarded_choice(self):
        selection = choose(self)
        chosen.append(selection)
        read.clear()
        return selection

    monkeypatch.setattr(CaseReader, "_load_sample", guarded_load)
    monkeypatch.setattr(Trainer, "_select", guarded_choice)
    return read


def check_read(run, read):
    """Tested afterwards; besides, only training cases are read, to fit the baselines to."""
    read = set(read)
    trained = set(load_run(run.directory).training_cases().case_ids)
    assert read - trained == TEST_CASES, "no validation case"


def with_validation_errors(monkeypatch, values):
    """Let the validation split have these mean errors after the epochs."""
    errors, measure = iter(values), Trainer._measure

    def measured(self, split):
        if split != "val":
            return measure(self, split)
        self.mean_errors["val"] = 0.9
        return torch.full((2, 2), next(errors))

    monkeypatch.setattr(Trainer, "_measure", measured)


def test_the_best_on_validation_is_chosen_without_reading_a_test_case(
    make_config, guarded, monkeypatch
):
    with_validation_errors(monkeypatch, [0.5, 0.125, 0.4, 0.3])
    run = train(make_config(training__select="best", training__keep_checkpoints=1))
    check_read(run, guarded)
    best = CheckpointStore(run.directory / "checkpoints").best()
    assert (best.epoch, best.step) == (2, 10)
    average = load_training_state(best)["average"]
    for name, value in load_model(run.directory / "model.mdlus").state_dict().items():
        assert torch.equal(value, average[f"module.{name}"])
    selected = json.loads((run.directory / "selected.json").read_text())
    assert selected == {
        "select": "best",
        "split": "val",
        "epoch": 2,
        "step": 10,
        "error": 0.125,
        "measured_on": "test",
        "epochs": 4,
    }
    table = (run.directory / "table.md").read_text()
    assert "Test error over 3 cases" in table
    assert "Weights: best on validation cases, epoch 2 of 4 (error there 12.50 %)." in table
    assert [row["split"] for row in rows(run.directory, "evaluation")] == ["val"] * 4
    (result,) = rows(run.directory, "result")
    assert (result["split"], result["selected_epoch"]) == ("test", 2)


def test_a_part_of_an_epoch_counts_as_the_epoch_it_belongs_to(make_config, monkeypatch):
    with_validation_errors(monkeypatch, [0.5, 0.125])
    length = {"training__epochs": None, "training__steps": 8}  # an epoch has five
    run = train(make_config(training__select="best", **length))
    assert "epoch 2 of 2 (error there 12.50 %)" in (run.directory / "table.md").read_text()


def test_moved_data_keeps_its_splits_and_other_data_has_its_own(make_config, surface_set, tmp_path):
    splits = {"train": [f"run_{i}" for i in range(6)], "test": ["run_8"]}
    run = train(make_config(training__epochs=1, data__splits=splits))
    moved, other = tmp_path / "moved", tmp_path / "other"
    for folder, runs in ((moved, range(10)), (other, range(10, 12))):
        folder.mkdir()
        for i in runs:
            source = surface_set / ("train" if i < 10 else "test") / f"run_{i}.npz"
            shutil.copy(source, folder)
    for folder, cases in ((moved, ["run_8"]), (other, ["run_10", "run_11"])):
        assert load_run(run.directory, data_root=folder).case_ids == cases


def test_the_last_weights_need_no_look_at_test_cases_either(make_config, guarded):
    run = train(make_config(training__epochs=1, data__n_val=0))
    check_read(run, guarded)
    assert rows(run.directory, "evaluation") == [], "nothing to look at before the end"
    assert "Weights: of the last epoch (1)." in (run.directory / "table.md").read_text()


def test_watching_and_choosing_on_test_cases_is_said(make_config):
    cfg = make_config(training__epochs=2, training__select="best_on_test")
    run = train(cfg)
    found = rows(run.directory, "evaluation")
    assert [row["split"] for row in found] == ["val", "test"] * 2
    tests = [row["error"] for row in found if row["split"] == "test"]
    assert run.error == pytest.approx(min(tests))
    table = (run.directory / "table.md").read_text()
    assert "best on test cases" in table and "so the error is optimistic" in table
    assert run.selection.split == "test"


def test_data_without_a_test_split_is_measured_on_validation(make_config, surface_set, tmp_path):
    manifest = tmp_path / "manifest.json"
    splits = {"train": [f"run_{i}" for i in range(10)], "val": ["run_13", "run_14"]}
    manifest.write_text(json.dumps(splits))
    run = train(make_config(training__epochs=1, data__splits=str(manifest)))
    assert (
        run.split == "val"
        and "Validation error over 2 cases" in (run.directory / "table.md").read_text()
    )
    with pytest.raises(ValueError, match="select=best_on_test needs a test split"):
        train(
            make_config(
                run_dir=str(tmp_path / "other"),
                data__splits=str(manifest),
                training__select="best_on_test",
            )
        )


def test_choices_that_cannot_be_made_are_refused_before_training(make_config):
    with pytest.raises(ValueError, match="'best', but the data has no validation split.*n_val"):
        train(make_config(training__select="best", data__n_val=0))
    with pytest.raises(ValueError, match="select is 'newest'; choose one of last, best, best_on_"):
        train(make_config(training__select="newest"))
