"""Do bounds hold? Coverage and width of a run's bounds on cases that nothing was fitted to.

    python examples/scaling/coverage.py RUN                      # test cases, and random splits
    python examples/scaling/coverage.py RUN --meshes 40          # the same on other meshes of them
    python examples/scaling/coverage.py RUN --gate --ahmed DIR   # who is let in
    python examples/scaling/coverage.py RUN --outside 20         # the gate switched off
    python examples/scaling/coverage.py RUN --pairs 20           # differences
    python examples/scaling/coverage.py RUN1 RUN2                # an ensemble, score by score

Intervals are binomial (Clopper-Pearson, 95 %): what so many test cases tell about the share of
*this* calibration. "random splits" exchanges the held-out and the test cases a thousand times.
"""

import argparse
from dataclasses import fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import pyvista as pv
from measuring import print_table
from refinement import CHANGES, OWN
from scipy.stats import beta, betabinom

from physicsnemo_flarepp.builtin.sets.car_body import (
    RANGES,
    CarShape,
    box_lattice,
    half_surface,
    sample_shape,
    whole_surface,
)
from physicsnemo_flarepp.builtin.sets.cars import solve_shape, write_run
from physicsnemo_flarepp.evaluation import (
    Bounds,
    Run,
    calibrate,
    force_settings,
    load_run,
    predict_difference,
    predict_file,
    relative_l2,
    store_bounds,
    stored_bounds,
)
from physicsnemo_flarepp.evaluation.bounds import (
    BAND,
    COEFFICIENT,
    ERROR,
    LEVELS,
    difficulty,
    mesh_grain,
)
from physicsnemo_flarepp.evaluation.calibration import (
    case_forces,
    case_scores,
    other_meshes,
    predict_on_mesh,
    token_areas,
)
from physicsnemo_flarepp.evaluation.forces import field_forces, force_surface
from physicsnemo_flarepp.evaluation.predictions import Case, CasePrediction, predict_members
from physicsnemo_flarepp.texts import read_csv

SPLITS = 1000
CHANGE = "change of"


def interval(hits: int, n: int) -> str:
    """Return a share with its Clopper-Pearson interval.

    >>> interval(180, 200)
    '90.0 (85.0 to 93.8)'
    """
    low = beta.ppf(0.025, hits, n - hits + 1) if hits else 0.0
    high = beta.ppf(0.975, hits + 1, n - hits) if hits < n else 1.0
    return f"{100 * hits / n:.1f} ({100 * low:.1f} to {100 * high:.1f})"


def held_out_scores(runs: list[Run], bounds: Bounds, split: str) -> dict[str, np.ndarray]:
    """Return the scores of the cases of a split, their distances, spreads and difficulties."""
    run, rows = runs[0], []
    reader, settings = run.cases(split), case_forces(run)
    for index in range(len(reader)):
        sample, metadata = reader[index]
        found = predict_members(runs, sample, progress=False)
        case = CasePrediction.of(run, index, sample, metadata, prediction=found.values)
        areas = token_areas(reader, index, len(case.target))
        row = {
            f"{kind}/{name}": value
            for kind, scores in case_scores(case, areas, settings).items()
            for name, value in scores.items()
        }
        row["distance"] = bounds.distance(found.features)
        for name in run.channels.fields:
            columns = run.channels.columns(name)
            hard = difficulty(case.coordinates, found.values[:, columns])
            row[f"difficulty/{name}"] = np.average(hard, weights=areas)
            if found.spread is not None:
                parts = (
                    found.values[:, columns] + found.spread[:, columns],
                    found.values[:, columns],
                )
                row[f"spread/{name}"] = relative_l2(*parts, {name: parts[0].shape[1]}, areas)[name]
        rows.append(row)
    return {key: np.array([row[key] for row in rows]) for key in rows[0]}


def rank(n: int, level: float) -> int:
    """Return which of n sorted scores is the bound."""
    return int(np.ceil(level * (n + 1) * (1 - 1e-12)))


def covered(
    held: np.ndarray, new: np.ndarray, level: float, scales: tuple[np.ndarray, np.ndarray]
) -> tuple[int, float]:
    """Return how many new scores are within the bound of the held-out ones, and its mean."""
    quantile = np.sort(held / scales[0])[rank(len(held), level) - 1]
    return int((new <= quantile * scales[1]).sum()), float((quantile * scales[1]).mean())


