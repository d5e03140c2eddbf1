"""Print errors and forces of trained runs on their test cases."""

import argparse

from ..evaluation import Report, report_runs
from .parsers import chosen_forces, load_chosen_run


def run(options: argparse.Namespace) -> list[Report]:
    """Evaluate the runs and return their reports."""
    runs = (load_chosen_run(directory, options) for directory in options.runs)
    return report_runs(runs, lambda loaded: chosen_forces(loaded, options))
