"""Train on a 2D benchmark: by default FLARE++ on the built-in Darcy set, in minutes on a CPU.

python examples/benchmarks_2d/train.py experiment=quick/elasticity
python examples/benchmarks_2d/train.py experiment=darcy data=darcy_published
python examples/benchmarks_2d/train.py --help
"""

import sys

from physicsnemo_flarepp.commands import main

if __name__ == "__main__":
    sys.exit(main(["train", "--config-name", "train_2d", *sys.argv[1:]]))
