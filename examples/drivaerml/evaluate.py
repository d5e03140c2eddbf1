"""Errors and forces of trained runs on their test cases, at full resolution.

    python examples/drivaerml/evaluate.py outputs/cars-flarepp-seed0 outputs/cars-flare-seed0

Prints relative L2 errors per field (mean, median, worst case), the error of predicting the training
mean, drag and lift with R^2, and writes one line per case to evaluation.csv in each run directory.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from physicsnemo_flarepp.evaluation import Report, force_settings, report_runs
from physicsnemo_flarepp.evaluation.arguments import (
    add_force_options,
    add_run_options,
    force_overrides,
    load_chosen_run,
)


def main(argv: Sequence[str] | None = None) -> list[Report]:
    """Evaluate the runs named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, help="run directories")
    add_run_options(parser)
    add_force_options(parser)
    options = parser.parse_args(argv)
    runs = (load_chosen_run(directory, options) for directory in options.runs)
    if options.no_forces:
        return report_runs(runs)
    return report_runs(runs, lambda run: force_settings(run, force_overrides(options)))


if __name__ == "__main__":
    main()
