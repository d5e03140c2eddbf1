"""Train several models on one set and tabulate them: ``flarepp compare``."""

import sys

from physicsnemo_flarepp.commands import main

if __name__ == "__main__":
    sys.exit(main(["compare", *sys.argv[1:]]))
