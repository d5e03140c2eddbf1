"""Shape sensitivities and optimised shapes of built-in cars, verified by the solver that made them.

    python examples/drivaerml/design.py outputs/cars-flarepp-seed0 --cars 8 --out design

Cars that no run was trained on are drawn, and solved with each of their ten shape parameters a
little up and down. The central differences of the lift coefficient are compared with its
derivatives in trained runs, which one reverse pass gives. Then the lift of some of the cars is
minimised, with trust regions of several kinds, and the shapes are solved. Results of the solver are
kept in the output folder, and used again for other runs. In between, the map of lift is compared
with that of the same car on another mesh.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import product
from pathlib import Path

import numpy as np
import pyvista as pv
import torch
from scipy.spatial import KDTree

from physicsnemo_flarepp.builtin.sets.car_body import (
    GROUND,
    RANGES,
    CarShape,
    box_lattice,
    half_surface,
    sample_shape,
    whole_surface,
)
from physicsnemo_flarepp.builtin.sets.cars import (
    LEADING_LENGTH,
    SPEED,
    flat_plate_shear,
    force_coefficients,
    solve_shape,
    write_body,
)
from physicsnemo_flarepp.builtin.solvers.panel_method import Panels, solve_flow
from physicsnemo_flarepp.design import (
    Problem,
    car_directions,
    make_lattice,
    open_shape,
    optimize,
    predicted_change,
    shape_sensitivity,
)
from physicsnemo_flarepp.design.sensitivity import normal_part
from physicsnemo_flarepp.evaluation import force_settings, load_run
from physicsnemo_flarepp.files import replace_text
from physicsnemo_flarepp.meshes import to_pyvista
from physicsnemo_flarepp.texts import format_table
from physicsnemo_flarepp.visualization import plot_parity, plot_surfaces

FIRST_SEED = 10_000_000  # of cars that no set holds
STEP = 0.05  # of the range of a parameter, in total
FORCES = ("drag", "lift")


def forces_over(case: dict, area: float) -> np.ndarray:
    """Return drag and lift coefficient over a reference area that does not change."""
    return case["forces"] * case["reference"][0] / area


def solved_car(folder: Path, number: int) -> dict:
    """Return a car with its solved derivatives, over the range of each parameter; solve it once."""
    path = folder / f"car_{number}" / "solved.json"
    if path.is_file():
        return json.loads(path.read_text())
    shape = sample_shape(np.random.default_rng(FIRST_SEED + number))
    case = solve_shape(shape)
    area, slopes = case["reference"][0], {}
    for name, (low, high) in RANGES.items():
        ends = [
            forces_over(
                solve_shape(
                    replace(shape, **{name: getattr(shape, name) + s * STEP / 2 * (high - low)})
                ),
                area,
            )
            for s in (1, -1)
        ]
        slopes[name] = ((ends[0] - ends[1]) / STEP).tolist()
    folder.mkdir(parents=True, exist_ok=True)
    if not path.parent.is_dir():
        write_body(path.parent, number, case)
    parameters = {field.name: getattr(shape, field.name) for field in fields(CarShape)}
    found = {"forces": case["forces"].tolist(), "slopes": slopes, "parameters": parameters}
    replace_text(path, json.dumps(found, indent=1))
    return found


def predicted_slopes(run, surface: Path) -> dict[str, list[float]]:
    """Return derivatives of drag and lift over the range of each parameter, and the forces."""
    shape = open_shape(run, surface, settings=force_settings(run), progress=False)
    directions, slopes = car_directions(shape), {}
    found = {force: shape_sensitivity(shape, force) for force in FORCES}
    for name, direction in directions.items():
        span = RANGES[name][1] - RANGES[name][0]
        slopes[name] = [span * float((direction * found[f].vectors).sum()) for f in FORCES]
    return slopes


def agreement(solved: np.ndarray, predicted: np.ndarray) -> dict[str, str]:
    """Return correlation, and how often the sign is right, of all and of the larger half."""
    right = np.sign(solved) == np.sign(predicted)
    larger = np.abs(solved) >= np.median(np.abs(solved))
    error = np.linalg.norm(predicted - solved) / np.linalg.norm(solved)
    return {
        "correlation": f"{np.corrcoef(solved, predicted)[0, 1]:.3f}",
        "sign right": f"{right.mean():.0%}",
        "of the larger half": f"{right[larger].mean():.0%}",
        "relative L2": f"{error:.1%}",
    }


def compare_slopes(runs: dict, folder: Path, cars: int) -> None:
    """Print how the derivatives of runs agree with the solver's, and draw them."""
    solved = [solved_car(folder, number) for number in range(cars)]
    truth = np.array([[car["slopes"][name] for name in RANGES] for car in solved])
    rows, drawn = [], {}
    for label, run in runs.items():
        found = [
            predicted_slopes(run, folder / f"car_{number}" / f"drivaer_{number}.stl")
            for number in range(cars)
        ]
        values = np.array([[car[name] for name in RANGES] for car in found])
        for index, force in enumerate(FORCES):
            told = agreement(truth[..., index].ravel(), values[..., index].ravel())
            rows.append({"run": label, "derivatives of": force, **told})
        drawn[label] = {"change of Cl": values[..., 1].ravel()}
    print(format_table([list(rows[0]), *(list(row.values()) for row in rows)], markdown=True))
    plot_parity(
        {"change of Cl": truth[..., 1].ravel()},
        drawn,
        title=f"over the ranges of ten parameters, {cars} cars",
        path=folder / "sensitivities.png",
    )


