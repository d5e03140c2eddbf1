"""The defaults on a set that they were not chosen on: blocks that bend under a load, as own data.

Each of 500 blocks is clamped at its bottom and loaded on a square of its top. Nine parameters tell
the cases apart: three lengths (m), Young's modulus (GPa), Poisson's ratio, three components of the
traction (MPa) and the side of the loaded square over that of the top. The displacement (mm) comes
from trilinear finite elements. The cases are written as an engineer would have them, a .vtu file
each and a table of parameters, and read by ``data=own``.

    python examples/scaling/elastic_blocks.py --seeds 0 1 2 --out elastic_blocks

What ``data.baseline`` brings, on these blocks or on cubes of 1 m under loads of one sign:

    python examples/scaling/elastic_blocks.py --baselines linear --steps 100 300 1000 --out blocks
    python examples/scaling/elastic_blocks.py --baselines --one-shape --out cubes
"""

import argparse
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyvista as pv
from learning_curves import DEFAULTS, MODELS, evaluations, mean_curve
from measuring import print_table, read_csv, slug, write_csv
from omegaconf import DictConfig, OmegaConf
from scipy import sparse
from scipy.sparse.linalg import spsolve
from scipy.stats import qmc

from physicsnemo_flarepp.commands.configs import compose_config
from physicsnemo_flarepp.datapipes import build_dataloaders, from_arrays
from physicsnemo_flarepp.datapipes.normalization import BASELINES
from physicsnemo_flarepp.progress import progress_bar
from physicsnemo_flarepp.runs import read_metrics
from physicsnemo_flarepp.training import train
from physicsnemo_flarepp.training.baselines import baseline_errors
from physicsnemo_flarepp.training.comparison import ComparedRun, train_compared

# Lowest and highest value of each parameter.
RANGES = {
    "length_x": (0.5, 1.5),
    "length_y": (0.5, 1.5),
    "length_z": (0.5, 2.0),
    "young": (5.0, 20.0),
    "poisson": (0.1, 0.45),
    "traction_x": (-1.0, 1.0),
    "traction_y": (-1.0, 1.0),
    "traction_z": (-3.0, 3.0),
    "loaded": (0.3, 1.0),
}
# What differs in the set of cubes: 343 nodes, six parameters, all tractions positive.
ONE_SHAPE = {f"length_{axis}": (1.0, 1.0) for axis in "xyz"} | {
    "traction_x": (0.2, 1.0), "traction_y": (0.2, 1.0), "traction_z": (0.5, 3.0),
}  # fmt: skip
CELLS = 10  # along each edge: 1,331 nodes
CORNERS = np.array(list(itertools.product((0, 1), repeat=3)))
N_TRAIN, N_TEST = 400, 100
# No paper says how these are normalised; version 0.2 put coordinates into the unit box.
NORMALIZATION = {"paper": "{coordinates: unit_box}"}
STEPS, BATCH, POINTS = 1_000, 4, 256


def element_stiffness(sizes: np.ndarray, young: float, poisson: float) -> np.ndarray:
    """Return the stiffness (24, 24) of a trilinear brick, from 2 x 2 x 2 Gauss points."""
    shear = young / (2 * (1 + poisson))
    first = young * poisson / ((1 + poisson) * (1 - 2 * poisson))
    elasticity = np.zeros((6, 6))
    elasticity[:3, :3] = first
    elasticity[range(6), range(6)] = [first + 2 * shear] * 3 + [shear] * 3
    total = np.zeros((24, 24))
    for place in itertools.product((0.5 - 0.5 / 3**0.5, 0.5 + 0.5 / 3**0.5), repeat=3):
        along = np.where(CORNERS, place, 1 - np.array(place))  # the three factors of each shape
        slope = np.where(CORNERS, 1.0, -1.0) / sizes
        d = np.stack(
            [slope[:, k] * along[:, k - 1] * along[:, k - 2] for k in range(3)]
        )  # derivatives (3, 8)
        strain = np.zeros((6, 8, 3))
        for k in range(3):
            strain[k, :, k] = d[k]
        for row, (i, j) in enumerate(((0, 1), (1, 2), (0, 2)), start=3):
            strain[row, :, i], strain[row, :, j] = d[j], d[i]
        strain = strain.reshape(6, 24)
        total += strain.T @ elasticity @ strain * sizes.prod() / 8
    return total


