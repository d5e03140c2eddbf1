"""Print and write what changes between two surfaces."""

import argparse
from pathlib import Path

from ..evaluation import describe_difference, predict_difference
from ..meshes import save_mesh
from ..texts import printable
from .parsers import chosen_forces, load_chosen_run, named_numbers


def run(options: argparse.Namespace) -> Path:
    """Compare the surfaces of the options and return the file written."""
    output = options.output or Path(f"{options.after.stem}_delta.vtp")
    if output.resolve() in (options.before.resolve(), options.after.resolve()):
        raise ValueError(f"--output {output} is one of the surfaces; name another file")
    trained = load_chosen_run(options.run, options)
    found = predict_difference(
        trained,
        options.before,
        options.after,
        chosen_forces(trained, options, options.after)[0],
        level=options.level,
        global_values=named_numbers(options.globals),
        scale=options.scale,
        flip=options.flip,
    )
    output.parent.mkdir(parents=True, exist_ok=True)
    save_mesh(found.mesh, output)
    print(*map(printable, describe_difference(found)), output, sep="\n")
    return output
