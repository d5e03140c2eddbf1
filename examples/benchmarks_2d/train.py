"""Train on a 2D benchmark: by default FLARE++ on the built-in Darcy set, in minutes on a CPU.

python examples/benchmarks_2d/train.py experiment=quick/elasticity
python examples/benchmarks_2d/train.py experiment=darcy data=darcy_published
python examples/benchmarks_2d/train.py --help
"""

import hydra
from omegaconf import DictConfig

from physicsnemo_flarepp.evaluation.commands import train_and_draw


@hydra.main(version_base="1.3", config_path="../../conf", config_name="train_2d")
def main(cfg: DictConfig) -> None:
    """Train, then draw the run."""
    train_and_draw(cfg)


if __name__ == "__main__":
    main()
