"""How much the error of trained runs depends on the mesh: refined in part, decimated, remeshed.

A changed mesh of each test case is encoded, and the fields are decoded at the cells or points of
its own mesh, where the targets are: only what the model gathered can differ. Surfaces and planar
clouds; runs whose names differ in the seed alone make one row.

    python examples/scaling/refinement.py outputs/cars-flarepp-seed0 outputs/weighted --cases 20
"""

import argparse
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pyvista as pv
import torch
import vtk
from matplotlib.figure import Figure
from measuring import print_table, write_csv

from physicsnemo_flarepp.datapipes.readers.contents import Contents
from physicsnemo_flarepp.evaluation import Case, Run, load_run, read_case, relative_l2
from physicsnemo_flarepp.evaluation.figures import preset_of
from physicsnemo_flarepp.evaluation.file_predictions import input_sample
from physicsnemo_flarepp.evaluation.forces import field_forces, force_settings, force_surface
from physicsnemo_flarepp.inference import decode_state, encode_state
from physicsnemo_flarepp.meshes import polygon_mesh
from physicsnemo_flarepp.meshes.measures import cloud_triangles
from physicsnemo_flarepp.visualization import plot_comparison
from physicsnemo_flarepp.visualization.canvases import is_flat


def refine_front(mesh: pv.PolyData, halvings: int = 2) -> pv.PolyData:
    """Cut every triangle whose centre is in the first third along x into ``4**halvings``."""
    x = mesh.cell_centers().points[:, 0]
    front = x < x.min() + (x.max() - x.min()) / 3
    parts = [mesh.extract_cells(part).extract_surface(algorithm=None) for part in (~front, front)]
    return parts[0].append_polydata(parts[1].subdivide(halvings, "linear")).clean()


def decimate(mesh: pv.PolyData) -> pv.PolyData:
    """Remove half of the triangles."""
    return _thin_plane(mesh, 0.5) if is_flat(mesh) else mesh.decimate(0.5)


def _thin_plane(mesh: pv.PolyData, share: float) -> pv.PolyData:
    """Remove a share of the triangles of a planar mesh, none of them at the cost of its outline."""
    thin = mesh.decimate_pro(share, boundary_vertex_deletion=False, feature_angle=180.0)
    return thin.clean()


def remesh(mesh: pv.PolyData) -> pv.PolyData:
    """Make triangles of about one size: cut those that are larger, then merge nearby corners.

    In a plane merging would move the outline, so there as many triangles as before are left of four
    times as many.
    """
    if is_flat(mesh):
        return _thin_plane(mesh.subdivide(1, "linear"), 0.75)
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


WEIGHTED = "-weights"
OWN = "own mesh"
REFINED = "front third x16"
CHANGES: dict[str, Callable[[pv.PolyData], pv.PolyData]] = {
    OWN: lambda mesh: mesh,
    "front third x4": partial(refine_front, halvings=1),
    REFINED: refine_front,
    "decimated by half": decimate,
    "remeshed": remesh,
}


def fields_on_changed_meshes(run: Run, case: Case) -> dict[str, np.ndarray]:
    """Return the fields at the tokens of a case, (N, O), for each change of its mesh."""
    mesh = _triangles(case)
    queries = run.inputs(_sample(run, mesh, case))
    queries.pop("token_weights", None)
    query = (queries["fx"], queries.get("embedding"))
    found = {}
    for name, change in CHANGES.items():
        changed = change(mesh.copy())
        changed.clear_data()
        inputs = run.inputs(_sample(run, changed, case))
        state = encode_state(run.model, **inputs, progress=False)
        values = decode_state(run.model, *query, state, progress=False)[0].float().cpu()
        found[name] = run.normalizer.inverse(values, key="fields").numpy()
    return found


def _triangles(case: Case) -> pv.PolyData:
    """Return the case's own mesh, whose cells or points are its tokens."""
    if case.channels.coordinates == 2:
        points = np.pad(case.coordinates.astype(np.float64), ((0, 0), (0, 1)))
        return pv.PolyData.from_regular_faces(points, cloud_triangles(case.coordinates))
    mesh = case.mesh.triangulate()
    if mesh.n_cells != case.mesh.n_cells:
        raise ValueError(
            f"{case.metadata['source']} has cells that are no triangles; triangulate the test "
            "surfaces"
        )
    return mesh


def _sample(run: Run, mesh: pv.PolyData, case: Case) -> dict[str, torch.Tensor]:
    polygons = polygon_mesh(mesh, Path(case.metadata["source"]))
    if case.channels.coordinates == 3:
        contents = Contents(polygons.source, mesh=polygons, values=polygons.data["field"])
        return input_sample(run, contents, case.association)
    if case.channels.features or case.channels.globals:
        raise ValueError(f"run {run.name} has inputs that a changed planar mesh does not have")
    points, weights = mesh.points[:, :2], polygons.vertex_areas[1]
    return {
        "coordinates": torch.from_numpy(points.astype(np.float32)),
        "weights": torch.from_numpy(np.maximum(weights, 1e-30).astype(np.float32)),
    }


def measure(run: Run, n_cases: int | None) -> dict[str, float]:
    """Return errors and force errors by change, averaged over a run's first test cases.

    Keys are the changes, for the mean relative L2 error over the fields, and, on surfaces with
    forces, ``error of Cd, <change>`` and the same of Cl on the own and on the refined mesh.
    """
    rows = []
    for index in range(len(run.case_ids))[:n_cases]:
        case = read_case(run, index)
        fields = fields_on_changed_meshes(run, case)
        row = {}
        for name, values in fields.items():
            found = relative_l2(values, case.target, run.channels.norms)
            row[name] = float(np.mean(list(found.values())))
        rows.append(row | _force_errors(run, case, fields))
    return {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}


