"""Write predicted fields on surfaces, at points, or of test cases."""

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
from ..texts import printable
from .arguments import chosen_forces, load_chosen_run, named_numbers, on_surfaces

# Files that hold no surface; the mesh files of VTK may.
_OTHER = (*ARRAY_SUFFIXES, *STORE_SUFFIXES)


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
    """Return whether a file of points names its arrays as a sample does."""
    if path.suffix != ".npz" or not path.is_file():
        return False
    names = set(open_file(path, Wanted()).arrays)
    return "coordinates" in names and names <= {"coordinates", "features", "globals", "weights"}


def _surface_output(surface: Path, options: argparse.Namespace) -> Path:
    """Return where a predicted surface goes, which is never the surface itself."""
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
    print(*map(printable, describe_prediction(run, prediction, *settings)), sep="\n")
    return output
