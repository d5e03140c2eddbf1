"""Train a surrogate for car surfaces: by default FLARE++ on the built-in cars, on any machine.

python examples/drivaerml/train.py                              built-in cars, minutes on a CPU
python examples/drivaerml/train.py experiment=drivaerml_40k     the paper's run
python examples/drivaerml/train.py --help                       groups and values
"""

import hydra
from omegaconf import DictConfig

from physicsnemo_flarepp.evaluation.commands import train_and_draw


@hydra.main(version_base="1.3", config_path="../../conf", config_name="train")
def main(cfg: DictConfig) -> None:
    """Train, then draw the run."""
    train_and_draw(cfg)


if __name__ == "__main__":
    main()
