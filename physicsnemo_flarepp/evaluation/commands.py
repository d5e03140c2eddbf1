"""What the ``train.py`` scripts do after Hydra has composed their config."""

import sys

from omegaconf import DictConfig
from physicsnemo.distributed import DistributedManager

from ..training import train
from ..training.run_directory import RunDirectoryLost
from .figures import draw_run


def train_and_draw(cfg: DictConfig) -> None:
    """Train a config, then draw the run; exit with 128 + signal if a signal stopped it.

    Parameters
    ----------
    cfg : DictConfig
        See :class:`~physicsnemo_flarepp.training.settings.RunConfig`.
    """
    try:
        run = train(cfg)
    except RunDirectoryLost as error:  # nothing that a traceback would help to find
        sys.exit(str(error))
    DistributedManager.cleanup()  # one process draws
    if run.is_main and run.stopped_by is None:
        draw_run(run.directory)
    if code := run.exit_code():  # not on success: it would end a sweep of hydra -m
        sys.exit(code)
