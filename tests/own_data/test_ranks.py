"""Own files on two ranks: the training of one process, whether ranks share batches or cases."""

import json

import numpy as np
import pytest
from physicsnemo.distributed import DistributedManager

from physicsnemo_flarepp.commands.configs import compose_config
from physicsnemo_flarepp.runs import read_metrics
from physicsnemo_flarepp.training import train
from tests.training.rank_processes import run_training

pytestmark = [pytest.mark.slow, pytest.mark.distributed]

SMALL = ["model.n_layers=1", "model.n_hidden=16", "model.n_head=2", "model.slice_num=4",
         "training.epochs=3", "training.log_every=1", "training.learning_rate=0.01",
         "data.batch_size=2", "data.num_workers=0", "data.n_points=30"]  # fmt: skip


@pytest.fixture(scope="module")
def clouds(tmp_path_factory):
    """Clouds of different sizes with a table of parameters and a manifest, as people have them."""
    root = tmp_path_factory.mktemp("own clouds")
    rng = np.random.default_rng(0)
    rows = ["run,inlet speed"]
    for run in range(6):
        points, speed = rng.uniform(-1, 1, (35 + 7 * run, 2)), 1 + 0.2 * run
        pressure = speed * points[:, 0] - points[:, 1] ** 2
        np.savez(root / f"run {run}.npz", pos=points, p=pressure, wall=points[:, 1] > 0)
        rows.append(f"{run},{speed}")
    (root / "parameters.csv").write_text("\n".join(rows) + "\n")
    splits = {"train": [f"run {run}" for run in range(4)], "test": ["run 4", "run 5"]}
    (root / "manifest.json").write_text(json.dumps(splits))
    return root


def curve(clouds, run_dir, ranks, context):
    """Losses of the steps, and the error on the test cases, of a training on some ranks."""
    own = ["data=own", f"data.root='{clouds}'", f"run_dir={run_dir}", "label=own"]
    own += [f"parallel.context={context}"]
    cfg = compose_config("train", [*own, *SMALL])
    if ranks == 1:
        train(cfg)
        DistributedManager.cleanup()
    else:
        run_training(cfg, ranks)
    rows = read_metrics(run_dir)
    return [row["loss"] for row in rows if row["kind"] == "step"], rows[-1]["error"]


def test_two_ranks_train_on_own_files_what_one_process_does(clouds, tmp_path):
    losses, error = curve(clouds, tmp_path / "alone", 1, 1)
    assert len(losses) == 6 and losses[-1] < losses[0]
    config = json.dumps(str((tmp_path / "alone" / "config.yaml").read_text()))
    assert "inlet speed" in config and "wall" in config, "the guesses hold for all ranks"
    for name, context in (("data", 1), ("context", 2)):
        theirs, their_error = curve(clouds, tmp_path / name, 2, context)
        np.testing.assert_allclose(theirs, losses, rtol=1e-4, err_msg=name)
        assert their_error == pytest.approx(error, rel=1e-4)