def random_splits(
    held: np.ndarray, new: np.ndarray, level: float, scales: tuple[np.ndarray, np.ndarray]
) -> tuple[float, float]:
    """Return the mean share and bound when held-out and new cases are exchanged at random."""
    rng, n = np.random.default_rng(0), len(held)
    scores, scale = np.concatenate([held, new]), np.concatenate(scales)
    found = []
    for _ in range(SPLITS):
        order = rng.permutation(len(scores))
        old, fresh = order[:n], order[n:]
        pair = (scale[old], scale[fresh])
        hits, width = covered(scores[old], scores[fresh], level, pair)
        found.append((hits / len(fresh), width))
    return tuple(np.mean(found, axis=0))


def report_coverage(runs: list[Run], bounds: Bounds) -> None:
    """Print the coverage on test cases, by quantity, level and what scores are divided by."""
    held, new = (held_out_scores(runs, bounds, split) for split in ("val", "test"))
    n, m = len(held["distance"]), len(new["distance"])
    table = []
    for key in (key for key in held if key.split("/")[0] in (ERROR, COEFFICIENT, BAND)):
        kind, name = key.split("/")
        if name == "Cs":
            continue
        for at, level in enumerate(LEVELS):
            if level not in bounds.levels:
                continue
            a, b = (np.abs(x[key][:, at] if kind == BAND else x[key]) for x in (held, new))
            scales = {"nothing": (np.ones(n), np.ones(m))}
            scales["distance"] = (held["distance"], new["distance"])
            if f"spread/{name}" in held and kind == ERROR:
                scales["spread"] = (held[f"spread/{name}"], new[f"spread/{name}"])
            for by, pair in scales.items():
                hits, width = covered(a, b, level, pair)
                share, mean = random_splits(a, b, level, pair)
                if kind == BAND:  # the factor, times the mean difficulty
                    hard = np.concatenate([held[f"difficulty/{name}"], new[f"difficulty/{name}"]])
                    width, mean = width * hard.mean(), mean * hard.mean()
                lucky = betabinom.cdf(hits, m, rank(n, level), n + 1 - rank(n, level))
                table.append(
                    {
                        "bound of": f"{kind} {name}",
                        "level": f"{100 * level:g} %",
                        "divided by": by,
                        f"held for % of {m} cases": interval(hits, m),
                        "chance of so few": f"{lucky:.3f}",
                        "width": f"{width:.4g}",
                        "random splits, %": f"{100 * share:.1f}",
                        "width there": f"{mean:.4g}",
                    }
                )
    print_table(table)
    inside = int((new["distance"] <= held["distance"].max()).sum())
    print(f"inside the gate: {interval(inside, m)} % of the {m} test cases\n", flush=True)


def meshed_again(case: Case) -> dict[str, pv.PolyData]:
    """Return a built-in car as its generator meshes it with other spacings."""
    number, folder = case.case_id.split("_")[1], Path(case.metadata["source"]).parent
    names, values = read_csv(folder / f"geo_ref_{number}.csv")
    given = dict(zip(names, map(float, values), strict=True))
    shape = CarShape(**{field.name: given[field.name] for field in fields(CarShape)})
    axes = box_lattice(shape)
    finer = [np.sort(np.append(a, (a[1:] + a[:-1]) / 2)) for a in axes]
    coarser = [np.append(a[:-1:2], a[-1]) for a in axes]
    mixed = np.concatenate([finer[0][finer[0] <= 0], coarser[0][coarser[0] > 0]])
    chosen = {"half the spacing": finer, "half the spacing along x": [finer[0], *axes[1:]]}
    chosen["twice the spacing"] = coarser
    chosen["half in front, twice in the rear, along x"] = [mixed, *axes[1:]]
    return {
        name: pv.PolyData.from_regular_faces(*whole_surface(*half_surface(shape, lattice)))
        for name, lattice in chosen.items()
    }


class OnMesh(NamedTuple):
    """A test case on a mesh: what its bounds would be, whether it gets them, and its errors."""

    bounds: Bounds
    given: bool
    distance: float
    scores: dict[str, dict[str, object]]


