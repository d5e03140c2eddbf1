"""A disk that is full for a second or for good costs warnings or the run, never what was saved."""

import errno
import os
import signal

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from physicsnemo_flarepp.evaluation import load_run
from physicsnemo_flarepp.runs import CheckpointStore, read_metrics
from physicsnemo_flarepp.training import train
from physicsnemo_flarepp.training.optimizers import TrainStep
from tests.training.conftest import (  # noqa: F401
    make_config,
    one_thread,
    surface_set,
)


class FullDisk:
    """Refuse the writes to files under `directory` with numbers from `first` to before `last`."""

    def __init__(self, directory, first, last=float("inf")):
        self.directory, self.first, self.last, self.writes = str(directory), first, last, 0

    def __enter__(self):
        self.original = os.write
        os.write = self.write
        return self

    def __exit__(self, *_):
        os.write = self.original

    def write(self, descriptor, data):
        if os.readlink(f"/proc/self/fd/{descriptor}").startswith(self.directory):
            self.writes += 1
            if self.first <= self.writes < self.last:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self.original(descriptor, data)


def differences(run, whole):
    """Return in what the run is not that of a disk with room."""
    weights = [load_run(r.directory, device="cpu").model.state_dict() for r in (run, whole)]
    rows = [[(r["step"], r.get("loss")) for r in read_metrics(x.directory)] for x in (run, whole)]
    hidden = [p.name for p in run.directory.rglob(".*") if p.name != ".lock"]
    board = EventAccumulator(str(run.directory / "tensorboard")).Reload()
    shown = {event.step: event.value for event in board.Scalars("step/loss")}
    losses = {r["step"]: r["loss"] for r in read_metrics(run.directory) if r["kind"] == "step"}
    same = {
        "weights": all(torch.equal(value, weights[1][name]) for name, value in weights[0].items()),
        "metrics": rows[0] == rows[1],
        "TensorBoard": shown == pytest.approx(losses),
        f"left over: {hidden}": hidden == [],
    }
    return [name for name, is_same in same.items() if not is_same]


def fill_everywhere(make_config, capsys, every, length):  # noqa: F811
    """Fill the disk at every so many writes in turn.

    Return how often the run came to its end at once, the number of tries, and what was lost by
    the write at which the disk was full.
    """
    whole = train(make_config(run_dir=f"{make_config().run_dir}_whole", training__epochs=2))
    with FullDisk(make_config().run_dir, float("inf")) as count:
        train(make_config(training__epochs=2))
    ended, lost = 0, {}
    starts = range(1, count.writes + 1, every)
    for start in starts:
        cfg = make_config(run_dir=f"{make_config().run_dir}_{start}", training__epochs=2)
        capsys.readouterr()
        saved = []
        with FullDisk(cfg.run_dir, start, start + length):
            try:
                train(cfg)
                ended += 1
            except OSError as error:
                assert error.errno == errno.ENOSPC and "No space left" in str(error)
                saved = CheckpointStore(f"{cfg.run_dir}/checkpoints").entries()
        said = capsys.readouterr().out
        assert said.count("WARNING") <= 6
        if found := differences(train(cfg), whole):
            lost[start] = found
        if saved:
            assert f"resuming from {saved[0].path}" in capsys.readouterr().out
    return ended, len(starts), lost


@pytest.mark.slow
@pytest.mark.parametrize("length", [4, float("inf")], ids=["a second", "for good"])
def test_full_disk_loses_nothing(make_config, capsys, length):  # noqa: F811
    _, tried, lost = fill_everywhere(make_config, capsys, 11, length)
    assert tried >= 3 and lost == {}


@pytest.mark.exhaustive
@pytest.mark.parametrize("length", [1, 4, float("inf")], ids=["a moment", "a second", "for good"])
def test_full_disk_at_any_write_loses_nothing(make_config, capsys, length):  # noqa: F811
    ended, tried, lost = fill_everywhere(make_config, capsys, 1, length)
    with capsys.disabled():
        print(f"\nfull at {tried} writes, {ended} runs came to their end at once")
    assert lost == {}


@pytest.mark.slow
def test_a_disk_that_is_full_while_metrics_are_written_costs_one_warning(
    make_config,  # noqa: F811
    monkeypatch,
    capsys,
):
    """TensorBoard's own writer would die with the first failure and fail the run at its end."""
    whole = train(make_config(run_dir=f"{make_config().run_dir}_whole"))
    calls, disks = [], []
    original = TrainStep.__call__

    def step(self, batches):
        calls.append(None)
        if len(calls) == 6:  # of 20: after the first checkpoint, and back before the second
            disks.append(FullDisk(make_config().run_dir, 0).__enter__())
        if len(calls) == 10:
            disks[0].__exit__()
        return original(self, batches)

    monkeypatch.setattr(TrainStep, "__call__", step)
    run = train(make_config(training__log_every=1))
    assert run.exit_code() == 0
    said = capsys.readouterr().out.split("resuming from")[-1]
    assert said.count("WARNING metrics are kept for later") == 1 and said.count("WARNING") == 1
    assert differences(run, whole) == []


@pytest.mark.parametrize("back", [False, True], ids=["full", "room again"])
def test_a_stop_after_a_failed_save_tells_the_truth(
    make_config,  # noqa: F811
    monkeypatch,
    capsys,
    back,
):
    """SIGTERM comes while the second epoch's checkpoint meets a full disk."""
    original, tries = CheckpointStore.save, []

    def save(self, step, *arguments, **named):
        if step == 10:
            tries.append(named["metric"])
            os.kill(os.getpid(), signal.SIGTERM)
            if len(tries) == 1 or not back:
                with FullDisk(make_config().run_dir, 0):
                    return original(self, step, *arguments, **named)
        return original(self, step, *arguments, **named)

    monkeypatch.setattr(CheckpointStore, "save", save)
    if back:
        run = train(make_config())
        assert run.exit_code() == 128 + signal.SIGTERM
        assert "stopped by SIGTERM at step 10 of 20; saved in" in capsys.readouterr().out
    else:
        message = "stopped by SIGTERM at step 10, which was NOT saved; .*step_00000005.*No space"
        with pytest.raises(OSError, match=message):
            train(make_config())
        assert "saved in" not in capsys.readouterr().out
    entries = CheckpointStore(f"{make_config().run_dir}/checkpoints").entries()
    assert [entry.step for entry in entries] == ([10, 5] if back else [5])
    assert len(tries) == 2 and tries[0] == tries[1] is not None
    assert all(entry.metric is not None for entry in entries)
