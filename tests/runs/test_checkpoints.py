import errno
import hashlib
import itertools
import json
import multiprocessing
import os
import resource
import shutil
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from physicsnemo.core import Module

import physicsnemo_flarepp
from physicsnemo_flarepp.runs import CheckpointStore, load_training_state

sys.path.insert(0, str(Path(__file__).parent))  # processes import the cases by name

from checkpoint_cases import (  # noqa: E402
    WRITING,
    CallCounter,
    contents,
    kill_at_every_call,
    kill_at_random_times,
    save,
    small_model,
)


class RunsCode:
    """Pickles to a call that makes a file."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return shutil.copyfile, (__file__, str(self.marker))


def refuse(message):
    raise AssertionError(message)


def equal(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(equal, a, b))
    return type(a) is type(b) and a == b


def steps(store):
    return [entry.step for entry in store.entries()]


def hidden(directory):
    return [path.name for path in directory.iterdir() if path.name.startswith(".")]


def forge(checkpoint, name, data):
    """Replace a file and make the manifest agree with it, as an attacker would."""
    (checkpoint.path / name).write_bytes(data)
    path = checkpoint.path / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["checksum"]
    manifest["files"][name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    text = json.dumps(manifest, sort_keys=True)
    manifest["checksum"] = hashlib.sha256(text.encode()).hexdigest()
    path.write_text(json.dumps(manifest, indent=2) + "\n")


@pytest.fixture
def store(tmp_path):
    return CheckpointStore(tmp_path / "run" / "checkpoints")


def test_a_checkpoint_gives_back_what_was_saved(store):
    model = small_model()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=9)
    model(torch.rand(1, 5, 2)).sum().backward()
    optimizer.step()
    schedule.step()
    state = {
        "optimizer": optimizer.state_dict(),
        "schedule": schedule.state_dict(),
        "scaler": torch.amp.GradScaler("cpu").state_dict(),
        "weights": model.state_dict(),
        "half": torch.rand(3).bfloat16(),
        "nested": [(1, 2.5, "x", True, None), {"y": []}],
    }
    path = store.save(120, state, model, epoch=3, metric=0.25)

    assert path == store.directory / "step_00000120"
    assert sorted(file.name for file in path.iterdir()) == [
        "manifest.json",
        "model.mdlus",
        "training.pt",
    ]
    checkpoint = store.newest_sound(refuse)
    assert (checkpoint.path, checkpoint.step, checkpoint.epoch) == (path, 120, 3)
    assert checkpoint.metric == 0.25
    loaded = load_training_state(checkpoint, "cpu")
    assert equal(loaded, state)
    weights = Module.from_checkpoint(str(checkpoint.path / "model.mdlus")).state_dict()
    torch.testing.assert_close(weights, model.state_dict(), rtol=0, atol=0)


def test_the_manifest_describes_the_files(store):
    path = save(store, 7, metric=0.5)
    manifest = json.loads((path / "manifest.json").read_text())
    assert (manifest["step"], manifest["epoch"], manifest["metric"]) == (7, 0, 0.5)
    assert manifest["package_version"] == physicsnemo_flarepp.__version__
    for name in ("training.pt", "model.mdlus"):
        data = (path / name).read_bytes()
        assert manifest["files"][name] == {
            "size": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
        }


def test_no_checkpoint_is_none(store):
    assert store.entries() == []
    assert store.newest_sound(refuse) is None
    assert store.best() is None


def test_the_newest_and_the_best_are_kept(store):
    errors = [0.9, 0.2, 0.5, float("nan"), 0.4, 0.3, None, 0.6]
    for step, error in enumerate(errors):
        save(store, step, metric=error)
    assert steps(store) == [7, 6, 5, 1]
    assert store.best().step == 1
    assert [contents(entry)[0] for entry in store.entries()] == [7, 6, 5, 1]
    save(store, 8, metric=0.1)
    assert steps(store) == [8, 7, 6]
    assert hidden(store.directory) == []


def test_a_metric_that_is_not_finite_is_never_the_best(store):
    for step, error in enumerate((float("nan"), float("-inf"), torch.tensor(0.75))):
        save(store, step, metric=error)
    assert [entry.metric for entry in store.entries()] == [0.75, None, None]
    assert store.best().step == 2


def test_saving_a_step_again_replaces_it(store):
    save(store, 5)
    save(store, 5, version=1)
    assert [contents(entry) for entry in store.entries()] == [(5, 1)]
    assert hidden(store.directory) == []


def truncate(path):
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["training.pt", "model.mdlus", "manifest.json"])
@pytest.mark.parametrize("damage", [truncate, flip, Path.unlink])
def test_a_damaged_newest_is_reported_and_the_previous_used(store, name, damage):
    save(store, 1)
    path = save(store, 2)
    damage(path / name)
    messages = []
    assert contents(store.newest_sound(messages.append)) == (1, 0)
    (message,) = messages
    assert str(path) in message and name in message


def test_a_folder_under_another_name_is_reported(store):
    path = save(store, 2)
    path.rename(path.with_name("step_00000003"))
    messages = []
    assert store.newest_sound(messages.append) is None
    assert "of step 2" in messages[0]


def test_loading_a_damaged_state_is_refused(store):
    flip(save(store, 2) / "training.pt")
    with pytest.raises(ValueError, match="training.pt was changed"):
        load_training_state(store.entries()[0])


def test_damaged_checkpoints_take_no_place_of_a_sound_one(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    for step in (10, 20, 30):
        save(store, step)
    for entry in store.entries():
        if entry.step > 20:
            flip(entry.path / "training.pt")
    assert store.newest_sound(lambda message: None).step == 20
    # The run goes on from 20 and saves before it reaches 30 again.
    save(store, 25)
    assert contents(store.newest_sound(lambda message: None)) == (25, 0)
    save(store, 31)
    assert [contents(entry)[0] for entry in store.entries()] == [31, 25]


def test_what_was_just_saved_stays_beside_later_steps(tmp_path):
    save(CheckpointStore(tmp_path, keep=1), 30)
    store = CheckpointStore(tmp_path, keep=1)
    save(store, 10)
    assert steps(store) == [30, 10]
    save(store, 31)
    assert steps(store) == [31]


def test_a_pickle_that_runs_code_is_refused_under_a_correct_manifest(store, tmp_path):
    marker = tmp_path / "marker"
    save(store, 4)
    checkpoint = store.entries()[0]
    torch.save({"value": RunsCode(marker)}, tmp_path / "evil.pt")
    torch.load(tmp_path / "evil.pt", weights_only=False)
    assert marker.exists()  # the payload is live
    marker.unlink()
    forge(checkpoint, "training.pt", (tmp_path / "evil.pt").read_bytes())

    forged = store.newest_sound(refuse)
    with pytest.raises(ValueError, match=r"training\.pt is refused: .*Nothing of it was run"):
        load_training_state(forged)
    assert not marker.exists()


def test_what_others_allow_torch_to_load_stays_refused(store, tmp_path):
    marker = tmp_path / "marker"
    save(store, 4)
    torch.save({"value": RunsCode(marker)}, tmp_path / "evil.pt")
    forge(store.entries()[0], "training.pt", (tmp_path / "evil.pt").read_bytes())
    with torch.serialization.safe_globals([shutil.copyfile]):
        torch.load(tmp_path / "evil.pt", weights_only=True)
        assert marker.exists()  # the payload passes the widened list
        marker.unlink()
        with pytest.raises(ValueError, match="refused"):
            load_training_state(store.entries()[0])
        assert shutil.copyfile in torch.serialization.get_safe_globals()
    assert not marker.exists()


@pytest.mark.parametrize("value", [np.float64(1.0), np.zeros(2), {1}, Path("x"), print])
def test_a_state_that_could_not_be_loaded_is_not_saved(store, value):
    with pytest.raises(TypeError, match=r"state\['a'\]\[1\] is a "):
        store.save(1, {"a": [0, value]}, small_model(), epoch=0)
    assert not store.directory.exists()


def test_keep_must_be_positive(tmp_path):
    with pytest.raises(ValueError, match="keep is 0"):
        CheckpointStore(tmp_path, keep=0)


def _full():
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _interrupt():
    raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.parametrize("act", [_full, _interrupt])
@pytest.mark.parametrize("step", [2, 3], ids=["again", "new"])
def test_a_failure_at_any_call_leaves_the_earlier_checkpoints(tmp_path, monkeypatch, act, step):
    """Fails at each call of mkdir, write, fsync and rename in turn, until none is left."""
    monkeypatch.setattr("physicsnemo_flarepp.files._CHUNK", 1500)
    for earlier in (1, 2):
        save(CheckpointStore(tmp_path / "template"), earlier)
    failures, reached = 0, False
    for at in itertools.count(1):
        store = CheckpointStore(tmp_path / str(at))
        shutil.copytree(tmp_path / "template", store.directory)
        with CallCounter(WRITING, at, act) as counter, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an old checkpoint that could not be removed
            try:
                save(store, step, version=1)
                reached = True
            except (OSError, KeyboardInterrupt) as error:
                failures += 1
                if act is _full:
                    assert error.errno == errno.ENOSPC
                    assert f"step_{step:08d}" in str(error) and "MB are free" in str(error)
                reached = False
        found = [contents(entry) for entry in store.entries()]
        assert contents(store.newest_sound(refuse)) == found[0]
        before, after = (
            [(2, 0), (1, 0)],
            [(2, 1), (1, 0)] if step == 2 else [(3, 1), (2, 0), (1, 0)],
        )
        assert found == after if reached else found in (before, after)
        assert not [name for name in hidden(store.directory) if name.startswith(".saving")]
        if counter.calls < at:
            break
    assert failures > 12
    save(store, 4)
    assert hidden(store.directory) == []


def test_a_real_write_error_names_path_and_space(store):
    save(store, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        with pytest.raises(OSError, match=r"cannot write .*step_00000002.*MB are free.*untouched"):
            save(store, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert contents(store.newest_sound(refuse)) == (1, 0)
    assert [path.name for path in store.directory.iterdir()] == ["step_00000001"]


def test_what_killed_processes_left_is_removed_at_the_next_save(store):
    save(store, 1)
    for name in (".saving_step_00000002_ab", ".deleting_step_00000000_cd"):
        (store.directory / name).mkdir()
        (store.directory / name / "training.pt").write_bytes(b"half")
    assert steps(store) == [1]
    save(store, 2)
    assert sorted(path.name for path in store.directory.iterdir()) == [
        "step_00000001",
        "step_00000002",
    ]


def test_an_old_checkpoint_that_cannot_be_removed_does_not_stop_the_run(tmp_path, monkeypatch):
    store = CheckpointStore(tmp_path, keep=1)
    save(store, 1)

    def busy(path):
        raise OSError(errno.EBUSY, "busy")

    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", busy)
        with pytest.warns(UserWarning, match="cannot remove .*busy; the next save tries again"):
            save(store, 2)
    assert steps(store) == [2]
    save(store, 3)
    assert [path.name for path in tmp_path.iterdir()] == ["step_00000003"]


def run_alone(function, tmp_path):
    """Run a case in a fork of a server that has PhysicsNeMo loaded; return what it stored."""
    (tmp_path / "run").mkdir()
    process = multiprocessing.get_context("forkserver").Process(
        target=function, args=(str(tmp_path / "run"), str(tmp_path / "result"))
    )
    process.start()
    process.join()
    assert process.exitcode == 0
    return torch.load(tmp_path / "result")


@pytest.mark.slow
def test_a_kill_at_any_call_leaves_a_whole_checkpoint(tmp_path):
    found = run_alone(kill_at_every_call, tmp_path)
    assert len(found) > 15
    for newest, seen, messages, left in found:
        assert newest in ((20, 0), (20, 1))
        assert seen in ([newest], [newest, (10, 0)])
        assert messages == []
        assert left[-1] == "step_00000030" and not left[0].startswith(".")
    assert found[0][0] == (20, 0)
    assert found[-1][:2] == ((20, 1), [(20, 1)])


@pytest.mark.slow
def test_kills_at_random_times_leave_a_whole_checkpoint(tmp_path):
    found = run_alone(kill_at_random_times, tmp_path)
    reached = [step for (step, _), _ in found]
    assert all(later > earlier for earlier, later in itertools.pairwise([0, *reached]))
    assert all(messages == [] for _, messages in found)
