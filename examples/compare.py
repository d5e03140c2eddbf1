"""Train several models on one set and tabulate error, size, step time and optimisation.

python examples/compare.py experiment=quick/darcy 'compare.models=[flare,flarepp]'
"""

import sys

from physicsnemo_flarepp.commands import main

if __name__ == "__main__":
    sys.exit(main(["compare", *sys.argv[1:]]))
