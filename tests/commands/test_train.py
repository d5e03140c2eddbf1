"""The train script as a user starts it on two ranks, to the figures."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]


def test_train_script_on_two_ranks_leaves_model_table_and_figures(tmp_path):
    rng = np.random.default_rng(0)
    for split, runs in (("train", range(4)), ("test", range(4, 6))):
        (tmp_path / "data" / split).mkdir(parents=True)
        for run in runs:
            points = rng.uniform(-1, 1, (60, 3)).astype(np.float32)
            np.savez(
                tmp_path / "data" / split / f"run_{run}.npz",
                surface_mesh_centers=points,
                surface_fields=np.hstack([points[:, :1] - 2, points]),
            )
    overrides = [
        "experiment=quick/drivaerml_40k",
        f"data.root={tmp_path / 'data'}",
        "data.n_train=null",
        "data.n_test=null",
        "data.n_points=null",
        "data.n_points_test=null",
        "data.normalization=fit",
        "training.epochs=2",
        "parallel.context=2",
        f"run_dir={tmp_path / 'run'}",
    ]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*launcher, ROOT / "examples" / "drivaerml" / "train.py", *overrides],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "1 data x 2 context ranks" in done.stdout
    assert "Test error over 2 cases" in (tmp_path / "run" / "table.md").read_text()
    assert (tmp_path / "run" / "model.mdlus").stat().st_size > 1000
    assert {path.name for path in (tmp_path / "run" / "figures").glob("*.png")} == {
        "training.png",
        "comparison_median_pMeanTrim.png",
    }
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["kind"] == "evaluation" and last["epoch"] == 2
