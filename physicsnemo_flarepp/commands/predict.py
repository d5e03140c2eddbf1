"""Write predicted fields on surfaces, at points, or of test cases."""

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
    pretrained_run,
)
from ..evaluation.figures import file_name
from ..evaluation.file_predictions import case_promise
from ..meshes import save_mesh
from ..meshes.export import export_mesh
from ..texts import printable
from .parsers import chosen_forces, load_chosen_run, named_numbers, split_runs

# Files that hold no surface; the mesh files of VTK may.
_OTHER = (*ARRAY_SUFFIXES, *STORE_SUFFIXES)


def run(options: argparse.Namespace) -> list[Path]:
    """Predict what the options name and return the files written."""
    if options.pretrained is not None:  # the first argument is a file
        options.files = [*filter(None, [options.run]), *options.files]
        options.run = pretrained_run(options.pretrained)
        print(f"model card: {options.run / 'MODEL_CARD.md'}")
    if options.run is None:
        raise ValueError("no run to predict with; name a run directory, or --pretrained cars")
    others, options.files = split_runs(options.files)
    if not options.files and not options.cases:
        raise ValueError("nothing to predict; name surfaces, files of points, or --cases")
    outputs = {
        path: _surface_output(path, options)
        for path in options.files
        if path.suffix.lower() not in _OTHER
    }
    runs = [load_chosen_run(path, options) for path in (options.run, *others)]
    trained = runs[0]
    directory = options.output or (Path() if options.pretrained else options.run / "predictions")
    written = []
    for path in options.files:
        prediction = predict_file(
            runs,
            path,
            level=options.level,
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
            for text in prediction.warnings:
                print(f"warning: {printable(text)}")
            print(*map(printable, prediction.promise.lines()), sep="\n")
    if options.cases and others:
        raise ValueError("--cases are of one run; predict files with several")
    for name in options.cases:
        is_position = name.lstrip("-").isdigit() and name not in trained.case_ids
        case = predict_case(trained, int(name) if is_position else name)
        written.append(export_mesh(case_mesh({trained.name: case}), directory, case.case_id))
        print(written[-1])
        print(*map(printable, case_promise(trained, case, options.level).lines()), sep="\n")
    return written


def _surface_output(surface: Path, options: argparse.Namespace) -> Path:
    """Return where a predicted surface goes, which is never the surface itself."""
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
    output.parent.mkdir(parents=True, exist_ok=True)
    save_mesh(prediction.mesh, output)
    print(f"{output}: {len(prediction.values)} {prediction.association}s")
    print(*map(printable, describe_prediction(run, prediction, *settings)), sep="\n")
    if options.figure and prediction.bounds is not None:
        _draw_bands(run, prediction, output)
    return output


def _draw_bands(run: Run, prediction: FilePrediction, output: Path) -> None:
    """Draw the band of each field, and say where; or why nothing can be rendered."""
    from ..visualization import RenderingUnavailable, plot_surfaces

    share = f"{100 * prediction.level:g} %"
    for name in run.channels.fields:
        band = f"{printable(name)}_band"
        path = output.with_name(f"{output.stem}_{file_name(band)}.png")
        try:
            plot_surfaces(
                {output.stem: (prediction.mesh, prediction.mesh[band])},
                f"band of {printable(name)}",
                note=f"holds on {share} of the area\nfor {share} of cases like the training set",
                path=path,
            )
        except RenderingUnavailable as reason:
            print(f"no figure: {reason}")
            return
        print(path)
