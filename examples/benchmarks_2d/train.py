"""Train on a 2D benchmark, by default FLARE++ on the built-in Darcy set: ``flarepp train``."""

import sys

from physicsnemo_flarepp.commands import main

if __name__ == "__main__":
    sys.exit(main(["train", "--config-name", "train_2d", *sys.argv[1:]]))
