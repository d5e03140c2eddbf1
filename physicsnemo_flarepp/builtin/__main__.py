"""Make a built-in data set from the command line and print where it is."""

import argparse
import sys
from pathlib import Path

from . import generate
from .sets import MODULES


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line, make the set, print its directory."""
    parser = argparse.ArgumentParser(
        prog="python -m physicsnemo_flarepp.builtin", description=__doc__
    )
    parser.add_argument("name", choices=sorted(MODULES), help="which set")
    count = {"type": int, "metavar": "N"}
    parser.add_argument("--train", dest="n_train", **count, help="training cases (set's default)")
    parser.add_argument("--test", dest="n_test", **count, help="test cases (set's default)")
    parser.add_argument("--val", dest="n_val", **count, help="validation cases (as many as test)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the set (%(default)s)")
    parser.add_argument("--root", type=Path, metavar="DIR", help="where sets are kept (user cache)")
    parser.add_argument("--workers", **count, help="solver processes (all cores)")
    parser.add_argument("--quiet", dest="progress", action="store_false", help="no progress bar")
    try:
        path = generate(**vars(parser.parse_args(arguments)))
    except KeyboardInterrupt:
        sys.exit("interrupted; finished cases are kept; give the same command to resume")
    print(path)


if __name__ == "__main__":
    main()
