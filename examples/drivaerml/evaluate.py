"""Errors and forces of trained runs on car surfaces: ``flarepp evaluate``."""

import sys

from physicsnemo_flarepp.commands import main

if __name__ == "__main__":
    sys.exit(main(["evaluate", *sys.argv[1:]]))