def _force_errors(run: Run, case: Case, fields: Mapping[str, np.ndarray]) -> dict[str, float]:
    if case.channels.coordinates == 2:
        return {}
    settings = force_settings(run)
    surface = force_surface(case.polygons, case.association, settings)
    true = field_forces(surface, case.target, run.channels, settings).coefficients
    errors = {}
    for change in (OWN, REFINED):
        found = field_forces(surface, fields[change], run.channels, settings).coefficients
        for name in ("Cd", "Cl"):
            errors[f"error of {name}, {change}"] = abs(found[name] - true[name])
    return errors


def by_seeds(rows: Mapping[str, dict[str, float]]) -> dict[str, dict[str, np.ndarray]]:
    """Return the values of runs whose names differ in ``-seed<n>`` alone, together.

    Examples
    --------
    >>> by_seeds({"a-seed0": {"own": 1.0}, "a-seed1": {"own": 2.0}})["a"]["own"].tolist()
    [1.0, 2.0]
    """
    groups: dict[str, list[dict[str, float]]] = {}
    for name, row in rows.items():
        groups.setdefault(re.sub(r"-seed\d+", "", name), []).append(row)
    return {
        name: {key: np.array([row[key] for row in found]) for key in found[0]}
        for name, found in groups.items()
    }


def draw(errors: Mapping[str, Mapping[str, np.ndarray]], path: Path) -> None:
    """Draw the errors over the changes, one line per group of runs, with the spread of seeds.

    Groups whose names differ in ``-weights`` share a colour.
    """
    figure = Figure(figsize=(9, 3.6), dpi=200, layout="constrained")
    axes = figure.add_subplot()
    models = list(dict.fromkeys(name.removesuffix(WEIGHTED) for name in errors))
    for name, found in errors.items():
        percent = 100 * np.array([found[change] for change in CHANGES])
        style = "o-" if name.endswith(WEIGHTED) else "o--"
        color = f"C{models.index(name.removesuffix(WEIGHTED))}"
        (line,) = axes.plot(list(CHANGES), percent.mean(axis=1), style, color=color, label=name)
        axes.fill_between(
            list(CHANGES),
            percent.min(axis=1),
            percent.max(axis=1),
            color=line.get_color(),
            alpha=0.2,
        )
    axes.set_ylabel("relative L2 error, %")
    axes.set_ylim(bottom=0)
    figure.legend(loc="outside right upper", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def draw_case(plain: Run, weighted: Run, index: int, path: Path) -> None:
    """Draw the first field of a test case as both runs predict it from its refined mesh."""
    case = read_case(plain, index)
    field = next(iter(plain.channels.fields))
    preset = preset_of(plain, case)
    fields = {run: fields_on_changed_meshes(run, case) for run in (plain, weighted)}
    shown = {
        "unweighted, own mesh": fields[plain][OWN],
        "unweighted, front x16": fields[plain][REFINED],
        "weighted, front x16": fields[weighted][REFINED],
    }
    plot_comparison(
        _triangles(case),
        case.scalars(field, case.target),
        {name: case.scalars(field, values) for name, values in shown.items()},
        field=preset.labels.get(field, field),
        units=preset.units.get(field),
        association=case.association,
        cameras=["three-quarter"] if case.channels.coordinates == 3 else None,
        title=f"case {case.case_id}",
        path=path,
    )


def main() -> None:
    """Measure all runs, print a table, and write a CSV file and figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="+", help="run directories")
    parser.add_argument("--cases", type=int, help="test cases of each run; all by default")
    parser.add_argument("--out", type=Path, default=Path("refinement"), help="for .csv and .png")
    parser.add_argument(
        "--picture",
        type=Path,
        nargs=2,
        metavar=("PLAIN", "WEIGHTED"),
        help="draw a test case as these two runs predict it, to <out>_case.png",
    )
    parser.add_argument("--picture-case", type=int, default=0, help="position of that test case")
    arguments = parser.parse_args()
    rows = {}
    for directory in arguments.runs:
        run = load_run(directory)
        rows[run.name] = measure(run, arguments.cases)
        print(run.name, {key: round(value, 5) for key, value in rows[run.name].items()}, flush=True)
    groups, table = by_seeds(rows), []
    for name, found in groups.items():
        shown = {key: _mean_and_spread(key, values) for key, values in found.items()}
        worst = np.max([found[change] for change in CHANGES], axis=0) / found[OWN]
        table.append({"run": name, **shown, "worst / own": f"{worst.max():.3f}"})
    print_table(table)
    write_csv(
        [{"run": name, **row} for name, row in rows.items()], arguments.out.with_suffix(".csv")
    )
    draw(groups, arguments.out.with_suffix(".png"))
    if arguments.picture:
        plain, weighted = map(load_run, arguments.picture)
        path = arguments.out.with_name(f"{arguments.out.name}_case.png")
        draw_case(plain, weighted, arguments.picture_case, path)


def _mean_and_spread(key: str, values: np.ndarray) -> str:
    if key.startswith("error of"):
        return f"{values.mean():.4f} ± {values.std():.4f}"
    return f"{100 * values.mean():.2f} ± {100 * values.std():.2f} %"


if __name__ == "__main__":
    main()
