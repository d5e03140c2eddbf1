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
    parser.add_argument("--train", type=int, metavar="N", help="training cases (set's default)")
    parser.add_argument("--test", type=int, metavar="N", help="test cases (set's default)")
    parser.add_argument("--val", type=int, metavar="N", help="validation cases (as many as test)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the set (%(default)s)")
    parser.add_argument("--root", type=Path, metavar="DIR", help="where sets are kept (user cache)")
    parser.add_argument("--workers", type=int, metavar="N", help="solver processes (all cores)")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    chosen = parser.parse_args(arguments)
    try:
        path = generate(
            chosen.name,
            n_train=chosen.train,
            n_test=chosen.test,
            n_val=chosen.val,
            seed=chosen.seed,
            root=chosen.root,
            workers=chosen.workers,
            progress=not chosen.quiet,
        )
    except KeyboardInterrupt:
        sys.exit("interrupted; finished cases are kept; give the same command to resume")
    print(path)


if __name__ == "__main__":
    main()
