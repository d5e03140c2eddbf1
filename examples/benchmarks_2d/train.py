"""Train on a 2D benchmark, by default FLARE++ on the built-in Darcy set: ``flarepp train``."""

from physicsnemo_flarepp.commands import run

if __name__ == "__main__":
    run("train", "--config-name", "train_2d")
