"""Train a config, then draw the run and write its page."""

import sys
from pathlib import Path

from omegaconf import DictConfig
from physicsnemo.distributed import DistributedManager

# Its names are imported when they are used: matplotlib would delay the first step.
from .. import evaluation
from ..texts import printable
from ..training import train
from ..training.reporting import SPLIT_NAMES


def run(cfg: DictConfig) -> dict[str, str] | None:
    """Train a config, then draw the run; exit with 128 + signal if a signal stopped it."""
    trained = train(cfg)
    DistributedManager.cleanup()  # one process draws
    if trained.is_main and trained.stopped_by is None:
        _bound_errors(trained.directory)
        from .report import after_training  # as above

        after_training(trained.directory, evaluation.draw_run(trained.directory))
    if code := trained.exit_code():  # not on success: it would end a sweep of hydra -m
        sys.exit(code)
    if not trained.is_main or trained.errors is None:
        return None
    return {
        "run": str(trained.directory),
        f"{SPLIT_NAMES[trained.split]} error, %": f"{100 * trained.error:.2f}",
        "parameters": f"{trained.parameters:,}",
    }


def _bound_errors(directory: Path) -> None:
    """Calibrate bounds on the validation cases, or say in a line why there are none."""
    from ..evaluation.bounds import format_bounds
    from ..evaluation.figures import classifies

    if classifies(directory):
        return
    try:
        # What it names, the training has just imported.
        trained = evaluation.load_run(directory, trust=True)
        bounds = evaluation.calibrate(trained)
    except (OSError, ValueError) as reason:  # the results of the training stand
        print(printable(f"no bounds: {reason}"))
        return
    evaluation.store_bounds(bounds, trained)
    print(f"bounds from {len(bounds.case_ids)} validation cases", format_bounds(bounds), sep="\n")