def compare_meshes(runs: dict, folder: Path) -> None:
    """Print how the map of lift differs on a car with twice the cells along its front half."""
    car, shapes = CarShape(), {}
    axes = box_lattice(car)
    middles = (axes[0][1:] + axes[0][:-1]) / 2
    finer = [np.sort(np.concatenate([axes[0], middles[middles < 0]])), *axes[1:]]
    for name, lattice in {"original": axes, "refined front": finer}.items():
        points, faces = whole_surface(*half_surface(car, lattice))
        path = folder / f"{name.replace(' ', '_')}.vtp"
        pv.PolyData.from_regular_faces(points.astype(np.float32), faces).save(path)
        shapes[name] = path
    rows, drawn = [], {}
    for label, run in runs.items():
        settings = force_settings(run)
        opened = [open_shape(run, p, settings=settings, progress=False) for p in shapes.values()]
        found = [shape_sensitivity(shape, "lift") for shape in opened]
        weights = opened[0].mesh.vertex_areas[1]
        same = KDTree(opened[1].mesh.points).query(opened[0].mesh.points)[1]
        for smoothing in (0.0, found[0].smoothing, 0.2):
            maps = [
                normal_part(shape, one.vectors, smoothing)
                for shape, one in zip(opened, found, strict=True)
            ]
            error = np.sqrt(weights @ (maps[1][same] - maps[0]) ** 2 / (weights @ maps[0] ** 2))
            correlation = np.corrcoef(maps[0], maps[1][same])[0, 1]
            row = {"run": label, "cells": [shape.mesh.n_cells for shape in opened]}
            row |= {"smoothed over": f"{smoothing:.3f}", "relative L2": f"{error:.1%}"}
            rows.append(row | {"correlation": f"{correlation:.3f}"})
        for name, shape, one in zip(shapes, opened, found, strict=True):
            drawn[f"{label}, {name}"] = to_pyvista(shape.mesh), one.per_area
    print(format_table([list(rows[0]), *(list(row.values()) for row in rows)], markdown=True))
    label = "change of lift per outward displacement and area"
    plot_surfaces(drawn, label, cameras=["three-quarter", "top"], path=folder / "meshes.png")


class ParameterChanges:
    """The ten parameters of a car in the place of a lattice: changes over their ranges."""

    def __init__(self, directions: dict[str, np.ndarray]) -> None:
        spans = [RANGES[name][1] - RANGES[name][0] for name in directions]
        moves = [s * torch.as_tensor(d) for s, d in zip(spans, directions.values(), strict=True)]
        self.moves = torch.stack(moves)
        self.free = torch.ones(len(moves), dtype=torch.bool)
        self.origin = self.extent = torch.zeros(3)

    def displacements(self, variables: torch.Tensor) -> torch.Tensor:
        """Return the changes themselves."""
        return variables

    def deform(self, points: torch.Tensor, changes: torch.Tensor) -> torch.Tensor:
        """Return the vertices after the parameters changed, to first order."""
        return points + torch.einsum("n,npx->px", changes, self.moves)

    def smallest_stretch(self, points: torch.Tensor, changes: torch.Tensor) -> float:
        """Return 1: small changes of the parameters do not fold a car."""
        return 1.0


