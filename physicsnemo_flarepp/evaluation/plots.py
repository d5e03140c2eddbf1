"""The figures that the ``plot.py`` scripts offer, by name."""

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..mixers import FlareMixer, FlarePPMixer, Mixer
from ..visualization import DARK, LIGHT, Theme
from .arguments import add_run_options, load_chosen_run
from .conventions import force_settings
from .curve_figures import draw_parity, draw_training
from .figures import FIGURES, draw_comparison, draw_gallery
from .reports import evaluate_run
from .routing_figures import draw_routing, draw_spectrum
from .runs import Run
from .shown_cases import chosen_case, run_names

FIGURE_NAMES = ("comparison", "gallery", "parity", "routing", "spectrum", "training")
FORMATS = ("png", "pdf", "svg")


def add_figure_options(parser: argparse.ArgumentParser, usual: Sequence[str]) -> None:
    """Add the options of :func:`draw_figures`; `usual` are the figures drawn by default."""
    parser.add_argument("runs", nargs="+", type=Path, help="run directories")
    parser.add_argument("--figures", nargs="+", choices=FIGURE_NAMES, default=list(usual))
    parser.add_argument(
        "--case", default="median", help="median, worst, best of the first run, or a case id"
    )
    parser.add_argument("--other-case", help="id of a second case, for the change of queries")
    parser.add_argument("--fields", nargs="+", help="fields or channels; default: all")
    parser.add_argument("--labels", nargs="+", help="names of the runs in the figures")
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=["png"])
    parser.add_argument("--html", action="store_true", help="interactive pages (extra 'html')")
    parser.add_argument("--dark", action="store_true", help="dark background")
    parser.add_argument("--dpi", type=int, help="resolution of png files")
    parser.add_argument("--output", type=Path, help="default: figures/ of the first run")
    add_run_options(parser)


def draw_figures(options: argparse.Namespace) -> list[Path]:
    """Draw the figures chosen by the options of :func:`add_figure_options`.

    Returns
    -------
    list of Path
        The files written, without the exports for ParaView.
    """
    directory = options.output or options.runs[0] / FIGURES
    theme = DARK if options.dark else LIGHT
    if options.dpi is not None:
        theme = replace(theme, dpi=options.dpi)
    look = {"formats": options.formats, "theme": theme}
    runs = [load_chosen_run(path, options) for path in options.runs]
    labels = run_names(runs, options.labels)
    paths: list[Path] = []
    for name in options.figures:
        print(f"drawing {name}", flush=True)
        if name == "comparison":
            pictures = draw_comparison(
                runs,
                options.case,
                directory,
                fields=options.fields,
                labels=labels,
                html=options.html,
                **look,
            )
            paths += [path for picture in pictures for path in picture.paths]
        elif name == "gallery":
            paths += draw_gallery(runs, directory, labels=labels, **look).paths
        elif name == "parity":
            reports = [evaluate_run(run, force_settings(run)) for run in runs]
            paths += draw_parity(reports, directory, **look).paths
        elif name == "training":
            paths += draw_training(options.runs, directory, labels=labels, **look).paths
        else:
            paths += _draw_routes(name, runs, labels, options, directory, look)
    print(f"figures: {directory}")
    return paths


def _draw_routes(
    name: str,
    runs: Sequence[Run],
    labels: Sequence[str],
    options: argparse.Namespace,
    directory: str | os.PathLike,
    look: dict[str, Sequence[str] | Theme],
) -> list[Path]:
    """Draw the routes of the runs whose models have some, and say which have none."""
    pairs = list(zip(runs, labels, strict=True))
    with_routes = [(run, label) for run, label in pairs if _has_routes(run)]
    for _, label in (pair for pair in pairs if pair not in with_routes):
        print(f"no {name} of {label}: only FLARE and FLARE++ have routes")
    if not with_routes:
        return []
    case = chosen_case(runs[0], options.case)
    if name == "spectrum":
        names = [label for _, label in with_routes]
        chosen = [run for run, _ in with_routes]
        return list(draw_spectrum(chosen, case, directory, labels=names, **look).paths)
    ids = [i for i in runs[0].loaders.test.dataset.reader.case_ids if i != case]
    other = options.other_case or (ids[0] if ids else None)
    maps, change = draw_routing(with_routes[0][0], case, directory, other_case=other, **look)
    return [*maps.paths, *(change.paths if change is not None else ())]


def _has_routes(run: Run) -> bool:
    mixers = [module for module in run.model.modules() if isinstance(module, Mixer)]
    return bool(mixers) and all(isinstance(m, FlareMixer | FlarePPMixer) for m in mixers)
