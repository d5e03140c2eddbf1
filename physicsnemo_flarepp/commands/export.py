"""Write a trained run as one file for other programs."""

import argparse
from pathlib import Path

from ..evaluation import Exported, export_run
from ..texts import printable
from .parsers import load_chosen_run


def run(options: argparse.Namespace) -> Exported:
    """Export the run of the options and print what the file takes."""
    trained = load_chosen_run(options.run, options)
    output = options.output or Path(f"{trained.name}.{options.format}")
    done = export_run(trained, output, options.format)
    print(f"{done.path}: {done.path.stat().st_size / 1e6:.2f} MB")
    for name, shape in done.inputs.items():
        print(f"  takes {name} ({', '.join(map(str, shape))}), in physical units")
    print(printable(f"  gives {', '.join(done.fields)}, (N, {len(done.fields)})"))
    checked = ", ".join(f"{n} points {d:.1g}" for n, d in done.differences.items())
    print(f"  differs from the run, relative to the largest value: {checked}")
    return done
