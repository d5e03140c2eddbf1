"""Trainings that are killed at chosen file operations, each in a fork of its own."""

import gc
import json
import os
import shutil
import signal
import sys
import traceback
from pathlib import Path

import torch
from omegaconf import DictConfig, OmegaConf

from tests.runs.checkpoint_cases import CallCounter

OPERATIONS = (
    "mkdir",
    "write",
    "fsync",
    "rename",
    "replace",
    "unlink",
    "rmdir",
    "ftruncate",
)
FOREIGN = ("notes.txt", "figures/mine.png", "predictions/mine.vtp", "tensorboard/mine.txt")


def forked(function) -> int:
    """Run `function` in a fork without output; return its exit status, 1 for an exception."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            function()
            code = 0
        except BaseException:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(code)
    return os.waitpid(child, 0)[1]


def _train(cfg: DictConfig, at: int, report: Path | None = None) -> None:
    """Train and die at operation `at`; else tell how many there were."""
    from physicsnemo_flarepp.training import train

    torch.set_num_threads(1)
    with CallCounter(OPERATIONS, at, lambda: os.kill(os.getpid(), signal.SIGKILL)) as counter:
        train(cfg)
    if report is not None:
        report.write_text(str(counter.calls))


def _go_on(cfg: DictConfig, report: Path) -> None:
    """Start again as a user would: with the same command, and with restart=true if told so."""
    from physicsnemo_flarepp.training import train

    torch.set_num_threads(1)
    again = OmegaConf.merge(cfg, {"restart": False})
    restarted = False
    try:
        train(again)
    except (FileExistsError, ValueError) as error:
        if "restart=true" not in str(error):
            raise
        restarted = True
        train(OmegaConf.merge(cfg, {"restart": True}))
    report.write_text(json.dumps({"restarted": restarted, **left_in(Path(cfg.run_dir))}))


def left_in(directory: Path) -> dict:
    """What is to be compared with a run that was left alone."""
    from physicsnemo_flarepp.evaluation import load_run
    from physicsnemo_flarepp.inference.state import model_fingerprint
    from physicsnemo_flarepp.runs import read_metrics

    return {
        "model": model_fingerprint(load_run(directory, device="cpu").model),
        "losses": [row.get("loss") for row in read_metrics(directory)],
        "hidden": sorted(p.name for p in directory.rglob(".*") if p.name != ".lock"),
        "foreign": [name for name in FOREIGN if (directory / name).exists()],
    }


def kill_training(config: dict, template: str | None, result: str, every: int) -> None:
    """Kill a training at every `every`-th operation, go on, and store what each led to.

    Parameters
    ----------
    config : dict
        Of the training; ``run_dir`` is where the copies go.
    template : str or None
        A run directory that the training finds, None for none.
    """
    # Imported here, once for all forks, where the server has not done so.
    import physicsnemo_flarepp.evaluation
    import physicsnemo_flarepp.training  # noqa: F401

    gc.freeze()
    base = Path(config["run_dir"])
    base.mkdir()
    report = base / "report"

    def place(name: str) -> DictConfig:
        if template is not None:
            shutil.copytree(template, base / name)
        return OmegaConf.create({**config, "run_dir": str(base / name)})

    assert forked(lambda: _train(place("whole"), 0, report)) == 0
    operations = int(report.read_text())
    found = [{"operations": operations}]
    assert forked(lambda: report.write_text(json.dumps(left_in(base / "whole")))) == 0
    found.append(json.loads(report.read_text()))
    for at in range(1, operations + 1, every):
        cfg = place(str(at))
        assert forked(lambda: _train(cfg, at)) == signal.SIGKILL  # noqa: B023
        assert forked(lambda: _go_on(cfg, report)) == 0, f"killed at {at}"  # noqa: B023
        found.append({"at": at, **json.loads(report.read_text())})
        shutil.rmtree(cfg.run_dir)
    Path(result).write_text(json.dumps(found))
