"""Calibrate the bounds of a run, or of an ensemble, and store them with it."""

import argparse

from ..evaluation import Bounds, calibrate, store_bounds
from ..evaluation.bounds import format_bounds
from ..texts import printable, read_csv
from .parsers import load_chosen_run, split_runs


def run(options: argparse.Namespace) -> Bounds:
    """Calibrate what the options name, print the bounds and store them."""
    directories, data = split_runs(options.runs)
    if not directories or len(data) > 1 or (data and options.data_root):
        raise ValueError(
            f"{' '.join(map(str, options.runs))} must be one or more run directories, then at most "
            "one folder of data"
        )
    if data:
        options.data_root = data[0]
    if options.checkpoint != "final":
        raise ValueError(f"--checkpoint is {options.checkpoint}; bounds are of the final weights")
    runs = [load_chosen_run(path, options) for path in directories]
    weights = None
    if options.weights is not None:
        _, *rows = read_csv(options.weights)
        weights = {name: float(value) for name, value in rows}
    bounds = calibrate(runs, weights=weights)
    store_bounds(bounds, runs[0])
    names = " + ".join(printable(run.name) for run in runs)
    print(f"{names}: {len(bounds.case_ids)} held-out cases", format_bounds(bounds), sep="\n")
    return bounds
