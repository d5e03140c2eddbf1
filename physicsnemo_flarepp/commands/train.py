"""Train a config, then draw the run."""

import sys

from omegaconf import DictConfig
from physicsnemo.distributed import DistributedManager

from ..evaluation import draw_run
from ..training import train


def run(cfg: DictConfig) -> None:
    """Train a config, then draw the run; exit with 128 + signal if a signal stopped it.

    Parameters
    ----------
    cfg : DictConfig
        See :class:`~physicsnemo_flarepp.training.config.RunConfig`.
    """
    trained = train(cfg)
    DistributedManager.cleanup()  # one process draws
    if trained.is_main and trained.stopped_by is None:
        draw_run(trained.directory)
    if code := trained.exit_code():  # not on success: it would end a sweep of hydra -m
        sys.exit(code)
