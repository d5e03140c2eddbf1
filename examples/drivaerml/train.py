"""Train on car surfaces, by default FLARE++ on the built-in cars: ``flarepp train``."""

import sys

from physicsnemo_flarepp.commands import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
