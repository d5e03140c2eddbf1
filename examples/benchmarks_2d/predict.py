"""Predicted fields of test cases, or at the points of a file: ``flarepp predict``."""

import sys

from physicsnemo_flarepp.commands import main

if __name__ == "__main__":
    sys.exit(main(["predict", *sys.argv[1:]]))
