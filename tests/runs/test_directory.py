"""Which directory a run may begin in, and what it deletes there."""

import shutil

import pytest

from physicsnemo_flarepp.runs.directory import RunDirectory
from physicsnemo_flarepp.training import train
from physicsnemo_flarepp.training.optimizers import TrainStep
from tests.training.run_cases import rows

pytestmark = pytest.mark.slow


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


@pytest.mark.parametrize("restart", [False, True])
def test_files_that_are_not_of_a_run_stay(make_config, tmp_path, restart):
    (tmp_path / "notes.txt").write_text("mine")
    other = tmp_path / "other"
    (other / "figures").mkdir(parents=True)
    (other / "figures" / "mine.png").write_text("mine")
    (other / "config.yaml").write_text("mine: 1")
    train(make_config(run_dir=str(tmp_path), training__epochs=1, restart=restart))
    assert (tmp_path / "notes.txt").read_text() == "mine"
    with pytest.raises(
        FileExistsError, match="holds config.yaml, figures, but no run_manifest.json"
    ):
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


def test_two_processes_do_not_train_in_one_directory(make_config, monkeypatch):
    original = TrainStep.__call__

    def step(self, batches):
        other = RunDirectory(make_config().run_dir)
        with other, pytest.raises(FileExistsError, match="another process trains in"):
            other.lock()
        return original(self, batches)

    monkeypatch.setattr(TrainStep, "__call__", step)
    run = train(make_config(training__epochs=1))
    with RunDirectory(run.directory) as free:
        free.lock()
