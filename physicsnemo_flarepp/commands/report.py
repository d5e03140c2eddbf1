"""Write one page about trained runs."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from ..report import AFTER_TRAINING, write_page
from ..texts import printable
from .dispatch import parse_options
from .parsers import chosen_forces, load_chosen_run


def run(options: argparse.Namespace) -> Path:
    """Write the page that the options describe and return it."""
    path = write_page(
        options.runs,
        lambda directory: load_chosen_run(directory, options),
        options.output,
        forces=lambda trained: chosen_forces(trained, options),
    )
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")
    return path


def after_training(directory: Path, drawn: Sequence[Path]) -> None:
    """Write the page of a run that has just been trained; if that fails, say why.

    `drawn` are its figures.
    """
    # What the run names, the training has just imported.
    options = parse_options("report", [str(directory), "--trust"])
    try:
        path = write_page(
            [directory],
            lambda path: load_chosen_run(path, options),
            forces=lambda trained: chosen_forces(trained, options),
            drawn=drawn,
            largest=AFTER_TRAINING,
        )
    except (ImportError, OSError, RuntimeError, ValueError) as reason:  # the training stands
        print(printable(f"no report of {directory}: {reason}; try flarepp report {directory}"))
        return
    print(f"report: {path}")