def solve(case: dict[str, float], cells: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the nodes (N, 3) in metres of a block and their displacements (N, 3) in millimetres.

    Examples
    --------
    A bar under tension, free to contract but for its clamped end, is longer by t L / E.

    >>> bar = dict.fromkeys(RANGES, 0.0) | {"length_x": 0.1, "length_y": 0.1, "length_z": 4.0}
    >>> bar |= {"young": 10.0, "poisson": 0.0, "traction_z": 2.0, "loaded": 1.0}
    >>> nodes, displacement = solve(bar, cells=4)
    >>> bool(np.allclose(displacement[nodes[:, 2] == 4.0], [0, 0, 2e6 * 4.0 / 10e9 * 1e3]))
    True
    """
    lengths = np.array([case[f"length_{axis}"] for axis in "xyz"])
    sizes = lengths / cells
    grid = np.stack(np.meshgrid(*[np.arange(cells + 1)] * 3, indexing="ij"), axis=-1)
    nodes = grid.reshape(-1, 3) * sizes
    number = np.arange(len(nodes)).reshape(grid.shape[:3])
    bricks = np.stack(
        [number[i : cells + i, j : cells + j, k : cells + k].ravel() for i, j, k in CORNERS], axis=1
    )
    unknowns = (3 * bricks[:, :, None] + np.arange(3)).reshape(len(bricks), 24)
    stiffness = element_stiffness(sizes, case["young"] * 1e9, case["poisson"])
    rows, columns = np.repeat(unknowns, 24, axis=1), np.tile(unknowns, (1, 24))
    values = np.tile(stiffness.ravel(), len(bricks))
    matrix = sparse.csr_matrix((values, (rows.ravel(), columns.ravel())), (nodes.size,) * 2)

    # The traction on the top, spread over its nodes by the part of the square around each.
    shares = [_loaded_shares(cells, case["loaded"]) * length for length in lengths[:2]]
    force = np.zeros((*grid.shape[:3], 3))
    traction = [1e6 * case[f"traction_{axis}"] for axis in "xyz"]
    force[:, :, -1] = np.multiply.outer(np.multiply.outer(*shares), traction)
    free = np.flatnonzero(np.repeat(nodes[:, 2] > 0, 3))
    displacement = np.zeros(nodes.size)
    displacement[free] = spsolve(matrix[free][:, free], force.ravel()[free])
    return nodes, 1e3 * displacement.reshape(-1, 3)


def _loaded_shares(cells: int, loaded: float) -> np.ndarray:
    """Return the integrals of the nodes' shapes over the loaded middle of an edge of length 1."""
    shares = np.zeros(cells + 1)
    for cell in range(cells):
        low, high = (
            np.clip([(1 - loaded) / 2, (1 + loaded) / 2], cell / cells, (cell + 1) / cells) * cells
            - cell
        )
        shares[cell + 1] += (high**2 - low**2) / 2 / cells
        shares[cell] += (high - low) / cells - (high**2 - low**2) / 2 / cells
    return shares


def make_set(folder: Path, n_cases: int = N_TRAIN + N_TEST, *, one_shape: bool = False) -> None:
    """Write the cases as .vtu files and a table of parameters, if they are not there."""
    ranges, cells = (RANGES | ONE_SHAPE, 6) if one_shape else (RANGES, CELLS)
    table = folder / "parameters.csv"
    if table.is_file():
        return
    folder.mkdir(parents=True, exist_ok=True)
    low, high = np.array(list(ranges.values())).T
    drawn = low + (high - low) * qmc.LatinHypercube(len(ranges), rng=0).random(n_cases)
    rows = [dict(zip(RANGES, map(float, values), strict=True)) for values in drawn]
    with progress_bar("blocks", n_cases, wanted=True) as advance:
        for index, row in enumerate(rows):
            nodes, displacement = solve(row, cells)
            cube = (cells + 1,) * 3
            x, y, z = (nodes[:, k].reshape(cube) for k in range(3))
            block = pv.StructuredGrid(x, y, z).cast_to_unstructured_grid()
            order = np.arange(len(nodes)).reshape(cube).ravel(order="F")  # as VTK counts
            block.point_data["displacement"] = displacement[order]
            block.save(folder / f"block_{index:03d}.vtu")
            advance()
    names = [f"block_{index:03d}" for index in range(n_cases)]
    known = n_cases * N_TRAIN // (N_TRAIN + N_TEST)
    (folder / "train.txt").write_text("\n".join(names[:known]))
    (folder / "test.txt").write_text("\n".join(names[known:]))
    write_csv([{"case": name} | row for name, row in zip(names, rows, strict=True)], table)


def compare_baselines(
    folder: Path, runs: Path, kinds: Sequence[str], steps: Sequence[int], seeds: Sequence[int],
    table: Path,
) -> None:  # fmt: skip
    """Train the default of own data on what baselines leave over; print errors of both splits."""
    cases = read_csv(folder / "parameters.csv")
    meshes = [pv.read(folder / f"{case['case']}.vtu") for case in cases]
    data = from_arrays(
        np.stack([mesh.points for mesh in meshes]),
        {"displacement": np.stack([mesh.point_data["displacement"] for mesh in meshes])},
        globals={name: np.array([float(case[name]) for case in cases]) for name in RANGES},
    )
    loaders = build_dataloaders({"num_workers": 0}, data=data)
    train_reader, val, test = (
        loader.dataset.reader for loader in (loaders.train, loaders.val, loaders.test)
    )
    for split, reader in (("validation", val), ("test", test)):
        errors = baseline_errors(train_reader, reader, loaders.normalizer, widths=(3,))
        print(split, {name: f"{100 * found.mean().item():.1f} %" for name, found in errors.items()})
    rows = read_csv(table)
    done = {(row["baseline"], int(row["steps"]), int(row["seed"])) for row in rows}
    for count, seed, kind in itertools.product(steps, seeds, kinds):
        if (kind, count, seed) in done:
            continue
        cfg = {
            "data": {"baseline": kind, "num_workers": 0},
            "training": {"steps": count},
            "seed": seed,
            "threads": 1,
            "run_dir": str(runs / f"{kind}-{count}-seed{seed}"),
        }
        result = train(cfg, data=data)
        *_, last = (r for r in read_metrics(result.directory) if r["kind"] == "evaluation")
        rows.append(
            {"baseline": kind, "steps": count, "seed": seed, "val": last["error"],
             "test": result.error}
        )  # fmt: skip
        write_csv(rows, table)
    shown = []
    for count, split in itertools.product(steps, ("val", "test")):
        shown.append({"steps": count, "split": split})
        for kind in kinds:
            found = [100 * float(row[split]) for row in rows
                     if (row["baseline"], int(row["steps"])) == (kind, count)]  # fmt: skip
            shown[-1][kind] = f"{np.mean(found):.1f} ({min(found):.1f} to {max(found):.1f})"
    print_table(shown)


def config(folder: Path, model: str, defaults: str, seed: int, runs: Path) -> DictConfig:
    """Return the config of one run on the blocks."""
    name = f"{slug(model)}-{defaults}-seed{seed}"
    epochs = STEPS * BATCH // N_TRAIN
    return compose_config(
        "train",
        [
            "data=own",
            *MODELS[model],
            *(
                f"{key}={NORMALIZATION.get(value, value) if 'data' in key else value}"
                for key, value in DEFAULTS[defaults].items()
            ),
            f"data.root={folder}",
            "data.fields=[displacement]",
            f"data.globals=[{','.join(RANGES)}]",
            f"data.splits={{train: {folder / 'train.txt'}, test: {folder / 'test.txt'}}}",
            f"data.n_points={POINTS}",
            f"data.batch_size={BATCH}",
            "data.num_workers=0",
            "threads=1",
            f"seed={seed}",
            "label=blocks",
            f"run_dir={runs / name}",
            f"training.epochs={epochs}",
            "training.watch_test=true",  # nothing is chosen by it
            "training.evaluate_every=2",
            "training.keep_checkpoints=1",
        ],
    )


def linear_error(folder: Path) -> float:
    """Return the test error of linear regression on the parameters, as runs report it."""
    data = config(folder, "FLARE++", "new", 0, folder).data
    loaders = build_dataloaders(OmegaConf.to_container(data, resolve=True))
    readers = (loader.dataset.reader for loader in (loaders.train, loaders.test))
    errors = baseline_errors(*readers, loaders.normalizer, widths=(3,), norm="measure")
    return float(errors[BASELINES["linear"]].mean())


def curve(folder: Path, model: str, defaults: str, seed: int, runs: Path) -> list[dict]:
    """Train one run and return a row for each of its evaluations."""
    result = train_compared(ComparedRun(model, seed, config(folder, model, defaults, seed, runs)))
    identity = {"set": "blocks", "model": model, "defaults": defaults, "seed": seed}
    return evaluations(result, identity, result.step_seconds)


def main() -> None:
    """Make the set, train what is missing, then write the CSV file and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs="*", type=int, default=(0, 1, 2), help="none: only print")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--defaults", nargs="+", choices=DEFAULTS, default=["old", "new"])
    parser.add_argument("--set", type=Path, default=Path("outputs/elastic_blocks/set"))
    parser.add_argument("--runs", type=Path, default=Path("outputs/elastic_blocks"))
    parser.add_argument("--out", type=Path, default=Path("elastic_blocks"), help="for .csv")
    kinds = ["none", *BASELINES]
    parser.add_argument("--baselines", nargs="*", choices=kinds, help="values of data.baseline")
    parser.add_argument("--one-shape", action="store_true", help="cubes, loads of one sign")
    parser.add_argument("--steps", nargs="+", type=int, default=[100, 300, 1000])
    chosen = parser.parse_args()
    if chosen.baselines is not None:
        kind = "cubes" if chosen.one_shape else "blocks"
        folder = chosen.set.with_name("cubes") if chosen.one_shape else chosen.set
        make_set(folder, 150 if chosen.one_shape else N_TRAIN + N_TEST, one_shape=chosen.one_shape)
        runs = chosen.runs / "baselines" / kind
        names, table = chosen.baselines or kinds, chosen.out.with_suffix(".csv")
        return compare_baselines(folder, runs, names, chosen.steps, chosen.seeds, table)
    make_set(chosen.set)
    table = chosen.out.with_suffix(".csv")
    rows = read_csv(table)
    done = {(row["model"], row["defaults"], int(row["seed"])) for row in rows}
    for seed, defaults, model in itertools.product(chosen.seeds, chosen.defaults, chosen.models):
        if (model, defaults, seed) not in done:
            rows += curve(chosen.set, model, defaults, seed, chosen.runs)
            write_csv(rows, table)
    print(f"Linear regression on the parameters: {100 * linear_error(chosen.set):.1f} %")
    shown = []
    for model, defaults in itertools.product(MODELS, DEFAULTS):
        found = mean_curve(rows, "blocks", model, defaults)
        if found:
            shown.append({"model": model, "defaults": defaults})
            for step in (200, 400, 600, 800, STEPS):
                _, mean, spread = found[step]
                shown[-1][f"{step} steps, %"] = f"{100 * mean:.1f} ± {100 * spread:.1f}"
    print_table(shown)


if __name__ == "__main__":
    main()
