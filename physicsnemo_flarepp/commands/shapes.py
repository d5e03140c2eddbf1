"""Verbs about shapes: sensitivity, optimize."""

import argparse
from pathlib import Path

import numpy as np

from .. import design
from ..evaluation import describe_difference
from ..files import replace_text
from ..meshes import save_mesh
from ..texts import csv_text, format_table, printable
from .results import (
    chosen_cameras,
    chosen_forces,
    draw_surfaces,
    load_chosen_run,
    surface_options,
)

# The underside carries much of the lift.
VIEWS = ("three-quarter", "side", "top", "underside")
_SHOWN = 8


def sensitivity(options: argparse.Namespace) -> list[Path]:
    """Differentiate what the options name and return the files written."""
    output = options.output or Path(f"{options.surface.stem}_sensitivity.vtp")
    shape = opened_shape(options)
    found = design.shape_sensitivity(shape, options.of, smoothing=options.smooth)
    print(f"{printable(found.quantity)} {found.value:.6g}")
    output.parent.mkdir(parents=True, exist_ok=True)
    mesh = design.sensitivity_mesh(shape, found)
    save_mesh(mesh, output)
    written = [output, output.with_suffix(".csv")]
    lattice = design.make_lattice(shape.mesh.points, options.lattice, symmetric=False)
    header, *rows = design.lattice_rows(shape, found, lattice)
    replace_text(written[1], csv_text([header, *rows]))
    largest = sorted(rows, key=lambda row: -np.linalg.norm(row[6:]))[:_SHOWN]
    print(f"derivatives by the displacement of control points, the largest of {len(rows)}:")
    print(format_table([header, *([f"{x:.4g}" for x in row] for row in largest)]))
    if directions := design.car_directions(shape):
        print("derivatives by the parameters of the car:")
        rows = [[n, f"{float((d * found.vectors).sum()):.5g}"] for n, d in directions.items()]
        print(format_table([["parameter", "derivative"], *rows]))
    if options.check:
        pairs = design.check_gradient(shape, found)
        rows = [[f"{a:.8g}", f"{b:.8g}"] for a, b in pairs]
        print(format_table([["derivative", "central difference"], *rows]))
        worst = design.largest_difference(pairs)
        print(f"worst difference: {worst:.2g} of the largest derivative")
    written += draw_surfaces(
        output.with_suffix(".png"),
        {f"{found.quantity} {found.value:.4g}": (mesh, found.per_area)},
        f"change of {found.quantity} per outward displacement and area",
        cameras=chosen_cameras(options, VIEWS) or VIEWS,
        note=f"red: moving outward raises it; averaged over {found.smoothing:.3g}\n"
        f"the derivative of the surrogate, not of a solver\nrun {shape.run.name}",
    )
    print(*written, sep="\n")
    return written


def opened_shape(options: argparse.Namespace) -> design.ShapeModel:
    """Open the run and the surface of the options, and print what makes them doubtful."""
    trained = load_chosen_run(options.run, options)
    shape = design.open_shape(
        trained,
        options.surface,
        settings=chosen_forces(trained, options, options.surface)[0],
        region=options.box,
        moving_area=options.moving_area,
        allow_open=options.allow_open,
        scratch=options.scratch,
        **surface_options(options),
    )
    for text in shape.warnings:
        print(printable(f"warning: {text}"))
    return shape


def optimize(options: argparse.Namespace) -> list[Path]:
    """Optimise what the options name and return the files written."""
    output = options.output or Path(f"{options.surface.stem}_optimized")
    weights = dict(options.minimize) | {name: -w for name, w in options.maximize}
    if not weights:
        raise ValueError("nothing to optimise; give --minimize drag or --maximize lift")
    shape = opened_shape(options)
    lattice = design.make_lattice(
        shape.mesh.points,
        options.lattice,
        box=options.lattice_box,
        frozen=options.freeze,
        axes=options.along,
        symmetric=not options.asymmetric,
    )
    trust, limits = None if options.anywhere else options.outside, dict(options.limit)
    problem = design.Problem(shape, lattice, weights, options.displacement, limits, trust)
    print(f"{int(lattice.free.sum())} variables; history in {output}")
    if trust is not None:
        print(printable(_trust_line(problem)))
    outcome = design.optimize(problem, output, evaluations=options.evaluations, report=_report)
    cameras = chosen_cameras(options, VIEWS) or VIEWS
    written, reason = design.write_outcome(problem, outcome, output, cameras=cameras)
    print(format_table(design.outcome_rows(outcome)))
    change = design.predicted_change(problem, outcome)
    print(*map(printable, describe_difference(change, chosen=True)), sep="\n")
    print(
        "These are predictions of the surrogate: confirm the change with the solver. An optimum is "
        "chosen by its prediction, so the level of a bound does not hold for it."
    )
    if reason is not None:
        print(f"no picture: {reason}")
    print(*written, sep="\n")
    if outcome.interrupted:
        raise KeyboardInterrupt("; the best shape so far is kept, the same command resumes")
    return written


def _trust_line(problem: design.Problem) -> str:
    if problem.farthest is None:
        return f"trust region by ranges of the inputs only: {problem.shape.bounds}"
    if problem.farthest == 1:
        return (
            "trust region: latent states no farther from training than the farthest held-out case"
        )
    return (
        f"warning: the given shape is {problem.farthest:.3g} times as far from training as the "
        "farthest held-out case; shapes may go as far as it"
    )


def _report(row: dict, number: int) -> None:
    if "objective" in row:
        print(f"shape {number}: objective {row['objective']:.6g}", flush=True)
        return
    reason = "the lattice folds the surface"
    if "latent_distance" in row:
        reason = f"its latent state is too far from training ({row['latent_distance']:.3g})"
    print(f"shape {number}: {reason}, the step is shortened", flush=True)
