"""Train a surrogate for car surfaces: by default FLARE++ on the built-in cars, on any machine.

python examples/drivaerml/train.py                              built-in cars, minutes on a CPU
python examples/drivaerml/train.py experiment=drivaerml_40k     the paper's run
python examples/drivaerml/train.py --help                       groups and values
"""

import sys

import hydra
from omegaconf import DictConfig

from physicsnemo_flarepp.evaluation import draw_run
from physicsnemo_flarepp.training import train


@hydra.main(version_base="1.3", config_path="../../conf", config_name="train")
def main(cfg: DictConfig) -> None:
    """Train, then draw the run."""
    run = train(cfg)
    if run.is_main and run.stopped_by is None:
        draw_run(run.directory)
    sys.exit(run.exit_code())


if __name__ == "__main__":
    main()
