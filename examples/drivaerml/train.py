"""Train on car surfaces, by default FLARE++ on the built-in cars: ``flarepp train``."""

from physicsnemo_flarepp.commands import run

if __name__ == "__main__":
    run("train")
