"""Draw trained runs: fields and errors, training curves, forces, routes and spectra."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..evaluation import Run
from ..evaluation.figures import FigureSet
from ..visualization import DARK, LIGHT, Camera
from ..visualization.rendering import require_html
from ..visualization.views import ALL_AROUND, CAR_CAMERAS, oriented_cameras
from .parsers import force_overrides, load_chosen_run, on_surfaces


def usual_figures(runs: Sequence[Run]) -> tuple[str, ...]:
    """Return what is drawn by default beside the curves: forces where a run is on surfaces."""
    forces = ("parity",) if any(map(on_surfaces, runs)) else ()
    return ("comparison", *forces, "routing", "spectrum")


def chosen_cameras(options: argparse.Namespace, names: Sequence[str]) -> tuple[Camera, ...] | None:
    """Return the views of these names, as the axes of the options turn them; None if none is given.

    The flow is along the drag axis; what is up is given, or else the lift axis.
    """
    given = (options.views, options.up, options.drag_axis, options.lift_axis)
    if all(option is None for option in given):
        return None
    up = options.lift_axis or (0.0, 0.0, 1.0)
    if options.up is not None:
        up = tuple(float(axis == options.up) for axis in "xyz")
    flow = options.drag_axis or ((0.0, 1.0, 0.0) if options.up == "x" else (1.0, 0.0, 0.0))
    return oriented_cameras(names, flow, up)


def run(options: argparse.Namespace) -> list[Path]:
    """Draw the figures that the options choose.

    If OpenGL is unavailable, figures that do not need it are drawn, the case is exported, and the
    process ends with code 1.
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
        cameras=chosen_cameras(options, options.views or CAR_CAMERAS),
        routing_cameras=chosen_cameras(options, options.views or ALL_AROUND),
        forces=force_overrides(options),
        forces_asked=options.figures is not None,
    )
    if options.figures:
        paths = figures.draw(options.figures)
    else:
        # The curves need neither weights nor data, so they are there whatever else is missing.
        paths = figures.draw(["training"])
        names = usual_figures(figures.runs)
        paths += figures.draw([n for n in names if not (options.no_forces and n == "parity")])
    print(f"figures: {figures.directory}")
    if figures.missing:
        raise SystemExit(f"not drawn: {', '.join(figures.missing)}")
    return paths
