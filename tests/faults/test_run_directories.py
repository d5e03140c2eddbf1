"""Nothing of value is deleted unasked, nothing foreign ever, and no directory is lost for good."""

import json
import os
import shutil

import numpy as np
import pytest
import torch

from physicsnemo_flarepp.evaluation import force_settings, load_run
from physicsnemo_flarepp.runs import CheckpointStore
from physicsnemo_flarepp.runs.checkpoints import Manifest
from physicsnemo_flarepp.runs.directory import (
    RunDirectory,
    RunDirectoryLost,
    read_run_manifest,
    record_written,
)
from physicsnemo_flarepp.training import train
from physicsnemo_flarepp.training.optimizers import TrainStep
from tests.training.conftest import (  # noqa: F401
    make_config,
    one_thread,
    surface_set,
)
from tests.training.run_cases import killed_at

pytestmark = pytest.mark.slow

# Fixtures are imported by name: F811 is about arguments of that name.
# ruff: noqa: F811


def names(directory):
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kept", ["table.md", "figures/training.png", "predictions/car.vtp", None])
def test_a_finished_run_without_its_weights_is_not_empty(make_config, kept):
    """Model and checkpoints were removed for space: the same command deletes nothing."""
    directory = train(make_config(training__epochs=1)).directory
    for name in ("model.mdlus", "errors.csv", "table.md"):
        (directory / name).unlink()
    shutil.rmtree(directory / "checkpoints")
    if kept is not None:
        (directory / kept).parent.mkdir(exist_ok=True)
        (directory / kept).write_text("of value")
    before = names(directory)
    with pytest.raises(FileExistsError, match="of a run.*restart=true"):
        train(make_config(training__epochs=1))
    assert names(directory) == before


def test_a_run_killed_before_its_first_checkpoint_begins_again_unasked(make_config, monkeypatch):
    with monkeypatch.context() as patch, killed_at(patch, 3):
        train(make_config(training__epochs=1))
    assert train(make_config(training__epochs=1)).error > 0


def test_restart_removes_what_the_run_wrote_and_nothing_else(make_config):
    directory = train(make_config(training__epochs=3)).directory
    own = directory / "figures" / "training.png"
    foreign = [
        "figures/mine.png",
        "predictions/mine.vtp",
        "checkpoints/best/model.mdlus",
        "log.txt",
    ]
    for path in (own, *(directory / name for name in foreign)):
        path.parent.mkdir(exist_ok=True)
        path.write_text("x")
    record_written(directory, [own])
    (old_board,) = (directory / "tensorboard").iterdir()
    train(make_config(training__epochs=1, restart=True))
    assert all((directory / name).read_text() == "x" for name in foreign)
    assert not own.exists() and not old_board.exists()
    assert [entry.step for entry in CheckpointStore(directory / "checkpoints").entries()] == [5]


def test_a_manifest_that_names_files_elsewhere_deletes_none_of_them(tmp_path):
    directory = tmp_path / "run"
    (directory / "figures").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    (directory / "linked").symlink_to(tmp_path / "other")
    mine = [tmp_path / "mine.txt", tmp_path / "other" / "mine.txt", directory / "figures" / "a.png"]
    for path in mine:
        path.write_text("mine")
    named = ["../mine.txt", str(mine[0]), "linked/mine.txt", "figures", "figures/a.png"]
    facts = {"written": named, "saved": False}
    Manifest(directory / "run_manifest.json", facts=facts).write()
    RunDirectory(directory).clear()
    assert [path.exists() for path in mine] == [True, True, False]


def test_links_in_a_run_directory_neither_change_nor_delete_what_they_lead_to(tmp_path):
    run, other = tmp_path / "run", tmp_path / "other"
    (run / "checkpoints").mkdir(parents=True)
    other.mkdir()
    for name in ("mine.txt", "manifest.json", "training.pt", "model.mdlus"):
        (other / name).write_text("mine")
    (run / ".lock").symlink_to(other / "mine.txt")
    (run / "metrics.jsonl").symlink_to(other / "mine.txt")
    (run / "checkpoints" / "step_00000005").symlink_to(other)
    directory = RunDirectory(run)
    with pytest.raises(FileExistsError, match=".lock is a link"):
        directory.lock()
    with pytest.raises(OSError, match=r"metrics\.jsonl"):
        directory.metrics.append([{"kind": "step", "step": 1}])
    CheckpointStore(run / "checkpoints").clear()
    assert not any((run / "checkpoints").iterdir())
    assert {path.read_text() for path in other.iterdir()} == {"mine"}
    assert len(names(other)) == 4


