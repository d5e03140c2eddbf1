"""Predicted fields on any surface, at every cell, by exact streaming; forces printed.

    python examples/drivaerml/predict.py outputs/cars-flarepp-seed0 car.stl --output car.vtp

Takes .vtp, .stl, .ply, .obj and .vtk surfaces. The result is the same mesh with its own data and
<field>_predicted, in the original order of the cells. The training data is not needed.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from physicsnemo_flarepp.evaluation import (
    describe_prediction,
    force_settings,
    predict_surface,
    save_mesh,
)
from physicsnemo_flarepp.evaluation.arguments import (
    add_force_options,
    add_run_options,
    existing_file,
    force_overrides,
    load_chosen_run,
    named_numbers,
)


def main(argv: Sequence[str] | None = None) -> Path:
    """Predict one surface and return the file written."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="run directory")
    parser.add_argument("surface", type=existing_file, help=".vtp, .stl, .ply, .obj or .vtk")
    parser.add_argument("--output", type=Path, help="default: <surface>_predicted.vtp, here")
    parser.add_argument("--scale", type=float, default=1.0, help="0.001 for millimetres")
    parser.add_argument("--flip", action="store_true", help="turn the cells' normals around")
    parser.add_argument(
        "--global", dest="globals", nargs="+", default=[], metavar="NAME=VALUE",
        help="values of the whole case that the model takes",
    )  # fmt: skip
    add_run_options(parser, data=False)
    add_force_options(parser)
    options = parser.parse_args(argv)
    output = options.output or Path(f"{options.surface.stem}_predicted.vtp")
    if output.resolve() == options.surface.resolve():
        parser.error(f"--output {output} is the surface itself; name another file")
    run = load_chosen_run(options.run, options)
    settings = None if options.no_forces else force_settings(run, force_overrides(options))
    given = {"global_values": named_numbers(options.globals), "scale": options.scale}
    prediction = predict_surface(run, options.surface, **given, flip=options.flip)
    save_mesh(prediction.surface, output)
    print(f"{output}: {len(prediction.values)} {prediction.association}s")
    print(*describe_prediction(run, prediction, settings), sep="\n")
    return output


if __name__ == "__main__":
    main()