def solve_vertices(shape: CarShape, moved: np.ndarray, original: np.ndarray) -> np.ndarray:
    """Return drag and lift of a symmetric car whose vertices were moved, over its first area."""
    points, faces = half_surface(shape)
    points = moved[KDTree(original).query(points)[1]]
    points[np.abs(points[:, 1]) < 1e-5, 1] = 0.0
    flow = solve_flow(Panels(points[faces]), symmetry_y=True, ground=GROUND)
    running = flow.panels.centroids[:, 0] - points[:, 0].min() + LEADING_LENGTH
    shear = flat_plate_shear(SPEED * flow.surface_velocity, running)
    halves = [flow.pressure_coefficient, shear, flow.panels.area_vectors]
    cp, shear, vectors = (np.concatenate([half, half * ([1, -1, 1] if half.ndim > 1 else 1)])
                          for half in halves)  # fmt: skip
    return force_coefficients(cp, shear, vectors, 1.0)


def compare_optima(
    runs: dict, folder: Path, cars: int, evaluations: int, chosen: Sequence[str]
) -> None:
    """Print predicted and solved change of lift of optimised cars, by trust region."""
    rows = []
    for (label, run), number in product(runs.items(), range(cars)):
        surface = folder / f"car_{number}" / f"drivaer_{number}.stl"
        car = CarShape(**solved_car(folder, number)["parameters"])
        shape = open_shape(run, surface, settings=force_settings(run), progress=False)
        original = shape.points.numpy()
        limits = {"volume": (0.98, 1.02), "clearance": (0.0, None)}
        ways = {
            "lattice": (make_lattice(shape.mesh.points), 0.1),  # metres
            "parameters": (ParameterChanges(car_directions(shape)), 0.2),  # of their ranges
        }
        trusts = {"anywhere": (None, False), "ranges": (0.0, False), "latent distance": (0.0, True)}
        for (way, (moving, reach)), trust in product(ways.items(), chosen):
            problem = Problem(shape, moving, {"lift": 1.0}, reach, limits, *trusts[trust])
            name = f"{label}_{way}_{trust.replace(' ', '_')}"
            outcome = optimize(problem, surface.parent / name, evaluations=evaluations)
            moved = problem.points(outcome.best["x"]).numpy()
            before, after = (
                solve_vertices(car, vertices.copy(), original)[1] / shape.reference_area
                for vertices in (original, moved)
            )
            predicted = outcome.best["objective"] - outcome.start["objective"]
            row = {"run": label, "car": number, "moved by": way}
            row |= {"trust region": trust, "lift": f"{before:.4f}"}
            away = problem.latent_distance(problem.points(outcome.best["x"]))
            row |= {"latent distance": "unknown" if away is None else f"{away:.2f}"}
            bound = predicted_change(problem, outcome).bounds.get("Cl")
            row |= {"bound": "none" if bound is None else f"{bound:.4f}"}
            refused = sum("objective" not in shape for shape in outcome.rows)
            row |= {"shapes": len(outcome.rows), "refused": refused}
            row |= {
                "predicted change": f"{predicted:.4f}",
                "solved change": f"{after - before:.4f}",
            }
            rows.append(row | {"confirmed": f"{(after - before) / predicted:.0%}"})
            print(rows[-1], flush=True)
    print(format_table([list(rows[0]), *(list(row.values()) for row in rows)], markdown=True))


def main() -> None:
    """Compare the runs of the command line with the solver."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="*", type=Path, help="run directories; none: only solve")
    parser.add_argument("--cars", type=int, default=8)
    parser.add_argument("--optimize", type=int, default=3, help="cars whose lift is minimised")
    parser.add_argument("--evaluations", type=int, default=40, help="shapes to try for each")
    parser.add_argument("--trust", nargs="+", default=["anywhere", "ranges", "latent distance"])
    parser.add_argument("--out", type=Path, default=Path("design"))
    options = parser.parse_args()
    if not options.runs:
        for number in range(options.cars):
            solved_car(options.out, number)
        return
    runs = {path.name: load_run(path) for path in options.runs}
    compare_slopes(runs, options.out, options.cars)
    compare_meshes(runs, options.out)
    if options.optimize:
        compare_optima(runs, options.out, options.optimize, options.evaluations, options.trust)


if __name__ == "__main__":
    main()
