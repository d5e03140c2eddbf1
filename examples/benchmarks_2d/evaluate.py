"""Errors of trained runs on 2D benchmarks: ``flarepp evaluate``.

python examples/benchmarks_2d/evaluate.py outputs/darcy-flarepp-seed0 outputs/darcy-flare-seed0
"""

import sys

from physicsnemo_flarepp.commands import main

if __name__ == "__main__":
    sys.exit(main(["evaluate", *sys.argv[1:]]))
