"""Train a surrogate for car surfaces: by default FLARE++ on the built-in cars, on any machine.

python examples/drivaerml/train.py                              built-in cars, minutes on a CPU
python examples/drivaerml/train.py experiment=drivaerml_40k     the paper's run
python examples/drivaerml/train.py --help                       groups and values
"""

import sys

from physicsnemo_flarepp.commands import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
