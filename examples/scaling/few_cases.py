"""Few cases of a new family: from the weights of a run on saloons, all or by LoRA, or from scratch.

Vans, which the built-in cars do not reach (longer cabin, higher, steeper windows), are solved with
the same solver. Trains on the first 2, 5, ... of them and tests on others; all trainings use the
statistics of the run on saloons.

    python examples/scaling/few_cases.py outputs/cars-flarepp-seed0 --cases 2 5 10 --steps 400
"""

import argparse
from dataclasses import fields
from pathlib import Path

import numpy as np
from measuring import print_table

from physicsnemo_flarepp.builtin.sets.car_body import CarShape
from physicsnemo_flarepp.builtin.sets.cars import solve_shape, write_run, write_runs
from physicsnemo_flarepp.datapipes.config import load_yaml
from physicsnemo_flarepp.evaluation import load_run, predict_case
from physicsnemo_flarepp.training import train

VANS = {
    "hood_length": (0.8, 1.0),
    "cabin_length": (3.3, 3.7),
    "boot_length": (0.3, 0.4),
    "windscreen_angle": (40.0, 50.0),
    "rear_angle": (45.0, 55.0),
    "width": (1.9, 2.05),
    "height": (1.75, 1.95),
    "ground_clearance": (0.15, 0.25),
    "corner_radius": (0.12, 0.22),
    "tumblehome": (5.0, 12.0),
}


def write_vans(folder: Path, n_train: int, n_test: int) -> None:
    """Write vans in the layout of the built-in cars, unless they are there."""
    if (folder / "manifest.json").is_file():
        return
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    names = [field.name for field in fields(CarShape)]
    shapes = [
        CarShape(**{name: rng.uniform(*VANS[name]) for name in names})
        for _ in range(n_train + n_test)
    ]
    write_runs(map(solve_shape, shapes), folder, n_train, n_test, 0, write=write_run)


def test_error(directory: Path, data_root: Path | None = None) -> float:
    """Return the mean error in percent over the test cases and fields, as integrals."""
    run, errors = load_run(directory, device="cpu", data_root=data_root), []
    for index in range(len(run.case_ids)):
        case, areas = predict_case(run, index, progress=False), run.test_set.read_measure(index)
        errors.append(np.mean([case.error(name, areas) for name in run.channels.fields]))
    return 100 * float(np.mean(errors))


def main() -> None:
    """Train on vans with and without the weights of a run, and print the errors."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="a run on the built-in cars")
    parser.add_argument("--cases", type=int, nargs="+", default=[2, 5, 10])
    parser.add_argument("--lora", type=int, nargs="*", default=[8], help="ranks of adapters")
    parser.add_argument("--lora-rate", type=float, default=5.0, help="of the run's rate of AdamW")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--test", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("few_cases"))
    arguments = parser.parse_args()
    vans = arguments.out / "vans"
    write_vans(vans, max(arguments.cases), arguments.test)
    known = load_yaml(arguments.run / "config.yaml")
    table = [{"training vans": 0, "from the run, %": f"{test_error(arguments.run, vans):.2f}"}]
    run = str(arguments.run)
    # With steps of full size nothing would remain of all the weights of the run.
    ways = {"from the run": (run, None, 0.3), "from scratch": (None, None, 1.0)}
    for rank in arguments.lora:
        ways[f"LoRA of rank {rank}"] = (run, rank, arguments.lora_rate)
    for n in arguments.cases:
        row = {"training vans": n}
        for name, (start, lora, scale) in ways.items():
            cfg = known.copy()
            cfg.run_dir = str(arguments.out / f"{name.replace(' ', '-')}-{n}")
            cfg.data.update({"builtin": None, "benchmark": "cars", "root": str(vans)})
            cfg.data.update({"n_train": n, "n_val": None, "n_test": arguments.test})
            cfg.data.batch_size = 2
            cfg.data.normalization = {"load": str(arguments.run / "normalizer.safetensors")}
            cfg.training.update({"start_from": start, "lora_rank": lora})
            cfg.training.update({"steps": arguments.steps, "epochs": None})
            cfg.training.update({"evaluate_every": 10_000, "checkpoint_every": None})
            cfg.training.muon_learning_rate *= scale
            cfg.training.learning_rate *= scale
            train(cfg)
            row[f"{name}, %"] = f"{test_error(Path(cfg.run_dir)):.2f}"
        table.append(row)
        print_table([row])
    keys = ("training vans", *(f"{name}, %" for name in ways))
    print_table([{key: row.get(key, "-") for key in keys} for row in table])


if __name__ == "__main__":
    main()
