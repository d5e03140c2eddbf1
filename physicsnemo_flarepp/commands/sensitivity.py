"""Write how a force or the average of a field changes with the shape of a surface."""

import argparse
from pathlib import Path

import numpy as np

from ..design import (
    Sensitivity,
    ShapeModel,
    car_directions,
    check_gradient,
    largest_difference,
    lattice_rows,
    make_lattice,
    open_shape,
    sensitivity_mesh,
    shape_sensitivity,
)
from ..files import replace_text
from ..meshes import save_mesh
from ..texts import csv_text, format_table, printable
from ..visualization import RenderingUnavailable, plot_surfaces
from .parsers import chosen_forces, load_chosen_run, named_numbers
from .plot import chosen_cameras

# The underside carries much of the lift.
VIEWS = ("three-quarter", "side", "top", "underside")
_SHOWN = 8


def run(options: argparse.Namespace) -> list[Path]:
    """Differentiate what the options name and return the files written."""
    output = options.output or Path(f"{options.surface.stem}_sensitivity.vtp")
    shape = opened_shape(options)
    found = shape_sensitivity(shape, options.of, smoothing=options.smooth)
    print(f"{printable(found.quantity)} {found.value:.6g}")
    output.parent.mkdir(parents=True, exist_ok=True)
    mesh = sensitivity_mesh(shape, found)
    save_mesh(mesh, output)
    written = [output, output.with_suffix(".csv")]
    lattice = make_lattice(shape.mesh.points, options.lattice, symmetric=False)
    table = lattice_rows(shape, found, lattice)
    replace_text(written[1], csv_text(table))
    largest = sorted(table[1:], key=lambda row: -np.linalg.norm(row[6:]))[:_SHOWN]
    print(f"derivatives by the displacement of control points, the largest of {len(table) - 1}:")
    print(format_table([table[0], *([f"{x:.4g}" for x in row] for row in largest)]))
    if directions := car_directions(shape):
        print("derivatives by the parameters of the car:")
        slopes = {n: float((d * found.vectors).sum()) for n, d in directions.items()}
        rows = [[name, f"{slope:.5g}"] for name, slope in slopes.items()]
        print(format_table([["parameter", "derivative"], *rows]))
    if options.check:
        pairs = check_gradient(shape, found)
        rows = [[f"{a:.8g}", f"{b:.8g}"] for a, b in pairs]
        print(format_table([["derivative", "central difference"], *rows]))
        print(f"worst difference: {largest_difference(pairs):.2g} of the largest derivative")
    if (figure := _draw(shape, found, mesh, output.with_suffix(".png"), options)) is not None:
        written.append(figure)
    print(*written, sep="\n")
    return written


def opened_shape(options: argparse.Namespace) -> ShapeModel:
    """Open the run and the surface of the options, and print what makes them doubtful."""
    trained = load_chosen_run(options.run, options)
    shape = open_shape(
        trained,
        options.surface,
        settings=chosen_forces(trained, options, options.surface)[0],
        region=options.box,
        moving_area=options.moving_area,
        global_values=named_numbers(options.globals),
        scale=options.scale,
        flip=options.flip,
        allow_open=options.allow_open,
        scratch=options.scratch,
    )
    for text in shape.warnings:
        print(printable(f"warning: {text}"))
    return shape


def _draw(
    shape: ShapeModel, found: Sensitivity, mesh, path: Path, options: argparse.Namespace
) -> Path | None:
    """Draw the map and return its file; None where nothing can be rendered, which is said."""
    label = f"change of {found.quantity} per outward displacement and area"
    note = (
        f"red: moving outward raises it; averaged over {found.smoothing:.3g}\n"
        f"run {shape.run.name}: the derivative of the surrogate, not of a solver"
    )
    try:
        plot_surfaces(
            {f"{found.quantity} {found.value:.4g}": (mesh, found.per_area)},
            label,
            cameras=chosen_cameras(options, options.views or VIEWS) or VIEWS,
            note=note,
            path=path,
        )
    except RenderingUnavailable as reason:
        print(f"no figure: {reason}")
        return None
    return path
