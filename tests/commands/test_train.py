"""The verb train, to the figures and to the exit code."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from physicsnemo_flarepp import evaluation
from physicsnemo_flarepp.commands import main, training
from physicsnemo_flarepp.training.run import TrainingResult

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


@pytest.mark.slow
def test_training_on_two_ranks_leaves_model_table_and_figures(tmp_path):
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
        [*launcher, "-m", "physicsnemo_flarepp", "train", *overrides],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "1 data x 2 context ranks" in done.stdout
    assert "Warp" not in done.stderr + done.stdout
    assert "Test error over 2 cases" in (tmp_path / "run" / "table.md").read_text()
    assert (tmp_path / "run" / "model.mdlus").stat().st_size > 1000
    assert {path.name for path in (tmp_path / "run" / "figures").glob("*.png")} == {
        "training.png",
        "comparison_median_pMeanTrim.png",
    }
    assert (tmp_path / "run" / "report.html").is_file(), done.stdout
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["kind"] == "result" and last["epoch"] == 2


@pytest.mark.slow
def test_a_signal_that_stops_a_run_is_the_exit_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    drawn = []
    monkeypatch.setattr(evaluation, "draw_run", lambda path: drawn.append(path) or [])
    for stopped_by, code in (("SIGTERM", 143), ("SIGINT", 130), ("SIGUSR1", 138)):
        left = TrainingResult(tmp_path, True, (), None, None, 1, stopped_by)
        monkeypatch.setattr(training.run, "train", lambda cfg, left=left: left)
        with pytest.raises(SystemExit) as ended:
            main(["train"])
        assert ended.value.code == code
    assert drawn == []
    done = TrainingResult(tmp_path, True, (), None, None, 1)
    monkeypatch.setattr(training.run, "train", lambda cfg: done)
    assert main(["train"]) == 0 and drawn == [tmp_path]


@pytest.mark.slow
@pytest.mark.parametrize(
    "script", sorted(path.relative_to(ROOT) for path in ROOT.glob("examples/*/train.py")), ids=str
)
def test_scripts_call_the_command(script):
    command = [sys.executable, str(ROOT / script), "--cfg", "job", "--resolve"]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=True)
    name = {"drivaerml": "cars", "benchmarks_2d": "darcy"}[script.parent.name]
    assert f"run_dir: outputs/{name}-flarepp-seed0\n" in done.stdout
