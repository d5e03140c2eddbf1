"""Draw trained runs on car surfaces: fields and errors, training curves, forces, routes, spectra.

    python examples/drivaerml/plot.py outputs/cars-flarepp-seed0 --case worst

Writes figures and, for ParaView, the shown case with all fields to figures/ of the first run.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from physicsnemo_flarepp.evaluation.plots import add_figure_options, draw_figures

USUAL = ("comparison", "training", "parity", "routing", "spectrum")


def main(argv: Sequence[str] | None = None) -> list[Path]:
    """Draw what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_figure_options(parser, USUAL)
    return draw_figures(parser.parse_args(argv))


if __name__ == "__main__":
    main()
