"""Predicted fields and forces on any surface: ``flarepp predict``.

python examples/drivaerml/predict.py outputs/cars-flarepp-seed0 car.stl --output car.vtp
"""

import sys

from physicsnemo_flarepp.commands import main

if __name__ == "__main__":
    sys.exit(main(["predict", *sys.argv[1:]]))
