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

from ..datapipes.readers.contents import ARRAY_SUFFIXES, STORE_SUFFIXES, Wanted, open_file
from ..evaluation import (
    Run,
    case_mesh,
    describe_prediction,
    predict_case,
    predict_file,
    predict_points,
    predict_surface,
)
from ..meshes import PolygonMesh, read_mesh, save_mesh
from ..meshes.export import export_mesh
from .arguments import (
    add_force_options,
    add_run_options,
    chosen_forces,
    load_chosen_run,
    named_numbers,
    on_surfaces,
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
    if trained.names is not None:
        outputs = {path: out for path, out in outputs.items() if _is_surface(path, trained)}
    directory = options.output or options.run / "predictions"
    written = []
    for path in options.files:
        if path in outputs:
            written.append(_predict_surface(trained, path, outputs[path], options))
        else:
            if trained.names is None or _is_plain(path):
                mesh = predict_points(trained, path)
            else:
                mesh = predict_file(
                    trained,
                    path,
                    global_values=named_numbers(options.globals),
                    body=options.body,
                )
            written.append(export_mesh(mesh, directory, f"{path.stem}_predicted"))
            print(written[-1])
    for name in options.cases:
        is_position = name.lstrip("-").isdigit() and name not in trained.case_ids
        case = predict_case(trained, int(name) if is_position else name)
        written.append(export_mesh(case_mesh({trained.name: case}), directory, case.case_id))
        print(written[-1])
    return written


def _is_surface(path: Path, run: Run) -> bool:
    """Return whether a mesh file holds a surface, for a run on surfaces."""
    return on_surfaces(run) and isinstance(read_mesh(path, arrays=()), PolygonMesh)


def _is_plain(path: Path) -> bool:
    """Return whether a file of points names its arrays as those of a sample are named."""
    if path.suffix != ".npz" or not path.is_file():
        return False
    names = set(open_file(path, Wanted()).arrays)
    return "coordinates" in names and names <= {"coordinates", "features", "globals", "weights"}


def _surface_output(surface: Path, options: argparse.Namespace) -> Path:
    """Return where a predicted surface goes, never over the surface itself."""
    alone = len(options.files) == 1 and not options.cases
    output = options.output or Path()
    if not (alone and output.suffix):
        output /= f"{surface.stem}_predicted.vtp"
    if output.resolve() == surface.resolve():
        raise ValueError(f"--output {output} is the surface itself; name another file")
    return output


def _predict_surface(run: Run, path: Path, output: Path, options: argparse.Namespace) -> Path:
    settings = chosen_forces(run, options, path)
    prediction = predict_surface(
        run,
        path,
        global_values=named_numbers(options.globals),
        scale=options.scale,
        flip=options.flip,
    )
    if output.parent == options.output:
        output.parent.mkdir(parents=True, exist_ok=True)
    save_mesh(prediction.surface, output)
    print(f"{output}: {len(prediction.values)} {prediction.association}s")
    print(*describe_prediction(run, prediction, *settings), sep="\n")
    return output
