"""Predicted fields of test cases, or at the points of a file: ``flarepp predict``.

python examples/benchmarks_2d/predict.py outputs/darcy-flarepp-seed0 --cases 0 darcy_test_0007
python examples/benchmarks_2d/predict.py outputs/pipe-flarepp-seed0 mine.npz
"""

import sys

from physicsnemo_flarepp.commands import main

if __name__ == "__main__":
    sys.exit(main(["predict", *sys.argv[1:]]))
