"""Whether long runs at the default learning rates have spikes, on every set and in every precision.

FLARE++ (2 blocks, C=64, M=32) takes 10,000 steps of 2 cases x 128 tokens and writes down the loss
of each. A run whose row is in the CSV file is not repeated; one that was stopped goes on.

    python examples/scaling/long_runs.py --precisions fp32 bf16 fp16 --out long_runs
"""

import argparse
import csv
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from hydra import compose, initialize_config_module
from learning_curves import SETS, SETTING, TOKENS
from matplotlib.figure import Figure
from measuring import print_row, write_csv
from omegaconf import DictConfig

from physicsnemo_flarepp.training.checkpoints.store import CheckpointStore, load_training_state
from physicsnemo_flarepp.training.metrics import read_metrics
from physicsnemo_flarepp.training.trials import Trial, run_trial

PRECISIONS = ("fp32", "bf16", "fp16")
WINDOW = 200


def config(data: str, precision: str, steps: int, runs: Path) -> DictConfig:
    """Return the config of one run: a quick experiment, made small and long."""
    n_train = 40 if data == "cars" else 100
    sizes = [] if data == "cars" else [f"data.n_train={n_train}", "data.n_test=20"]
    epochs = steps * 2 // n_train
    with initialize_config_module("physicsnemo_flarepp.conf", version_base="1.3"):
        return compose(
            "train",
            [
                f"experiment=quick/{data}",
                *SETTING,
                *sizes,
                f"data.n_points={TOKENS}",
                f"label={data}",
                f"run_dir={runs / f'{data}-{precision}'}",
                f"training.precision={precision}",
                f"training.epochs={epochs}",
                f"training.evaluate_every={epochs}",
                "training.checkpoint_every=2000",
                "training.log_every=1",
            ],
        )


def spikes(losses: np.ndarray) -> dict[str, float]:
    """Return how far single losses, and their level, rise above what was before.

    Examples
    --------
    >>> falling = np.linspace(2, 1, 1000)
    >>> found = spikes(falling)
    >>> round(found["loss / median before"], 1), round(found["median / best before"], 2)
    (0.9, 0.89)
    >>> falling[500] = 15.0
    >>> round(spikes(falling)["loss / median before"], 1)
    9.4
    """
    windows = np.lib.stride_tricks.sliding_window_view(losses, WINDOW)
    medians = np.median(windows, axis=1)
    before = np.minimum.accumulate(medians)[:-WINDOW]  # of windows that do not overlap
    return {
        "loss / median before": float(np.max(losses[WINDOW:] / medians[:-1])),
        "median / best before": float(np.max(medians[WINDOW:] / before)),
    }


def losses_of(data: str, precision: str, runs: Path) -> np.ndarray:
    """Return the loss of every step of a run."""
    rows = read_metrics(runs / f"{data}-{precision}")
    return np.array([row["loss"] for row in rows if row["kind"] == "step"])


def skipped_updates(run: Path, steps: int) -> int:
    """Return in how many steps the gradient scaler found an overflow: AdamW counts the others."""
    newest = CheckpointStore(run / "checkpoints").entries()[-1]
    adamw, _ = load_training_state(newest)["optimizer"]["optimizers"]
    return steps - int(adamw["state"][0]["step"])


def measure(data: str, precision: str, steps: int, runs: Path) -> dict:
    """Train one run and return its row."""
    result = run_trial(Trial("FLARE++", 0, config(data, precision, steps, runs)))
    losses = losses_of(data, precision, runs)
    found = spikes(losses)
    return {
        "set": data,
        "precision": precision,
        "steps": len(losses),
        "test error, %": round(100 * result.error, 2),
        "not finite": int((~np.isfinite(losses)).sum()),
        "updates skipped": skipped_updates(Path(result.directory), len(losses)),
        **{name: round(value, 2) for name, value in found.items()},
    }


def draw(rows: Sequence[dict], runs: Path, path: Path) -> None:
    """Draw the median loss of 200 steps, one line per precision, and the range of the losses."""
    figure = Figure(figsize=(13, 3.0), dpi=120, layout="constrained")
    for axes, data in zip(figure.subplots(1, len(SETS)), SETS, strict=True):
        for row in (row for row in rows if row["set"] == data):
            losses = losses_of(data, row["precision"], runs)
            color = f"C{PRECISIONS.index(row['precision'])}"
            parts = losses[: len(losses) // WINDOW * WINDOW].reshape(-1, WINDOW)
            steps = WINDOW * (1 + np.arange(len(parts)))
            axes.plot(steps, np.median(parts, axis=1), color=color, label=row["precision"], lw=1.2)
            low, high = parts.min(axis=1), parts.max(axis=1)
            axes.fill_between(steps, low, high, color=color, alpha=0.12, lw=0)
        axes.set_yscale("log")
        axes.set_title(data)
        axes.set_xlabel("steps")
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("loss: median and range")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.savefig(path)


def main() -> None:
    """Train what is missing, then write the CSV file, the figure and the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", choices=SETS, default=SETS)
    parser.add_argument("--precisions", nargs="*", choices=PRECISIONS, default=PRECISIONS)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--runs", type=Path, default=Path("outputs/long_runs"))
    parser.add_argument("--out", type=Path, default=Path("long_runs"), help="for .csv, .png")
    chosen = parser.parse_args()
    if chosen.steps <= 2 * WINDOW:
        parser.error(f"--steps is {chosen.steps}, expected more than two windows of {WINDOW}")
    table = chosen.out.with_suffix(".csv")
    rows = list(csv.DictReader(table.open())) if table.is_file() else []
    done = {(row["set"], row["precision"]) for row in rows}
    for precision, data in itertools.product(chosen.precisions, chosen.sets):
        if (data, precision) not in done:
            rows.append(measure(data, precision, chosen.steps, chosen.runs))
            write_csv(rows, table)
    for row in rows:
        print_row(row, header=row is rows[0])
    draw(rows, chosen.runs, chosen.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
