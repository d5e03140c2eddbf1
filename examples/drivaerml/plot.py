"""Figures of trained runs on car surfaces: ``flarepp plot``.

python examples/drivaerml/plot.py outputs/cars-flarepp-seed0 --case worst
"""

import sys

from physicsnemo_flarepp.commands import main

if __name__ == "__main__":
    sys.exit(main(["plot", *sys.argv[1:]]))
