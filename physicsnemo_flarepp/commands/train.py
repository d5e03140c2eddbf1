"""Train a config, then draw the run and write its page."""

import sys

from omegaconf import DictConfig
from physicsnemo.distributed import DistributedManager

from ..evaluation import draw_run
from ..training import train
from ..training.reporting import SPLIT_NAMES
from .report import after_training


def run(cfg: DictConfig) -> dict[str, str] | None:
    """Train a config, then draw the run; exit with 128 + signal if a signal stopped it."""
    trained = train(cfg)
    DistributedManager.cleanup()  # one process draws
    if trained.is_main and trained.stopped_by is None:
        after_training(trained.directory, draw_run(trained.directory))
    if code := trained.exit_code():  # not on success: it would end a sweep of hydra -m
        sys.exit(code)
    if not trained.is_main or trained.errors is None:
        return None
    return {
        "run": str(trained.directory),
        f"{SPLIT_NAMES[trained.split]} error, %": f"{100 * trained.error:.2f}",
        "parameters": f"{trained.parameters:,}",
    }
