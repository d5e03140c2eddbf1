"""Errors and forces of trained runs on their test cases, at full resolution.

    flarepp evaluate outputs/cars-flarepp-seed0 outputs/cars-flare-seed0

Prints relative L2 errors per field (mean, median, worst case), the error of predicting the training
mean, on surfaces drag and lift with R^2, and writes one line per case to evaluation.csv in each run
directory.
"""

import argparse
from pathlib import Path

from ..evaluation import Report, report_runs
from .arguments import add_force_options, add_run_options, chosen_forces, load_chosen_run


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of :func:`run`."""
    parser.add_argument("runs", nargs="+", type=Path, help="run directories")
    add_run_options(parser)
    add_force_options(parser)


def run(options: argparse.Namespace) -> list[Report]:
    """Evaluate the runs and return their reports."""
    runs = (load_chosen_run(directory, options) for directory in options.runs)
    return report_runs(runs, lambda loaded: chosen_forces(loaded, options))