def report_meshes(run: Run, bounds: Bounds, n_cases: int) -> None:
    """Print the coverage of test cases on other meshes, by bounds over meshes and plain ones.

    Errors of fields are taken at the cells of the original mesh, from the state of the other one;
    coefficients are integrated on the other mesh, and compared with the truth on the original.
    """
    settings, reader, plain = case_forces(run), run.cases("test"), next(bounds.steps())
    rows: dict[str, list[OnMesh]] = {}
    for index in range(min(n_cases, len(reader))):
        sample, metadata = reader[index]
        found = predict_members([run], sample, progress=False)
        case = CasePrediction.of(run, index, sample, metadata, prediction=found.values)
        areas = token_areas(reader, index, len(case.target))
        mesh = case.mesh.triangulate()
        mesh.clear_data()
        names = ("every cell cut in four", "front half cut", "rear half cut", "half removed")
        meshes = {OWN: mesh} | dict(zip(names, other_meshes(case), strict=True))
        meshes |= meshed_again(case)
        for name in ("front third x4", "front third x16", "remeshed"):
            meshes[name] = CHANGES[name](mesh.copy())
        for name, other_mesh in meshes.items():
            scored, other = predict_on_mesh([run], case, sample, other_mesh)
            grain, far = mesh_grain(other.sample), bounds.distance(scored.pooled_state)
            part = bounds.on_meshes_like(grain)
            scores = case_scores(scored, areas, settings, other)
            row = OnMesh(part, part.doubt(far, grain) is None, far, scores)
            rows.setdefault(name, []).append(row)
    quantities = [(kind, name) for kind in bounds.scores for name in bounds.scores[kind]]
    quantities += [(CHANGE, name) for name in bounds.scores[COEFFICIENT]]
    for kind, quantity in ((kind, name) for kind, name in quantities if name != "Cs"):
        table = []
        for name, found in rows.items():
            line = {f"{kind} {quantity}, at 90 %": name}
            for what, known in (("bounds over meshes", None), ("plain bounds", plain)):
                both = list(zip(found, rows[OWN][::-1], strict=True))
                both = both[: len(both) // 2] if kind == CHANGE else both  # each car in one pair
                # Of meshes that are all refused, what bounds would have been worth.
                both = [cars for cars in both if all(car.given for car in cars)] or both
                pairs = [score_and_limit(kind, quantity, known, *cars) for cars in both]
                line["given a bound"] = interval(sum(row.given for row in found), len(found))
                line["mean error"] = f"{np.mean([score for score, _ in pairs]):.3g}"
                hits = sum(score <= limit for score, limit in pairs)
                line[f"within {what}, %"] = interval(hits, len(pairs))
                line[f"mean of {what}"] = f"{np.mean([limit for _, limit in pairs]):.3g}"
            table.append(line)
        print_table(table)
        print(flush=True)


def score_and_limit(
    kind: str, name: str, known: Bounds | None, row: OnMesh, first: OnMesh
) -> tuple[float, float]:
    """Return a score and its 90 % bound, by default as `predict` chooses it for the mesh.

    A change is that from the car `first` on its original mesh.
    """
    far, known = row.distance, known or row.bounds
    if kind == CHANGE:
        errors = [one.scores[COEFFICIENT][name] for one in (first, row)]
        return abs(errors[1] - errors[0]), known.difference(name, 0.9, (first.distance, far))
    score = row.scores[kind][name]
    if kind == BAND:  # a constant field is equally difficult everywhere
        where, field = np.eye(3), np.zeros((3, 1))
        (factor,) = known.bands(where, field, {name: 1}, 0.9, far).values()
        return score[LEVELS.index(0.9)], factor[0]
    return abs(score), getattr(known, kind)(name, 0.9, far)


def report_gate(run: Run, bounds: Bounds, ahmed: Path | None, folder: Path) -> None:
    """Print how far shapes of several kinds are from training, and who gets a bound."""
    reader = run.cases("train")
    case = Case.of(run, 0, *reader[0])
    car = case.mesh.triangulate()
    car.clear_data()
    middle = np.array(car.center)
    shapes = {"a training car": car}
    shapes |= {
        f"a training car, {name}": f(car.copy()) for name, f in CHANGES.items() if name != OWN
    }
    shapes["in millimetres"] = car.scale(1000)
    shapes["upside down"] = car.rotate_x(180, point=middle)
    shapes["normals reversed"] = car.copy().flip_faces()
    shapes["mirrored in x"] = car.copy().flip_faces()  # or the mirror would turn them inward
    shapes["mirrored in x"].points = (car.points - middle) * (-1, 1, 1) + middle
    shapes["a sphere"] = pv.Icosphere(radius=0.7, nsub=4, center=middle)
    box = pv.Icosphere(radius=1.0, nsub=4).scale(np.ptp(car.points, axis=0) / 2)
    shapes["an ellipsoid of the size of a car"] = box.translate(middle)
    for path in sorted(ahmed.glob("*.vtp")) if ahmed else []:
        shapes[f"Ahmed body {path.stem}"] = (
            pv.read(path).extract_surface(algorithm=None).triangulate()
        )
        shapes[f"Ahmed body {path.stem}"].clear_data()
    table = []
    for name, mesh in shapes.items():
        path = folder / "shape.vtp"
        mesh.save(path)
        found = predict_file(run, path, progress=False)
        ratio = found.distance / bounds.distances.max()
        table.append(
            {
                "shape": name,
                "distance / farthest held-out": f"{ratio:.2f}",
                "by latent state": "inside" if ratio <= 1 else "outside",
                "by size and place": "outside" if found.doubt else "inside",
                "bound": "no" if found.no_bounds else "yes",
            }
        )
    print_table(table)
    print(flush=True)


def solved(run: Run, shape: CarShape, folder: Path, number: int):
    """Return the file of a car, its prediction, errors of fields and true coefficients."""
    case = solve_shape(shape)
    write_run(folder / f"run_{number}", number, case)
    path = folder / f"run_{number}" / f"boundary_{number}.vtp"
    found = predict_file(run, path, progress=False)
    names = run.channels.fields
    truth = np.concatenate([case[name].reshape(len(found.values), -1) for name in names], axis=1)
    areas = np.linalg.norm(found.polygons.cell_geometry()[1], axis=1)
    errors = relative_l2(found.values, truth, run.channels.norms, areas)
    settings = force_settings(run)
    surface = force_surface(found.polygons, "cell", settings)
    forces = [field_forces(surface, v, run.channels, settings).total for v in (found.values, truth)]
    return path, found, errors, forces


def report_outside(run: Run, bounds: Bounds, n_cases: int, folder: Path) -> None:
    """Print what bounds would be worth for cars outside of the ranges of training."""
    rng, table, number = np.random.default_rng(1), [], 0
    for beyond in (0.0, 0.25, 0.5, 1.0):
        found = []
        for _ in range(n_cases):
            shape = sample_shape(rng)
            if beyond:  # each parameter past one end of its range by this share of it
                for name in rng.choice(list(RANGES), 3, replace=False):
                    low, high = RANGES[name]
                    step = beyond * (high - low)
                    value = high + step if rng.random() < 0.5 else low - step
                    shape = replace(shape, **{name: value})
            number += 1
            found.append(solved(run, shape, folder, number))
        inside = [f.no_bounds is None for _, f, *_ in found]
        line = {"three parameters beyond their range by": f"{100 * beyond:g} %"}
        line["inside the gate"] = interval(sum(inside), len(found))
        for name in found[0][2]:
            hits = [e[name] <= bounds.error(name, 0.9, f.distance) for _, f, e, _ in found]
            line[f"{name}, held at 90 %, gate off"] = interval(sum(hits), len(hits))
        name = next(iter(found[0][2]))
        line[f"mean error of {name}, %"] = f"{100 * np.mean([e[name] for _, _, e, _ in found]):.2f}"
        wrong = [
            any(e[name] > bounds.error(name, 0.9, f.distance) for name in e) and let
            for (_, f, e, _), let in zip(found, inside, strict=True)
        ]
        line["let in and wrong"] = f"{sum(wrong)} of {len(found)}"
        table.append(line)
    print_table(table)
    print(flush=True)


def report_pairs(run: Run, bounds: Bounds, n_pairs: int, folder: Path) -> None:
    """Print differences: of test cars, of variants of one car, of meshes of one car."""
    new = held_out_scores([run], bounds, "test")
    m = len(new["distance"]) // 2
    table = []
    for level in bounds.levels:
        line = {"level": f"{100 * level:g} %"}
        for name in ("Cd", "Cl"):
            errors = new[f"{COEFFICIENT}/{name}"]
            off = np.abs(errors[:m] - errors[m : 2 * m])
            ends = zip(new["distance"][:m], new["distance"][m : 2 * m], strict=True)
            limits = np.array([bounds.difference(name, level, pair) for pair in ends])
            line[f"{name}: pairs of test cars"] = interval(int((off <= limits).sum()), m)
            line[f"{name}: mean bound"] = f"{limits.mean():.2g}"
        table.append(line)
    print_table(table)
    rng, settings, found = np.random.default_rng(2), force_settings(run), []
    for number in range(n_pairs):
        shape = sample_shape(rng)
        name = rng.choice([field.name for field in fields(CarShape)])
        low, high = RANGES[name]
        value = getattr(shape, name)
        step = 0.3 * (high - low) * (1 if value < (low + high) / 2 else -1)
        one = solved(run, shape, folder, 2 * number)
        two = solved(run, replace(shape, **{name: value + step}), folder, 2 * number + 1)
        change = predict_difference(run, one[0], two[0], settings)
        found.append((change, two[3][1] - one[3][1]))
    table = []
    for at, name in ((0, "Cd"), (2, "Cl")):
        known = [
            (c.after[name] - c.before[name], t[at], c.bounds[name]) for c, t in found if c.bounds
        ]
        off = [abs(p - t) for p, t, _ in known]
        settled = [(p, t) for p, t, b in known if abs(p) > b]
        table.append(
            {
                "one parameter changed by 30 % of its range": name,
                "pairs": len(known),
                "held at 90 %": interval(
                    sum(o <= b for o, (_, _, b) in zip(off, known, strict=True)), len(known)
                ),
                "mean error of the change": f"{np.mean(off):.2g}",
                "mean bound": f"{np.mean([b for *_, b in known]):.2g}",
                "mean true change": f"{np.mean([abs(t) for _, t, _ in known]):.2g}",
                "sign settled": len(settled),
                "wrong": sum(p * t < 0 for p, t in settled),
            }
        )
    print_table(table)
    table, reader = [], run.cases("test")
    for index in range(5):
        case = Case.of(run, index, *reader[index])
        mesh = case.mesh.triangulate()
        mesh.clear_data()
        mesh.save(folder / "own.vtp")
        for name, change in CHANGES.items():
            change(mesh.copy()).save(folder / "other.vtp")
            both = (folder / "own.vtp", folder / "other.vtp")
            same = predict_difference(run, *both, replace(settings, reference_area=None))
            row = {
                "car": case.case_id,
                "second mesh": name,
                "common, %": f"{100 * same.common:.1f}",
            }
            for key in ("Cd", "Cl"):
                bound = same.bounds.get(key, np.nan)
                row[f"change of {key}"] = f"{same.after[key] - same.before[key]:+.5f} ± {bound:.2g}"
            first = next(iter(same.fields))
            row[f"change of {first}, %"] = (
                f"{100 * same.fields[first][0] / same.fields[first][2]:.2f}"
            )
            table.append(row)
    print_table(table)
    print(flush=True)


def main() -> None:
    """Print the tables that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="+", help="a run, or the members of an ensemble")
    parser.add_argument("--data-root", type=Path, help="where the run's data is now")
    parser.add_argument("--meshes", type=int, metavar="N", help="test cars on other meshes")
    parser.add_argument("--gate", action="store_true", help="shapes of several kinds")
    parser.add_argument("--ahmed", type=Path, help="folder of Ahmed bodies for --gate")
    parser.add_argument("--outside", type=int, metavar="N", help="cars beyond the ranges")
    parser.add_argument("--pairs", type=int, metavar="N", help="differences")
    arguments = parser.parse_args()
    runs = [load_run(path, device="cpu", data_root=arguments.data_root) for path in arguments.runs]
    bounds = stored_bounds(runs)
    if isinstance(bounds, str) or (arguments.meshes and bounds.n_meshes == 1):
        bounds = calibrate(runs, meshes=bool(arguments.meshes))
        store_bounds(bounds, runs[0])
    asked = [arguments.meshes, arguments.gate, arguments.outside, arguments.pairs]
    with TemporaryDirectory() as folder:
        if arguments.meshes:
            report_meshes(runs[0], bounds, arguments.meshes)
        bounds = next(bounds.steps())  # bounds on the original meshes
        if arguments.gate:
            report_gate(runs[0], bounds, arguments.ahmed, Path(folder))
        if arguments.outside:
            report_outside(runs[0], bounds, arguments.outside, Path(folder))
        if arguments.pairs:
            report_pairs(runs[0], bounds, arguments.pairs, Path(folder))
    if not any(asked):
        report_coverage(runs, bounds)


if __name__ == "__main__":
    main()
