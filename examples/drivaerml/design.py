"""Shape sensitivities and optimised shapes of built-in cars, verified by the solver that made them.

    python examples/drivaerml/design.py outputs/cars-flarepp-seed0 --cars 8 --out design

Cars that no run was trained on are drawn, and solved with each of their ten shape parameters a
little up and down. The central differences of the lift coefficient are compared with its
derivatives in trained runs, which one reverse pass gives. Results of the solver are kept in the
output folder, and used again for other runs.
"""

import argparse
import json
from dataclasses import fields, replace
from pathlib import Path

import numpy as np

from physicsnemo_flarepp.builtin.sets.car_body import RANGES, CarShape, sample_shape
from physicsnemo_flarepp.builtin.sets.cars import solve_shape, write_body
from physicsnemo_flarepp.design import car_directions, open_shape, shape_sensitivity
from physicsnemo_flarepp.evaluation import force_settings, load_run
from physicsnemo_flarepp.files import replace_text
from physicsnemo_flarepp.texts import format_table
from physicsnemo_flarepp.visualization import plot_parity

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


def main() -> None:
    """Compare the runs of the command line with the solver."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="*", type=Path, help="run directories; none: only solve")
    parser.add_argument("--cars", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("design"))
    options = parser.parse_args()
    if not options.runs:
        for number in range(options.cars):
            solved_car(options.out, number)
        return
    runs = {path.name: load_run(path) for path in options.runs}
    compare_slopes(runs, options.out, options.cars)


if __name__ == "__main__":
    main()
