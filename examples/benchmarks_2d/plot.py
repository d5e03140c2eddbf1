"""Figures of runs on 2D benchmarks: ``flarepp plot``."""

import sys

from physicsnemo_flarepp.commands import main

if __name__ == "__main__":
    sys.exit(main(["plot", *sys.argv[1:]]))
