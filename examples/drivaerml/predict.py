"""Predicted fields and forces on any surface: ``flarepp predict``."""

import sys

from physicsnemo_flarepp.commands import main

if __name__ == "__main__":
    sys.exit(main(["predict", *sys.argv[1:]]))
