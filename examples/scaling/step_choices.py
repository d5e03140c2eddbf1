"""What a step should hold: tokens per case, cases per batch, half precision, compiled code.

All choices for one set see as many tokens, so fewer tokens a step are more steps. Small cars and
plates (2 blocks, C=64, M=32), one thread; the CPU time is that of the whole run.

    python examples/scaling/step_choices.py --seeds 0 1 2 --out step_choices
"""

import argparse
import itertools
import statistics
from pathlib import Path

import psutil
from measuring import print_table, read_csv, write_csv
from omegaconf import DictConfig

from physicsnemo_flarepp.commands.configs import compose_config
from physicsnemo_flarepp.datapipes import build_dataloaders
from physicsnemo_flarepp.training.comparison import ComparedRun, train_compared

# Cases per batch, tokens per case, epochs; and what differs besides.
CHOICES: dict[str, dict[str, tuple[int, int, int, list[str]]]] = {
    "cars": {
        "1 x 1024": (1, 1024, 20, []),
        "1 x 1024, bf16": (1, 1024, 20, ["training.precision=bf16"]),
        "1 x 1024, compiled": (1, 1024, 20, ["training.compile=true"]),
        "1 x 256": (1, 256, 80, []),
        "1 x 4096": (1, 4096, 5, []),
        "2 x 512": (2, 512, 40, []),
        "4 x 256": (4, 256, 80, []),
        "4 x 1024": (4, 1024, 20, []),
    },
    "elasticity": {
        "1 x 972": (1, 972, 20, []),
        "4 x 972": (4, 972, 20, []),
        "16 x 972": (16, 972, 20, []),
        "4 x 243": (4, 243, 80, []),
        "16 x 243": (16, 243, 80, []),
    },
}


def config(data: str, choice: str, seed: int, runs: Path) -> DictConfig:
    """Return the config of one run: a quick experiment with another step."""
    batch, tokens, epochs, further = CHOICES[data][choice]
    name = f"{data}-{choice.replace(' ', '').replace(',', '-')}-seed{seed}"
    return compose_config(
        "train",
        [
            f"experiment=quick/{data}",
            *further,
            "threads=1",
            f"data.batch_size={batch}",
            f"data.n_points={tokens}",
            "data.n_points_test=2048",
            "data.n_val=0",
            "data.num_workers=0",
            f"seed={seed}",
            f"label={data}",
            f"run_dir={runs / name}",
            f"training.epochs={epochs}",
            f"training.evaluate_every={epochs}",
            "training.checkpoint_every=100000",
            "training.keep_checkpoints=1",
        ],
    )


def cpu_seconds() -> float:
    """Return the CPU time of this process and of its children, one of which reads meshes."""
    me = psutil.Process()
    times = [me.cpu_times(), *(child.cpu_times() for child in me.children(recursive=True))]
    return sum(t.user + t.system for t in times)


def reading_seconds(cfg: DictConfig) -> float:
    """Return the CPU time of reading and normalising one epoch of batches."""
    loaders = build_dataloaders(cfg.data)
    for _ in loaders.train:  # the second epoch finds the files in the memory
        pass
    begin = cpu_seconds()
    for _ in loaders.train:
        pass
    return cpu_seconds() - begin


def measure(data: str, choice: str, seed: int, runs: Path) -> dict:
    """Train one run and return its row."""
    cfg = config(data, choice, seed, runs)
    begin = cpu_seconds()
    result = train_compared(ComparedRun("FLARE++", seed, cfg))
    seconds = cpu_seconds() - begin
    batch, tokens, epochs, _ = CHOICES[data][choice]
    cases = 40 if data == "cars" else cfg.data.n_train
    return {
        "set": data,
        "cases x tokens": choice,
        "seed": seed,
        "steps": epochs * -(-cases // batch),
        "test error": result.error,
        "CPU seconds": round(seconds, 1),
        "reading": round(reading_seconds(cfg) * epochs / seconds, 3),
    }


def tabulate(rows: list[dict]) -> None:
    """Print error and CPU time of every choice, over all seeds."""
    groups: dict[tuple[str, str], list[dict]] = {}
    for row in rows:
        groups.setdefault((row["set"], row["cases x tokens"]), []).append(row)
    table = []
    for (data, choice), found in groups.items():
        errors = [100 * float(row["test error"]) for row in found]
        spread = f" ± {statistics.stdev(errors):.2f}" if len(errors) > 1 else ""
        seconds, reading = (
            statistics.median(float(row[name]) for row in found)
            for name in ("CPU seconds", "reading")
        )
        table.append(
            {
                "set": data,
                "cases x tokens": choice,
                "steps": found[0]["steps"],
                "test error, %": f"{statistics.mean(errors):.2f}{spread}",
                "CPU seconds": f"{seconds:.0f}",
                "of these reading": f"{reading:.1%}",
            }
        )
    print_table(table)


def main() -> None:
    """Train what is missing, then write the CSV file and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", choices=CHOICES, default=list(CHOICES))
    parser.add_argument("--seeds", nargs="*", type=int, default=(0, 1, 2), help="none: only print")
    parser.add_argument("--runs", type=Path, default=Path("outputs/step_choices"))
    parser.add_argument("--out", type=Path, default=Path("step_choices"), help="for .csv")
    chosen = parser.parse_args()
    table = chosen.out.with_suffix(".csv")
    rows = read_csv(table)
    done = {(row["set"], row["cases x tokens"], int(row["seed"])) for row in rows}
    for seed, data in itertools.product(chosen.seeds, chosen.sets):
        for choice in CHOICES[data]:
            if (data, choice, seed) not in done:
                rows.append(measure(data, choice, seed, chosen.runs))
                write_csv(rows, table)
    tabulate(rows)


if __name__ == "__main__":
    main()
