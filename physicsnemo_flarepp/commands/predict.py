"""Predicted fields on surfaces, at points, or of test cases, for ParaView.

    flarepp predict outputs/cars-flarepp-seed0 car.stl --output car.vtp
    flarepp predict outputs/pipe-flarepp-seed0 mine.npz
    flarepp predict outputs/darcy-flarepp-seed0 --cases 0 darcy_test_0007

Surfaces (.vtp, .stl, .ply, .obj, .vtk, .vtu) are predicted at every cell by exact streaming and
written to this folder as the same mesh with its own data and <field>_predicted, in the original
order of the cells; forces are printed. A model that was trained on own files takes any file that
training reads, by the same names, with or without the fields. Other models take points as .npz
files with coordinates (N, d) and, as in training, features (N, f) and globals (g,), or as .npy
files with the coordinates. Test cases are written with <field>, <field>_predicted and
<field>_error. Points and cases go to predictions/ in the run directory, grids as .vts, other points
as .vtp. Only test cases need the data of training.
"""

import argparse
from pathlib import Path

from ..datapipes.readers.contents import ARRAY_SUFFIXES, STORE_SUFFIXES
from ..evaluation import (
    FilePrediction,
    Run,
    case_mesh,
    describe_prediction,
    predict_case,
    predict_file,
)
from ..meshes import save_mesh
from ..meshes.export import export_mesh
from .arguments import (
    add_force_options,
    add_run_options,
    chosen_forces,
    load_chosen_run,
    named_numbers,
)

# All but the mesh files of VTK, which may hold a surface.
_OTHER = (*ARRAY_SUFFIXES, *STORE_SUFFIXES)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of :func:`run`."""
    parser.add_argument("run", type=Path, help="run directory")
    parser.add_argument("files", nargs="*", type=Path, help="meshes, or arrays of points")
    parser.add_argument("--cases", nargs="+", default=[], help="ids or positions of test cases")
    parser.add_argument(
        "--output", type=Path, help="file for the one surface that is predicted, else a directory"
    )
    parser.add_argument("--scale", type=float, default=1.0, help="0.001 for millimetres")
    parser.add_argument("--flip", action="store_true", help="turn the cells' normals around")
    parser.add_argument(
        "--global", dest="globals", nargs="+", action="extend", default=[], metavar="NAME=VALUE",
        help="values of the whole case that the model takes",
    )  # fmt: skip
    parser.add_argument(
        "--body", type=Path, help="surface of the body in a domain, for a model of the flow around"
    )
    add_run_options(parser)
    add_force_options(parser)


def run(options: argparse.Namespace) -> list[Path]:
    """Predict what the options name and return the files written."""
    if not options.files and not options.cases:
        raise ValueError("nothing to predict; name surfaces, files of points, or --cases")
    outputs = {
        path: _surface_output(path, options)
        for path in options.files
        if path.suffix.lower() not in _OTHER
    }
    trained = load_chosen_run(options.run, options)
    directory = options.output or options.run / "predictions"
    written = []
    for path in options.files:
        prediction = predict_file(
            trained,
            path,
            global_values=named_numbers(options.globals),
            body=options.body,
            scale=options.scale,
            flip=options.flip,
        )
        if prediction.polygons is not None and path in outputs:
            written.append(_write_surface(trained, path, prediction, outputs[path], options))
        else:
            written.append(export_mesh(prediction.mesh, directory, f"{path.stem}_predicted"))
            print(written[-1])
    for name in options.cases:
        is_position = name.lstrip("-").isdigit() and name not in trained.case_ids
        case = predict_case(trained, int(name) if is_position else name)
        written.append(export_mesh(case_mesh({trained.name: case}), directory, case.case_id))
        print(written[-1])
    return written


def _surface_output(surface: Path, options: argparse.Namespace) -> Path:
    """Return where a predicted surface goes, never over the surface itself."""
    alone = len(options.files) == 1 and not options.cases
    output = options.output or Path()
    if not (alone and output.suffix):
        output /= f"{surface.stem}_predicted.vtp"
    if output.resolve() == surface.resolve():
        raise ValueError(f"--output {output} is the surface itself; name another file")
    return output


def _write_surface(
    run: Run, path: Path, prediction: FilePrediction, output: Path, options: argparse.Namespace
) -> Path:
    settings = chosen_forces(run, options, path)
    if output.parent == options.output:
        output.parent.mkdir(parents=True, exist_ok=True)
    save_mesh(prediction.mesh, output)
    print(f"{output}: {len(prediction.values)} {prediction.association}s")
    print(*describe_prediction(run, prediction, *settings), sep="\n")
    return output
