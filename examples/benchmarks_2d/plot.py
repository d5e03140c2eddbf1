"""Figures of trained runs on 2D benchmarks: ``flarepp plot``.

python examples/benchmarks_2d/plot.py outputs/darcy-flarepp-seed0 outputs/darcy-flare-seed0
"""

import sys

from physicsnemo_flarepp.commands import main

if __name__ == "__main__":
    sys.exit(main(["plot", *sys.argv[1:]]))
