"""What tests of runs share: a kill in a step, rows of metrics, weights of the newest checkpoint."""

from contextlib import contextmanager

import pytest
import torch

from physicsnemo_flarepp.runs import CheckpointStore, load_training_state, read_metrics
from physicsnemo_flarepp.training.optimizers import TrainStep


@contextmanager
def killed_at(monkeypatch, number):
    """Training dies in its step `number`, once; gives the list of the steps begun.

    An exception in place of SIGKILL: nothing is saved beyond the last checkpoint.
    """
    original, calls = TrainStep.__call__, []

    def step(self, batches):
        calls.append(None)
        if len(calls) == number:
            raise MemoryError
        return original(self, batches)

    monkeypatch.setattr(TrainStep, "__call__", step)
    with pytest.raises(MemoryError):
        yield calls


def rows(directory, kind):
    return [row for row in read_metrics(directory) if row["kind"] == kind]


def weights(run_dir):
    return load_training_state(CheckpointStore(f"{run_dir}/checkpoints").newest_sound(print))


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
