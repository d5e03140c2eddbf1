"""What tests of runs look at: rows of metrics, and the weights of the newest checkpoint."""

import torch

from physicsnemo_flarepp.training.checkpoints.store import CheckpointStore, load_training_state
from physicsnemo_flarepp.training.metrics import read_metrics


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
