"""The arguments of every verb that Hydra does not configure.

The function of a verb adds its options to a parser, and its docstring is the help. Nothing slow is
imported.
"""

import argparse
import inspect as python_inspect
from collections.abc import Callable, Sequence
from pathlib import Path

from ..files import pretrained_runs

_UNITS = {"kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_BOX = "X0,X1,Y0,Y1,Z0,Z1"
FIGURE_NAMES = ("comparison", "gallery", "parity", "routing", "spectrum", "training")


def parse_options(name: str, arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of a verb; flags may stand between its other arguments."""
    add_options = globals()[name]
    parser = argparse.ArgumentParser(
        prog=f"flarepp {name}",
        description=python_inspect.getdoc(add_options),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser)
    if name == "plan":  # or an option that takes several numbers would take the override after them
        arguments = sorted(arguments, key=lambda text: text.startswith("-") or "=" not in text)
    return parser.parse_intermixed_args(arguments)


# What the options of several verbs have in common. ------------------------------------------------


def add_run_options(parser: argparse.ArgumentParser, forces: bool = True) -> None:
    """Add how a run is opened and, under the names of its settings, how forces are integrated."""
    add = parser.add_argument
    add("--checkpoint", default="final", metavar="WHICH", help="final (default), best or latest")
    add("--device", help="cpu, cuda, cuda:1, ...; default: a GPU if there is one")
    add("--trust", action="store_true",
        help="import the classes that the run names (custom readers and models); this lets its "
        "author run code here, see SECURITY.md")  # fmt: skip
    add("--data-root", help="other data in the same layout, with its own test cases")
    if not forces:
        return
    add = parser.add_argument_group("forces", "conventions; by default the data set's").add_argument
    add("--no-forces", action="store_true", help="do not integrate forces")
    add("--pressure-field", dest="pressure", metavar="NAME")
    add("--shear-field", dest="shear", metavar="NAME")
    add("--shear-sign", type=int, choices=(1, -1),
        help="1: wall shear stress is stored along the flow; -1: OpenFOAM's sign")  # fmt: skip
    add("--speed", type=float, help="free-stream speed")
    add("--density", type=float, help="1 for kinematic pressure")
    add("--reference-area", type=float, help="default: aRef, else the frontal area")
    add("--drag-axis", type=float, nargs=3, metavar=("X", "Y", "Z"))
    add("--lift-axis", type=float, nargs=3, metavar=("X", "Y", "Z"))
    add("--orientation", metavar="SIDE", help="where cells face: auto (default), outward or inward")


def _add_pretrained(parser: argparse.ArgumentParser) -> None:
    told = f"use a run that comes with the package: {', '.join(pretrained_runs())}"
    parser.add_argument("--pretrained", metavar="NAME", help=told)


def _add_surface_options(parser: argparse.ArgumentParser, held: str | None = None) -> None:
    add = parser.add_argument
    if held is None:
        add("--level", type=float, metavar="SHARE",
            help="level of the bounds: 0.8, 0.9 (default) or 0.95")  # fmt: skip
    add("--scale", type=float, default=1.0, help="0.001 for millimetres")
    add("--flip", action="store_true", help="reverse the normals of the cells")
    add("--global", dest="globals", nargs="+", action="extend", default=[], metavar="NAME=VALUE",
        help=f"global inputs of the run{held or ''}")  # fmt: skip


def _add_views(parser: argparse.ArgumentParser, usual: str) -> None:
    add = parser.add_argument
    add("--views", type=lambda text: text.split(","), metavar="VIEW,...",
        help="of surfaces: three-quarter, side, top, front, rear, bottom, underside; default: "
        + usual)  # fmt: skip
    add("--up", choices=("x", "y", "z"), help="upward axis of the data; default: the lift axis, z")


def _add_shape_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run", type=Path, help="run directory; trained with normals and weights")
    add("surface", type=Path, help="closed surface: .stl, .vtp, .ply, .obj, .vtk")
    add("--box", type=_numbers(6), metavar=_BOX, help="average fields over the cells in this box")
    add("--lattice", type=_numbers(3, int), default=(5, 3, 3), metavar="NX,NY,NZ",
        help="control points along x, y and z (default: 5,3,3)")  # fmt: skip
    add("--moving-area", action="store_true",
        help="use the frontal area of the changed shape as reference area")  # fmt: skip
    _add_surface_options(parser, "; held fixed")
    add("--allow-open", action="store_true", help="accept a surface with openings")
    add("--scratch", type=Path, help="folder for intermediate arrays; default: in memory")
    _add_views(parser, "three-quarter,side,top,underside")


# The verbs. ---------------------------------------------------------------------------------------


def evaluate(parser: argparse.ArgumentParser) -> None:
    """Errors and forces of trained runs on their test cases, at full resolution.

        flarepp evaluate outputs/cars-flarepp-seed0 outputs/cars-flare-seed0

    Prints relative L2 errors per field (mean, median, worst case), the errors of simple predictors
    that a model should beat and, on surfaces, drag and lift with R^2. Writes one line per case to
    evaluation.csv in each run directory.
    """
    parser.add_argument("runs", nargs="+", type=Path, help="run directories")
    add_run_options(parser)


def predict(parser: argparse.ArgumentParser) -> None:
    """Predicted fields on surfaces, at points, or of test cases, for ParaView.

        flarepp predict outputs/cars-flarepp-seed0 car.stl --output car.vtp
        flarepp predict --pretrained cars car.stl
        flarepp predict outputs/pipe-flarepp-seed0 mine.npz
        flarepp predict outputs/darcy-flarepp-seed0 --cases 0 darcy_test_0007
        flarepp predict outputs/cars-flarepp-seed0 outputs/cars-flarepp-seed1 car.stl

    Surfaces (.vtp, .stl, .ply, .obj, .vtk, .vtu) are predicted at every cell by exact streaming.
    The current folder gets the same mesh, with its data and <field>_predicted, cells in their
    original order. Forces are printed, and error bounds if the run was calibrated and the surface
    resembles the training surfaces; <field>_band is the bound at each cell. Several runs on the
    same data give their mean and <field>_spread.

    A model trained on your own files takes any file that training reads, under the same names, with
    or without the fields. Other models take points: .npz files with coordinates (N, d) and, as in
    training, features (N, f) and globals (g,), or .npy files with the coordinates.

    Test cases are written with <field>, <field>_predicted and <field>_error. Points and cases go to
    predictions/ in the run directory, grids as .vts, other points as .vtp. Only test cases need the
    training data set.
    """
    add = parser.add_argument
    add("run", nargs="?", type=Path, help="run directory")
    add("files", nargs="*", type=Path, help="more runs; meshes, or arrays of points")
    _add_pretrained(parser)
    add("--figure", action="store_true", help="draw the bounds at each cell of surfaces")
    add("--cases", nargs="+", default=[], help="ids or positions of test cases")
    add("--output", type=Path, help="file for a single surface, otherwise a directory")
    _add_surface_options(parser)
    add("--body", type=Path, help="surface of the body, for a model of the flow around it")
    add_run_options(parser)


def calibrate(parser: argparse.ArgumentParser) -> None:
    """Error bounds of a run, from cases it was not trained on.

        flarepp calibrate outputs/cars-flarepp-seed0
        flarepp calibrate outputs/cars-flarepp-seed0 data/more_cars
        flarepp calibrate outputs/cars-flarepp-seed0 outputs/cars-flarepp-seed1
        flarepp calibrate outputs/cars-flarepp-seed0 --meshes

    Predicts the validation cases, or the test cases of other data in the same layout, and stores
    with the run how large errors are in 4 of 5, 9 of 10 and 19 of 20 cases. Training ends with
    this. Several runs are bounded as an ensemble. With --meshes, surfaces on finer, graded and
    decimated meshes get wider bounds. docs/bounds.md says what the bounds guarantee.
    """
    add = parser.add_argument
    add("runs", nargs="+", type=Path, metavar="RUN", help="run directories, then a data folder")
    add("--weights", type=Path, metavar="CSV",
        help="columns case, weight: relative frequency of each case in use")  # fmt: skip
    add("--meshes", action="store_true",
        help="also on each surface cut in four, in whole or half, and decimated")  # fmt: skip
    add_run_options(parser, forces=False)


def delta(parser: argparse.ArgumentParser) -> None:
    """Predicted change between two surfaces, and whether its sign is certain.

        flarepp delta outputs/cars-flarepp-seed0 before.stl after.stl

    Prints how drag and lift change, a bound on the error of the change, calibrated on pairs of
    held-out cases, and whether its sign is settled. Writes the second surface with the change of
    each field where the surfaces coincide. The meshes may differ.
    """
    add = parser.add_argument
    add("run", type=Path, help="run directory")
    add("before", type=Path, help="a surface")
    add("after", type=Path, help="a variant of it")
    add("--output", type=Path, help="default: <after>_delta.vtp")
    _add_surface_options(parser)
    add_run_options(parser)


def plot(parser: argparse.ArgumentParser) -> None:
    """Draw trained runs: fields and errors, training curves, forces, routes and spectra.

        flarepp plot outputs/cars-flarepp-seed0 outputs/cars-flare-seed0 --case worst

    Writes figures, and the drawn case with all fields for ParaView, to figures/ of the first run.
    """
    add = parser.add_argument
    add("runs", nargs="+", type=Path, help="run directories")
    add("--figures", nargs="+", choices=FIGURE_NAMES,
        help="default: all but the gallery; parity of forces on surfaces only")  # fmt: skip
    add("--case", default="median", help="median, worst or best of the first run, or a case id")
    add("--other-case", help="id of a second case, to show how the queries change")
    add("--fields", nargs="+", help="fields or channels; default: all")
    add("--labels", nargs="+", help="names of the runs in the figures")
    add("--formats", nargs="+", choices=("png", "pdf", "svg"), default=["png"])
    add("--html", action="store_true", help="interactive pages (extra 'html')")
    _add_views(parser, "three-quarter,side,top,rear")
    add("--dark", action="store_true", help="dark background")
    add("--dpi", type=int, help="resolution of png files")
    add("--output", type=Path, help="default: figures/ of the first run")
    add_run_options(parser)


def report(parser: argparse.ArgumentParser) -> None:
    """Everything about trained runs on one page.

        flarepp report outputs/cars-flarepp-seed0
        flarepp report outputs/cars-flarepp-seed0 outputs/cars-flare-seed0 --output both.html

    One HTML file that opens without a network: what was trained on what, errors of every case,
    forces, figures of the median, worst and best case, routes, curves, and a 3D view of the median
    case, which turns and shows reference, prediction, error and sensitivity. Training writes it as
    report.html; run this for several runs, or for other data.
    """
    parser.add_argument("runs", nargs="+", type=Path, help="run directories")
    parser.add_argument("--output", type=Path, help="file (default: report.html of the first run)")
    add_run_options(parser)


def view(parser: argparse.ArgumentParser) -> None:
    """Look at a run or a mesh file in a browser, and predict surfaces dropped into it.

        flarepp view outputs/cars-flarepp-seed0
        flarepp view --pretrained cars car.stl
        flarepp view car_predicted.vtp

    Prints an address on this machine (127.0.0.1) with a secret token, and opens it. A run shows its
    median test case, or the surface that you name. Over SSH, use --port 8080 --no-browser and
    forward the port: ssh -L 8080:127.0.0.1:8080 HOST.
    """
    add = parser.add_argument
    add("path", nargs="?", type=Path, help="run directory, or mesh file")
    add("file", nargs="?", type=Path, help="surface to predict first")
    _add_pretrained(parser)
    add("--port", type=int, default=0, help="default: a free one")
    add("--no-browser", action="store_true", help="only print the address")
    add_run_options(parser)


def export(parser: argparse.ArgumentParser) -> None:
    """A trained run as one file for other programs, without this package.

        flarepp export outputs/cars-flarepp-seed0
        flarepp export outputs/cars-flarepp-seed0 --format onnx --output car.onnx

    The file takes coordinates and, as in training, features and weights of any number of points,
    and returns fields, all in physical units. It is kept only if it agrees with the run for three
    numbers of points. docs/export.md says how to load it.
    """
    add = parser.add_argument
    add("run", type=Path, help="run directory")
    add("--format", choices=("pt2", "onnx"), default="pt2",
        help="pt2: torch.export.load (default); onnx: needs the extra 'onnx'")  # fmt: skip
    add("--output", type=Path, help="file (default: <run>.pt2 or .onnx in the current folder)")
    add("--checkpoint", default="final", metavar="WHICH", help="final (default), best or latest")
    add("--trust", action="store_true", help="as in flarepp predict; see SECURITY.md")
    parser.set_defaults(device="cpu", data_root=None)


def sensitivity(parser: argparse.ArgumentParser) -> None:
    """How a force, or the average of a field, changes with the shape of a surface.

        flarepp sensitivity outputs/cars-flarepp-seed0 car.stl --of lift
        flarepp sensitivity outputs/cars-flarepp-seed0 car.stl --of pMeanTrim --box 3,5,-1,1,0,1

    One reverse pass through the streamed model gives the exact derivative of what `flarepp predict`
    computes by every vertex. Writes it to a .vtp, with its normal part per area, a figure of that,
    and a .csv of the derivatives by the control points of a lattice (free-form deformation). For a
    built-in car it also prints the derivatives by its parameters. This differentiates the
    surrogate: --check compares with differences of the surrogate, not with a solver.
    """
    add = parser.add_argument
    _add_shape_options(parser)
    add("--of", default="drag", metavar="QUANTITY",
        help="drag (default), lift, side, or the average of a channel of a field")  # fmt: skip
    add("--smooth", type=float, metavar="LENGTH",
        help="average the normal part over this length; default: 2 %% of the body")  # fmt: skip
    add("--check", action="store_true", help="compare with central differences of the surrogate")
    add("--output", type=Path, help="default: <surface>_sensitivity.vtp in the current folder")
    add_run_options(parser)


def optimize(parser: argparse.ArgumentParser) -> None:
    """Change a surface until a predicted force or field is best, within limits.

        flarepp optimize outputs/cars-flarepp-seed0 car.stl --minimize lift --limit volume=0.98,1.02
        flarepp optimize RUN car.stl --minimize drag --limit lift=,0.1 clearance=0, --freeze zmin

    A lattice of control points (free-form deformation) moves the surface; SciPy's SLSQP moves the
    lattice, on exact gradients. By default inputs stay within the ranges of the training set,
    latent states as near to it as held-out cases, and the shape symmetric about y. Writes the best
    shape as .stl and .vtp, a table and curves of all shapes tried, and a picture of before and
    after. Ctrl-C keeps the best shape; the same command resumes. The change is a prediction of the
    surrogate: confirm it with the solver.

    Limits are LOW,HIGH, and either may be left out. They apply to volume, length, width and height
    (relative to the given shape), clearance (rise of the lowest point), drag, lift, side, channels.
    """
    add = parser.add_argument
    _add_shape_options(parser)
    for name in ("minimize", "maximize"):
        add(f"--{name}", nargs="+", action="extend", default=[], type=_weighted,
            metavar="QUANTITY[=WEIGHT]", help="drag, lift, side, or a channel")  # fmt: skip
    add("--limit", nargs="+", action="extend", default=[], type=_limit, metavar="NAME=LOW,HIGH")
    add("--displacement", type=float, default=0.05, metavar="LENGTH",
        help="largest displacement along each axis (default: 0.05)")  # fmt: skip
    add("--lattice-box", type=_numbers(6), metavar=_BOX,
        help="part of the body that may move; default: all of it")  # fmt: skip
    add("--freeze", nargs="+", default=[], metavar="PLANE",
        help="planes of control points that stay: xmin, xmax, ymin, ymax, zmin, zmax")  # fmt: skip
    add("--along", default="xyz", metavar="AXES", help="directions of movement (default: xyz)")
    add("--asymmetric", action="store_true", help="do not mirror the shape about y = 0")
    add("--outside", type=float, default=0.05, metavar="SHARE",
        help="how far beyond the training ranges, as a share of them (default: 0.05)")  # fmt: skip
    add("--anywhere", action="store_true", help="no trust region")
    add("--evaluations", type=int, default=40, help="shapes to try (default: 40)")
    add("--output", type=Path, help="folder; default: <surface>_optimized")
    add_run_options(parser)


def plan(parser: argparse.ArgumentParser) -> None:
    """Memory and time of a training step on whole meshes, and which kinds of step fit.

        flarepp plan experiment=drivaerml_raw model=flarepp --tokens 8800000 --memory 80GB

    Memory is counted on small clouds on the CPU and holds for any device; times are measured on
    this machine. The overrides choose the model, as in flarepp train; no data is read. "on host" is
    what streamed steps keep in the memory of the host. "fits" leaves a tenth of the GPU's memory
    and half of the host's free.
    """
    add = parser.add_argument
    add("overrides", nargs="*", help="GROUP=OPTION and KEY=VALUE of flarepp train")
    add("--tokens", type=int, nargs="+", required=True, help="points of a case")
    add("--memory", type=parse_bytes, help="of a GPU, e.g. 80GB; default: this one's")
    add("--host-memory", type=parse_bytes, help="of its host; default: this one's")
    add("--ranks", type=int, nargs="+", default=[2, 4, 8], help="sizes of context groups")
    add("--device", default="auto", help="where steps are timed")
    add("--inputs", type=int, default=6, help="input channels of a point; matters little")
    add("--outputs", type=int, default=4, help="predicted channels")


def download(parser: argparse.ArgumentParser) -> None:
    """Fetch a published data set.

        flarepp download pipe
        flarepp download drivaerml_raw --runs 1-10 --files boundary csv

    Files come from the Hugging Face hub to the folder `data`, where the configs look for them, and
    their checksums are verified. The same command resumes an interrupted download. A token
    (HF_TOKEN, `hf auth login`) and a mirror (HF_ENDPOINT) work as in huggingface_hub.
    """
    from ..datapipes.download import FILE_KINDS, PUBLISHED_SETS, RAW_SETS

    add = parser.add_argument
    add("set", choices=PUBLISHED_SETS, metavar="SET", help=", ".join(PUBLISHED_SETS))
    add("--root", default="data", help="directory of all sets (default: data)")
    add("--endpoint", help="address of a mirror (default: HF_ENDPOINT, or the hub)")
    add("--keep", action="store_true", help="keep the archive after unpacking")
    add = parser.add_argument_group(f"sets of runs ({', '.join(RAW_SETS)})").add_argument
    add("--runs", help="numbers of runs, such as 1-10,12")
    add("--files", nargs="+", choices=tuple(FILE_KINDS), default=["boundary", "csv"],
        help="kinds of files (default: boundary csv)")  # fmt: skip
    add("--dry-run", action="store_true", help="print the size and fetch nothing")


def inspect(parser: argparse.ArgumentParser) -> None:
    """What is in data files, how each array would be used, and a config to start from.

        flarepp inspect runs/
        flarepp inspect car.vtp
        flarepp inspect runs/ --output configs/data/mine.yaml
        flarepp inspect --check configs/data/mine.yaml
        flarepp inspect --check data=own data.root=runs/ 'data.fields=[p]'

    Prints arrays with their shapes, ranges and locations, which would be inputs and which outputs,
    and how to train on them. --check reads every case of a config once and reports what does not
    fit: a missing array, cells instead of points, a vector instead of a scalar, different units or
    dimensions, NaN.
    """
    add = parser.add_argument
    add("paths", nargs="*", type=Path, help="files, or folders of cases")
    add("--check", nargs="+", metavar="CONFIG",
        help="read all cases of a config: a YAML file, or arguments of flarepp train")  # fmt: skip
    add("--output", type=Path, help="write the config to start from to this file")


def check(parser: argparse.ArgumentParser) -> None:
    """Check that everything works on this machine.

        flarepp check
        flarepp check --ranks 2 --json > report.json

    Tests every attention kernel against fp64, half precisions, torch.compile, splits of tokens,
    streaming, rendering and directories. Prints pass or FAIL for each, with what to do about a
    failure. Takes a minute or two; exit code 1 if anything fails.
    """
    add = parser.add_argument
    add("--device", help="cpu, cuda or cuda:1 (default: the first GPU, or cpu)")
    add("--ranks", type=int, default=0, metavar="R", help="also start R ranks")
    add("--json", action="store_true", help="print JSON for programs")
    add("--bench", action="store_true", help="also time the mixers")


# Values of options. -------------------------------------------------------------------------------


def _weighted(text: str) -> tuple[str, float]:
    name, _, weight = text.partition("=")
    return name, float(weight or 1)


def _limit(text: str) -> tuple[str, tuple[float | None, float | None]]:
    name, _, ends = text.partition("=")
    try:
        low, high = (float(end) if end else None for end in ends.split(","))
    except ValueError as error:
        message = f"{text!r} must be a name and two ends, such as volume=0.98,1.02 or drag=,0.3"
        raise argparse.ArgumentTypeError(message) from error
    return name, (low, high)


def _numbers(count: int, kind: type = float) -> Callable[[str], tuple]:
    """Return a function that reads so many numbers between commas."""

    def parse(text: str) -> tuple:
        try:
            values = tuple(kind(part) for part in text.split(","))
        except ValueError:
            values = ()
        if len(values) != count:
            raise argparse.ArgumentTypeError(f"{text!r} must be {count} numbers between commas")
        return values

    return parse


def parse_bytes(text: str) -> float:
    """Return a number of bytes, from ``80GB`` or ``1 GiB``."""
    number = text.rstrip("kKMGTiB")
    try:
        return float(number) * _UNITS[text.removeprefix(number)]
    except (KeyError, ValueError) as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not an amount of memory; give a number and one of {', '.join(_UNITS)}"
        ) from error
