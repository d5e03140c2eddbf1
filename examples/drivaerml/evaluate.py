"""Errors and forces of trained runs on car surfaces: ``flarepp evaluate``.

python examples/drivaerml/evaluate.py outputs/cars-flarepp-seed0 outputs/cars-flare-seed0
"""

import sys

from physicsnemo_flarepp.commands import main

if __name__ == "__main__":
    sys.exit(main(["evaluate", *sys.argv[1:]]))
