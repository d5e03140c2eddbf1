"""Change the shape of a surface until a predicted force is best, within limits."""

import argparse
from pathlib import Path

from ..design import Problem, make_lattice, optimize
from ..design.reporting import outcome_rows, write_outcome
from ..texts import format_table
from .plot import chosen_cameras
from .sensitivity import VIEWS, opened_shape


def run(options: argparse.Namespace) -> list[Path]:
    """Optimise what the options name and return the files written."""
    output = options.output or Path(f"{options.surface.stem}_optimized")
    weights = dict(options.minimize) | {name: -w for name, w in options.maximize}
    if not weights:
        raise ValueError("nothing to optimise; give --minimize drag or --maximize lift")
    shape = opened_shape(options)
    lattice = make_lattice(
        shape.mesh.points,
        options.lattice,
        box=options.lattice_box,
        frozen=options.freeze,
        axes=options.along,
        symmetric=not options.asymmetric,
    )
    trust = None if options.anywhere else options.outside
    problem = Problem(shape, lattice, weights, options.displacement, dict(options.limit), trust)
    print(f"{int(lattice.free.sum())} variables; history in {output}")
    outcome = optimize(problem, output, evaluations=options.evaluations, report=_report)
    cameras = chosen_cameras(options, options.views or VIEWS) or VIEWS
    written, reason = write_outcome(problem, outcome, output, cameras=cameras)
    print(format_table(outcome_rows(outcome)))
    print(
        "These are predictions of the surrogate: confirm the change with the solver. "
        "`flarepp delta` of both surfaces says whether the run's bounds settle its sign."
    )
    if reason is not None:
        print(f"no picture: {reason}")
    print(*written, sep="\n")
    if outcome.interrupted:
        raise KeyboardInterrupt("; the best shape so far is kept, the same command resumes")
    return written


def _report(row: dict, number: int) -> None:
    if "objective" in row:
        print(f"shape {number}: objective {row['objective']:.6g}", flush=True)
    else:
        print(f"shape {number}: the lattice folds the surface, the step is shortened", flush=True)
