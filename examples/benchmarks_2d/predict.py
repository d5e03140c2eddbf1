"""Predicted fields of test cases, or at the points of a file, for ParaView.

    python examples/benchmarks_2d/predict.py outputs/darcy-flarepp-seed0 --cases 0 darcy_test_0007
    python examples/benchmarks_2d/predict.py outputs/pipe-flarepp-seed0 --points mine.npz

Test cases are written with target, prediction and error of each field; grids as .vts, point sets as
.vtp. A .npz file holds coordinates (N, 2) and, if the model takes them, features (N, f) and globals
(g,); a .npy file the coordinates. Results go to predictions/ in the run directory.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from physicsnemo_flarepp.evaluation import (
    case_mesh,
    predict_case,
    predict_points,
    save_mesh,
)
from physicsnemo_flarepp.evaluation.arguments import (
    add_run_options,
    existing_file,
    load_chosen_run,
)
from physicsnemo_flarepp.evaluation.mesh_files import mesh_suffix


def main(argv: Sequence[str] | None = None) -> list[Path]:
    """Predict what the command line names and return the files written."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="run directory")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--cases", nargs="+", help="ids or positions of test cases")
    what.add_argument("--points", nargs="+", type=existing_file, help=".npz or .npy files")
    parser.add_argument("--output", type=Path, help="directory; default: predictions/ of the run")
    add_run_options(parser)
    options = parser.parse_args(argv)
    directory = options.output or options.run / "predictions"
    run = load_chosen_run(options.run, options)
    written = []
    for name in options.cases or options.points:
        if options.cases:
            case = predict_case(run, int(name) if name.lstrip("-").isdigit() else name)
            mesh, stem = case_mesh(case), case.case_id
        else:
            mesh, stem = predict_points(run, name), f"{name.stem}_predicted"
        directory.mkdir(parents=True, exist_ok=True)
        written.append(directory / f"{stem}{mesh_suffix(mesh)}")
        save_mesh(mesh, written[-1])
        print(written[-1])
    return written


if __name__ == "__main__":
    main()