def test_files_follow_the_umask(make_config):
    before = os.umask(0o027)
    try:
        directory = train(make_config(training__epochs=1)).directory
    finally:
        os.umask(before)
    modes = {p.name: oct(p.stat().st_mode & 0o777) for p in directory.rglob("*") if p.is_file()}
    assert set(modes.values()) == {"0o640"}, modes


def test_leftovers_of_kills_are_removed_at_the_next_start(make_config):
    directory = train(make_config(training__epochs=1)).directory
    folder = directory / "checkpoints" / ".deleting_step_00000003_0badcafe"
    folder.mkdir()
    (folder / "training.pt").write_text("half")
    (directory / ".config.yaml.0badcafe.yaml").write_text("half")
    (directory / ".mine").write_text("mine")
    train(make_config(training__epochs=1))  # complete before: nothing is saved again
    hidden = sorted(path.name for path in directory.rglob(".*"))
    assert hidden == [".lock", ".mine"]


def copy_data(surface_set, tmp_path):
    return shutil.copytree(surface_set, tmp_path / "data")


def test_other_data_under_the_same_names_is_noticed(
    make_config, surface_set, tmp_path, monkeypatch
):
    root = copy_data(surface_set, tmp_path)
    cfg = make_config(data__root=str(root))
    with monkeypatch.context() as patch, killed_at(patch, 8):
        train(cfg)
    path = root / "train" / "run_3.npz"
    whole = path.read_bytes()
    with np.load(path) as file:
        arrays = dict(file)
    arrays["surface_fields"][20:30] *= 2
    np.savez(path, **arrays)
    assert path.stat().st_size == len(whole)
    with pytest.raises(ValueError, match=r"began with: train/run_3.npz changed"):
        train(cfg)
    path.write_bytes(whole)
    os.utime(path, (0, 0))  # a copy is the same data
    assert train(cfg).error > 0


def test_a_run_directory_that_is_removed_ends_the_command_with_one_message(
    make_config, monkeypatch
):
    original, calls = TrainStep.__call__, []
    cfg = make_config()

    def step(self, batches):
        calls.append(None)
        if len(calls) == 7:
            shutil.rmtree(cfg.run_dir)
        return original(self, batches)

    monkeypatch.setattr(TrainStep, "__call__", step)
    with pytest.raises(RunDirectoryLost, match="was removed or replaced while the run was"):
        train(cfg)
    assert len(calls) == 10 and not os.path.exists(cfg.run_dir), "nothing was made in its place"


def test_ranges_and_force_convention_are_stored_with_the_run(make_config, surface_set):
    for normalization in ("fit", "none"):  # fitted statistics, and none that need a pass
        cfg = make_config(
            training__epochs=1,
            data__normalization=normalization,
            run_dir=f"{make_config().run_dir}_{normalization}",
        )
        run = load_run(train(cfg).directory, device="cpu")
        cases = [
            np.load(surface_set / "train" / f"run_{n}.npz")["surface_mesh_centers"]
            for n in range(10)
        ]
        points = np.concatenate(cases)
        extents = np.stack([np.ptp(case, axis=0) for case in cases])
        stored = run.training_set
        np.testing.assert_allclose(stored["coordinates"]["min"], points.min(0), rtol=1e-6)
        np.testing.assert_allclose(stored["coordinates"]["max"], points.max(0), rtol=1e-6)
        np.testing.assert_allclose(stored["extent"]["min"], extents.min(0), rtol=1e-6)
        np.testing.assert_allclose(stored["extent"]["max"], extents.max(0), rtol=1e-6)
        assert stored["cases"] == 10 and len(stored["files"]) == 12
        assert force_settings(run).shear_sign == stored["forces"]["shear_sign"] == -1
        run.config.data.builtin = "cars"  # what the run was trained on counts
        assert force_settings(run).shear_sign == -1


def test_a_run_whose_results_were_cut_off_says_how_to_finish_them(make_config):
    directory = train(make_config(training__epochs=1)).directory
    manifest = directory / "run_manifest.json"
    entries = json.loads(manifest.read_text())["files"]
    assert set(entries) == {
        "config.yaml",
        "channels.json",
        "normalizer.safetensors",
        "training_set.json",
        "model.mdlus",
        "selected.json",
    }
    found = read_run_manifest(directory)
    found.rewrite(drop=["model.mdlus"])
    with pytest.raises(ValueError, match="model.mdlus is not in.*same command"):
        load_run(directory)
    train(make_config(training__epochs=1))
    assert torch.is_tensor(next(load_run(directory).model.parameters()))
