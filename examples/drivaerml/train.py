"""Train a surrogate for car surfaces: by default FLARE++ on the built-in cars, on any machine.

python examples/drivaerml/train.py                              built-in cars, minutes on a CPU
python examples/drivaerml/train.py experiment=drivaerml_40k     the paper's run
python examples/drivaerml/train.py --help                       groups and values
"""

import sys

import hydra
from omegaconf import DictConfig
from physicsnemo.distributed import DistributedManager

from physicsnemo_flarepp.evaluation import draw_run
from physicsnemo_flarepp.training import train


@hydra.main(version_base="1.3", config_path="../../conf", config_name="train")
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
