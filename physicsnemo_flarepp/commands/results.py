"""Verbs about trained runs: evaluate, predict, calibrate, delta, plot, report, view, export."""

import argparse
import dataclasses
import re
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

# Its names are imported when they are used: a prediction needs neither matplotlib nor a renderer.
from .. import evaluation
from ..files import pretrained_runs
from ..meshes import save_mesh
from ..meshes.export import export_mesh
from ..parallel.launch import find_device
from ..runs.directory import CONFIG, MODEL
from ..texts import printable, read_csv

if TYPE_CHECKING:
    from ..evaluation import Bounds, Exported, FilePrediction, ForceSettings, Report, Run
    from ..report.live import LiveView
    from ..visualization import Camera

# Fields of which forces may be expected; of others nothing is said.
_OF_FORCES = re.compile(r"(?i)^(c?p|tau)($|_|mean)|press|druck|shear|traction")


def load_chosen_run(directory: Path, options: argparse.Namespace) -> "Run":
    """Load a run as the options say."""
    device = find_device(options.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)  # or page-locked memory would open the first GPU, too
    given = {name: getattr(options, name) for name in ("checkpoint", "data_root", "trust")}
    return evaluation.load_run(directory, device=device, **given)


def split_runs(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Return which of some paths are run directories, and the others."""
    runs = [path for path in paths if (path / CONFIG).is_file() or (path / MODEL).is_file()]
    return runs, [path for path in paths if path not in runs]


def force_overrides(options: argparse.Namespace) -> dict[str, object]:
    """Return the force options that were given, as arguments of ``ForceSettings``."""
    names = [field.name for field in dataclasses.fields(evaluation.ForceSettings)]
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    return {n: tuple(value) if isinstance(value, list) else value for n, value in given.items()}


def chosen_forces(
    run: "Run", options: argparse.Namespace, surface: Path | None = None
) -> "tuple[ForceSettings | None, ForceSettings | None]":
    """Return the force conventions of a run and of its targets; None where there are no forces.

    If the conventions are unknown and no option gives them, a line says so. An option that does
    not fit the run is an error. `surface` is a file that is predicted instead of test cases.
    """
    given = force_overrides(options)
    if options.no_forces or not (given or on_surfaces(run)):
        return None, None
    try:
        settings = evaluation.force_settings(run, given)
        return settings, evaluation.target_settings(run, given, surface=surface)
    except ValueError as reason:
        if given:
            raise
        if any(_OF_FORCES.search(name) for name in run.channels.fields):
            print(printable(f"no forces of {run.name}: {reason}"))
        return None, None


def on_surfaces(run: "Run") -> bool:
    """Return whether a run was trained on points in space, not in the plane or on a grid."""
    return run.channels.coordinates == 3 and run.channels.grid is None


def surface_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return how a surface is read; globals may be ``rho=1``, ``U=38.9,0`` or ``mu=[0.1]``."""
    values = {}
    for text in options.globals:
        name, _, numbers = text.partition("=")
        try:
            values[name] = [float(number) for number in numbers.strip("[]").split(",")]
        except ValueError as error:
            raise ValueError(
                f"{text!r} must be a name and numbers, such as rho_inf=1 or U_inf=38.9,0,0"
            ) from error
    return {"global_values": values, "scale": options.scale, "flip": options.flip}


def evaluate(options: argparse.Namespace) -> "list[Report]":
    """Print errors and forces on test cases, and return the reports."""
    runs = (load_chosen_run(directory, options) for directory in options.runs)
    return evaluation.report_runs(runs, lambda loaded: chosen_forces(loaded, options))


def predict(options: argparse.Namespace) -> list[Path]:
    """Predict what the options name and return the files written."""
    from ..datapipes.readers.contents import ARRAY_SUFFIXES, STORE_SUFFIXES
    from ..evaluation.file_predictions import case_promise

    if options.pretrained is not None:  # the first argument is a file
        options.files = [*filter(None, [options.run]), *options.files]
        options.run = evaluation.pretrained_run(options.pretrained)
        print(f"model card: {options.run / 'MODEL_CARD.md'}")
    if options.run is None:
        names = " or ".join(pretrained_runs())
        raise ValueError(f"no run to predict with; name a run directory, or --pretrained {names}")
    others, files = split_runs(options.files)
    if not files and not options.cases:
        raise ValueError("nothing to predict; name surfaces, files of points, or --cases")
    if options.cases and others:
        raise ValueError("--cases are of one run; predict files with several")
    no_surface = (*ARRAY_SUFFIXES, *STORE_SUFFIXES)  # the mesh files of VTK may hold one
    alone = len(files) == 1 and not options.cases
    outputs = {
        path: _surface_output(path, options.output or Path(), alone)
        for path in files
        if path.suffix.lower() not in no_surface
    }
    runs = [load_chosen_run(path, options) for path in (options.run, *others)]
    trained = runs[0]
    directory = options.output or (Path() if options.pretrained else options.run / "predictions")
    reading = surface_options(options) | {"level": options.level, "body": options.body}
    written = []
    for path in files:
        prediction = evaluation.predict_file(runs, path, **reading)
        if prediction.polygons is not None and path in outputs:
            written.append(outputs[path])
            _write_surface(trained, path, prediction, outputs[path], options)
        else:
            written.append(export_mesh(prediction.mesh, directory, f"{path.stem}_predicted"))
            warnings = (f"warning: {text}" for text in prediction.warnings)
            _print_lines(written[-1], *warnings, *prediction.promise.lines())
    for name in options.cases:
        is_position = name.lstrip("-").isdigit() and name not in trained.case_ids
        case = evaluation.predict_case(trained, int(name) if is_position else name)
        mesh = evaluation.case_mesh({trained.name: case})
        written.append(export_mesh(mesh, directory, case.case_id))
        _print_lines(written[-1], *case_promise(trained, case, options.level).lines())
    return written


def _print_lines(*lines: object) -> None:
    print(*map(printable, lines), sep="\n")


def _surface_output(surface: Path, output: Path, alone: bool) -> Path:
    """Return where a predicted surface goes, which is never the surface itself."""
    if not (alone and output.suffix):
        output /= f"{surface.stem}_predicted.vtp"
    if output.resolve() == surface.resolve():
        raise ValueError(f"--output {output} is the surface itself; name another file")
    return output


def _write_surface(
    run: "Run",
    path: Path,
    prediction: "FilePrediction",
    output: Path,
    options: argparse.Namespace,
) -> None:
    settings = chosen_forces(run, options, path)
    output.parent.mkdir(parents=True, exist_ok=True)
    save_mesh(prediction.mesh, output)
    counted = f"{output}: {len(prediction.values)} {prediction.association}s"
    _print_lines(counted, *evaluation.describe_prediction(run, prediction, *settings))
    if not options.figure or prediction.bounds is None:
        return
    from ..evaluation.figures import file_name

    share = f"{100 * prediction.level:g} %"
    note = f"holds on {share} of the area\nfor {share} of cases like the training set"
    for name in map(printable, run.channels.fields):
        values = {output.stem: (prediction.mesh, prediction.mesh[f"{name}_band"])}
        figure = output.with_name(f"{output.stem}_{file_name(f'{name}_band')}.png")
        if not draw_surfaces(figure, values, f"band of {name}", signed=False, note=note):
            return
        print(figure)


def draw_surfaces(path: Path, *figure: Any, **settings: Any) -> list[Path]:
    """Draw surfaces and return the file; where nothing can be rendered, say so and return none."""
    from ..visualization import RenderingUnavailable, plot_surfaces

    try:
        plot_surfaces(*figure, **settings, path=path)
    except RenderingUnavailable as reason:
        print(f"no figure: {reason}")
        return []
    return [path]


def calibrate(options: argparse.Namespace) -> "Bounds":
    """Calibrate a run or an ensemble, print the bounds and store them."""
    from ..evaluation.bounds import format_bounds

    directories, data = split_runs(options.runs)
    if not directories or len(data) > 1 or (data and options.data_root):
        given = " ".join(map(str, options.runs))
        raise ValueError(f"{given} must be run directories, then at most one folder of data")
    if data:
        options.data_root = data[0]
    if options.checkpoint != "final":
        raise ValueError(f"--checkpoint is {options.checkpoint}; bounds are of the final weights")
    runs = [load_chosen_run(path, options) for path in directories]
    weights = None
    if options.weights is not None:
        weights = {name: float(value) for name, value in read_csv(options.weights)[1:]}
    bounds = evaluation.calibrate(runs, weights=weights, meshes=options.meshes)
    evaluation.store_bounds(bounds, runs[0])
    names = " + ".join(printable(run.name) for run in runs)
    print(f"{names}: {len(bounds.case_ids)} held-out cases", format_bounds(bounds), sep="\n")
    return bounds


def delta(options: argparse.Namespace) -> Path:
    """Compare the surfaces of the options and return the file written."""
    before, after = options.before, options.after
    output = options.output or Path(f"{after.stem}_delta.vtp")
    if output.resolve() in (before.resolve(), after.resolve()):
        raise ValueError(f"--output {output} is one of the surfaces; name another file")
    run = load_chosen_run(options.run, options)
    forces = chosen_forces(run, options, after)[0]
    reading = surface_options(options) | {"level": options.level}
    found = evaluation.predict_difference(run, before, after, forces, **reading)
    output.parent.mkdir(parents=True, exist_ok=True)
    save_mesh(found.mesh, output)
    _print_lines(*evaluation.describe_difference(found), output)
    return output


def plot(options: argparse.Namespace) -> list[Path]:
    """Draw the figures that the options choose; without OpenGL those that do not need it."""
    from ..evaluation.figure_sets import FigureSet
    from ..visualization import DARK, LIGHT
    from ..visualization.rendering import require_html
    from ..visualization.views import ALL_AROUND, CAR_CAMERAS

    if options.html:
        require_html()
    theme = DARK if options.dark else LIGHT
    same = ("output", "labels", "case", "other_case", "fields", "formats", "html")
    figures = FigureSet(
        options.runs,
        lambda path: load_chosen_run(path, options),
        **{name: getattr(options, name) for name in same},
        theme=theme if options.dpi is None else dataclasses.replace(theme, dpi=options.dpi),
        cameras=chosen_cameras(options, CAR_CAMERAS),
        routing_cameras=chosen_cameras(options, ALL_AROUND),
        forces=force_overrides(options),
        forces_asked=options.figures is not None,
    )
    # The curves need neither weights nor data, so they are there whatever else is missing.
    paths = figures.draw(options.figures or ["training"])
    if not options.figures:
        paths += figures.draw(usual_figures(figures.runs, not options.no_forces))
    print(f"figures: {figures.directory}")
    if figures.missing:
        raise SystemExit(f"not drawn: {', '.join(figures.missing)}")
    return paths


def usual_figures(runs: "Sequence[Run]", forces: bool) -> list[str]:
    """Return what is drawn by default beside the curves: forces where a run is on surfaces."""
    parity = ["parity"] if forces and any(map(on_surfaces, runs)) else []
    return ["comparison", *parity, "routing", "spectrum"]


def chosen_cameras(
    options: argparse.Namespace, usual: Sequence[str]
) -> "tuple[Camera, ...] | None":
    """Return the chosen or usual views, turned as the axes of the options say; None if none is."""
    # The flow is along the drag axis; what is up is given, or else the lift axis.
    from ..visualization.views import oriented_cameras

    given = (options.views, options.up, options.drag_axis, options.lift_axis)
    if all(option is None for option in given):
        return None
    up = options.lift_axis or (0.0, 0.0, 1.0)
    if options.up is not None:
        up = tuple(float(axis == options.up) for axis in "xyz")
    flow = options.drag_axis or ((0.0, 1.0, 0.0) if options.up == "x" else (1.0, 0.0, 0.0))
    return oriented_cameras(options.views or usual, flow, up)


def report(options: argparse.Namespace) -> Path:
    """Write the page of runs and return it."""
    path = write_report(options)
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")
    return path


def write_report(options: argparse.Namespace, **settings: Any) -> Path:
    """Write the page that the options describe, with further settings of ``write_page``."""
    from ..report import write_page

    return write_page(
        options.runs,
        lambda directory: load_chosen_run(directory, options),
        options.output,
        forces=lambda trained: chosen_forces(trained, options),
        **settings,
    )


def view(options: argparse.Namespace) -> None:
    """Serve the view until Ctrl-C."""
    live = open_view(options)
    print(f"{live.url}\nCtrl-C ends it", flush=True)
    if not options.no_browser:
        webbrowser.open(live.url)
    try:
        live.server.serve_forever()
    finally:
        live.server.server_close()


def open_view(options: argparse.Namespace) -> "LiveView":
    """Return the view that the options describe, listening but not serving yet."""
    from ..report.live import LiveView, Predictor, file_scene

    given = [path for path in (options.path, options.file) if path is not None]
    if options.pretrained is not None:
        given.insert(0, evaluation.pretrained_run(options.pretrained))
    if not 1 <= len(given) <= 2:
        names = " or ".join(pretrained_runs())
        raise ValueError(f"nothing to view; name a run, a mesh file, or --pretrained {names}")
    if len(given) == 1 and given[0].is_file():
        return LiveView(given[0].name, file_scene(given[0]), port=options.port)
    trained = load_chosen_run(given[0], options)
    predictor = Predictor(trained, lambda run, path: chosen_forces(run, options, path))
    first = predictor.of_file(given[1]) if len(given) == 2 else predictor.first()
    return LiveView(f"Run {trained.name}", first, predictor.of_file, options.port)


def export(options: argparse.Namespace) -> "Exported":
    """Write a run as one file and print what the file takes."""
    trained = load_chosen_run(options.run, options)
    output = options.output or Path(f"{trained.name}.{options.format}")
    done = evaluation.export_run(trained, output, options.format)
    print(f"{done.path}: {done.path.stat().st_size / 1e6:.2f} MB")
    for name, shape in done.inputs.items():
        print(f"  takes {name} ({', '.join(map(str, shape))}), in physical units")
    print(printable(f"  gives {', '.join(done.fields)}, (N, {len(done.fields)})"))
    checked = ", ".join(f"{n} points {d:.1g}" for n, d in done.differences.items())
    print(f"  differs from the run, relative to the largest value: {checked}")
    return done
