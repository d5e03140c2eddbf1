"""How much the error of trained runs depends on the mesh: refined in part, decimated, remeshed.

A changed mesh of each test surface is encoded, and the fields are decoded at the cells of its own
mesh, where the targets are: only what the model gathered can differ.

    python examples/scaling/refinement.py outputs/cars-flarepp-seed0 outputs/weighted --cases 20
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyvista as pv
import vtk
from matplotlib.figure import Figure
from measuring import print_row, write_csv

from physicsnemo_flarepp.evaluation import Run, load_run, read_case, relative_l2
from physicsnemo_flarepp.evaluation.surfaces import surface_sample
from physicsnemo_flarepp.inference import decode_state, encode_state
from physicsnemo_flarepp.meshes import polygon_mesh


def refine_front(mesh: pv.PolyData) -> pv.PolyData:
    """Cut every triangle whose centre is in the first third along x into 16."""
    x = mesh.cell_centers().points[:, 0]
    front = x < x.min() + (x.max() - x.min()) / 3
    parts = [mesh.extract_cells(part).extract_surface(algorithm=None) for part in (~front, front)]
    return parts[0].append_polydata(parts[1].subdivide(2, "linear"))


def decimate(mesh: pv.PolyData) -> pv.PolyData:
    """Remove half of the triangles."""
    return mesh.decimate(0.5)


def remesh(mesh: pv.PolyData) -> pv.PolyData:
    """Make triangles of about one size: cut those that are larger, then merge nearby corners."""
    area = mesh.compute_cell_sizes(length=False, volume=False)["Area"].mean()
    edge = float(np.sqrt(4 / np.sqrt(3) * area))
    fine = mesh.subdivide_adaptive(max_edge_len=edge, max_n_passes=10)
    low, high = np.reshape(fine.bounds, (3, 2)).T
    merging = vtk.vtkQuadricClustering()
    merging.SetInputData(fine)
    merging.AutoAdjustNumberOfDivisionsOff()
    merging.SetNumberOfDivisions(*(int(n) for n in np.maximum((high - low) / edge, 1)))
    merging.CopyCellDataOff()
    merging.Update()
    return pv.wrap(merging.GetOutput())


CHANGES: dict[str, Callable[[pv.PolyData], pv.PolyData]] = {
    "own mesh": lambda mesh: mesh,
    "front third x16": refine_front,
    "decimated by half": decimate,
    "remeshed": remesh,
}


def errors_on_changed_meshes(run: Run, case: int) -> dict[str, float]:
    """Return the mean relative L2 error over the fields for each change of a test surface."""
    truth = read_case(run, case)
    source, place = truth.metadata["source"], truth.association
    mesh = truth.mesh.triangulate()
    if mesh.n_cells != truth.mesh.n_cells:
        raise ValueError(f"{source} has cells that are no triangles; triangulate the test surfaces")
    queries = _inputs(run, mesh, place, source)
    queries.pop("token_weights", None)
    errors = {}
    for name, change in CHANGES.items():
        changed = change(mesh.copy())
        changed.clear_data()
        state = encode_state(run.model, **_inputs(run, changed, place, source), progress=False)
        query = (queries["fx"], queries.get("embedding"))
        values = decode_state(run.model, *query, state, progress=False)[0].float().cpu()
        fields = run.normalizer.inverse(values, key="fields").numpy()
        found = relative_l2(fields, truth.target, run.channels.norms)
        errors[name] = float(np.mean(list(found.values())))
    return errors


def _inputs(run: Run, mesh: pv.PolyData, place: str, source: str) -> dict:
    return run.inputs(surface_sample(run, polygon_mesh(mesh, Path(source)), place, {}))


def measure(run: Run, n_cases: int | None) -> dict[str, float]:
    """Return the errors of a run for each change, averaged over its first test cases."""
    cases = range(len(run.case_ids))[:n_cases]
    rows = [errors_on_changed_meshes(run, case) for case in cases]
    return {name: float(np.mean([row[name] for row in rows])) for name in CHANGES}


def draw(errors: dict[str, dict[str, float]], path: Path) -> None:
    """Draw the errors over the changes, one line per run."""
    figure = Figure(figsize=(6, 3.6), dpi=200, layout="constrained")
    axes = figure.add_subplot()
    for name, found in errors.items():
        axes.plot(list(found), [100 * error for error in found.values()], "o-", label=name)
    axes.set_ylabel("relative L2 error, %")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def main() -> None:
    """Measure all runs, print a table, and write a CSV file and a figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="+", help="run directories")
    parser.add_argument("--cases", type=int, help="test cases of each run; all by default")
    parser.add_argument("--out", type=Path, default=Path("refinement"), help="for .csv and .png")
    arguments = parser.parse_args()
    errors, rows = {}, []
    for directory in arguments.runs:
        run = load_run(directory)
        errors[run.name] = found = measure(run, arguments.cases)
        shown = {name: f"{100 * error:.2f} %" for name, error in found.items()}
        worst = max(found.values()) / found["own mesh"]
        rows.append({"run": run.name, "weights": run.channels.weights, **found})
        print_row(
            {**dict(list(rows[-1].items())[:2]), **shown, "worst / own": f"{worst:.3f}"},
            header=len(rows) == 1,
        )
    write_csv(rows, arguments.out.with_suffix(".csv"))
    draw(errors, arguments.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
