"""Draw trained runs: fields and errors, training curves, forces, routes and spectra.

    flarepp plot outputs/cars-flarepp-seed0 outputs/cars-flare-seed0 --case worst

Writes figures and, for ParaView, the shown case with all fields to figures/ of the first run.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..evaluation import Run
from ..evaluation.figure_sets import FigureSet
from ..visualization import DARK, LIGHT
from ..visualization.interactive import require_html
from .arguments import (
    add_force_options,
    add_run_options,
    force_overrides,
    load_chosen_run,
    on_surfaces,
)

FIGURE_NAMES = ("comparison", "gallery", "parity", "routing", "spectrum", "training")
FORMATS = ("png", "pdf", "svg")


def _dots(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not a positive number of dots per inch")
    return value


def usual_figures(runs: Sequence[Run]) -> tuple[str, ...]:
    """Return the figures that are drawn by default: forces where a run is on surfaces."""
    forces = ("parity",) if any(map(on_surfaces, runs)) else ()
    return ("comparison", "training", *forces, "routing", "spectrum")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of :func:`run`."""
    parser.add_argument("runs", nargs="+", type=Path, help="run directories")
    parser.add_argument(
        "--figures", nargs="+", choices=FIGURE_NAMES,
        help="default: all but the gallery; parity of forces on surfaces only",
    )  # fmt: skip
    parser.add_argument(
        "--case", default="median", help="median, worst, best of the first run, or a case id"
    )
    parser.add_argument("--other-case", help="id of a second case, for the change of queries")
    parser.add_argument("--fields", nargs="+", help="fields or channels; default: all")
    parser.add_argument("--labels", nargs="+", help="names of the runs in the figures")
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=["png"])
    parser.add_argument("--html", action="store_true", help="interactive pages (extra 'html')")
    parser.add_argument("--dark", action="store_true", help="dark background")
    parser.add_argument("--dpi", type=_dots, help="resolution of png files")
    parser.add_argument("--output", type=Path, help="default: figures/ of the first run")
    add_run_options(parser)
    add_force_options(parser)


def run(options: argparse.Namespace) -> list[Path]:
    """Draw the figures chosen by the options of :func:`add_options`.

    If OpenGL is unavailable, figures that do not need it are drawn, the case is exported, and the
    process ends with code 1.

    Returns
    -------
    list of Path
        The files written, without the exports for ParaView.
    """
    if options.html:
        require_html()
    theme = DARK if options.dark else LIGHT
    figures = FigureSet(
        options.runs,
        lambda path: load_chosen_run(path, options),
        output=options.output,
        labels=options.labels,
        case=options.case,
        other_case=options.other_case,
        fields=options.fields,
        formats=options.formats,
        theme=theme if options.dpi is None else replace(theme, dpi=options.dpi),
        html=options.html,
        forces=force_overrides(options),
        forces_asked=options.figures is not None,
    )
    names = options.figures or usual_figures(figures.runs)
    if options.no_forces and not options.figures:
        names = [name for name in names if name != "parity"]
    paths = figures.draw(names)
    print(f"figures: {figures.directory}")
    if figures.missing:
        raise SystemExit(f"not drawn: {', '.join(figures.missing)}")
    return paths
