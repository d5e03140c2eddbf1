"""Errors of trained runs on their test cases, at full resolution.

    python examples/benchmarks_2d/evaluate.py outputs/darcy-flarepp-seed0 outputs/darcy-flare-seed0

Prints relative L2 errors per field (mean, median, worst case) and the error of predicting the
training mean, and writes one line per case to evaluation.csv in each run directory.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from physicsnemo_flarepp.evaluation import Report, report_runs
from physicsnemo_flarepp.evaluation.arguments import add_run_options, load_chosen_run


def main(argv: Sequence[str] | None = None) -> list[Report]:
    """Evaluate the runs named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, help="run directories")
    add_run_options(parser)
    options = parser.parse_args(argv)
    return report_runs(load_chosen_run(directory, options) for directory in options.runs)


if __name__ == "__main__":
    main()
