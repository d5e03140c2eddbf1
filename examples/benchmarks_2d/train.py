"""Train on a 2D benchmark: by default FLARE++ on the built-in Darcy set, in minutes on a CPU.

python examples/benchmarks_2d/train.py experiment=quick/elasticity
python examples/benchmarks_2d/train.py experiment=darcy data=darcy_published
python examples/benchmarks_2d/train.py --help
"""

import sys

import hydra
from omegaconf import DictConfig
from physicsnemo.distributed import DistributedManager

from physicsnemo_flarepp.evaluation import draw_run
from physicsnemo_flarepp.training import train


@hydra.main(version_base="1.3", config_path="../../conf", config_name="train_2d")
def main(cfg: DictConfig) -> None:
    """Train, then draw the run."""
    run = train(cfg)
    DistributedManager.cleanup()  # one process draws
    if run.is_main and run.stopped_by is None:
        draw_run(run.directory)
    if code := run.exit_code():  # not on success: it would end a sweep of hydra -m
        sys.exit(code)


if __name__ == "__main__":
    main()
