"""Whether long runs at the default learning rates have spikes, on every set and in every precision.

A model (2 blocks, C=64, M=32) takes 10,000 steps of 2 cases x 128 tokens, in half precision, which
CPUs are slow at, of one case x 64, and the loss of each is written down. A run whose row is in the
CSV file is not repeated; one that was stopped resumes.

    python examples/scaling/long_runs.py --models FLARE++ --precisions fp32 bf16 fp16 --seeds 0
"""

import argparse
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from learning_curves import MODELS, SETS, SETTING
from matplotlib.figure import Figure
from measuring import legend_below, print_table, read_csv, slug, write_csv
from omegaconf import DictConfig

from physicsnemo_flarepp.commands.configs import compose_config
from physicsnemo_flarepp.runs import CheckpointStore, load_training_state, read_metrics
from physicsnemo_flarepp.training.comparison import ComparedRun, train_compared

# Cases per step and tokens per case.
PRECISIONS = {"fp32": (2, 128), "bf16": (1, 64), "fp16": (1, 64)}
IDENTITY = ("set", "model", "precision", "seed")
WINDOW = 200


class Run(NamedTuple):
    """Which run: its set, model, precision and seed."""

    data: str
    model: str
    precision: str
    seed: int

    def directory(self, runs: Path) -> Path:
        """Return its place among `runs`."""
        return runs / f"{self.data}-{slug(self.model)}-{self.precision}-seed{self.seed}"

    def losses(self, runs: Path) -> np.ndarray:
        """Return the loss of every step."""
        rows = read_metrics(self.directory(runs))
        return np.array([row["loss"] for row in rows if row["kind"] == "step"])


def config(run: Run, steps: int, runs: Path) -> DictConfig:
    """Return the config of a run: a quick experiment, made small and long."""
    n_train = 40 if run.data == "cars" else 100
    sizes = [] if run.data == "cars" else [f"data.n_train={n_train}", "data.n_test=20"]
    cases, tokens = PRECISIONS[run.precision]
    epochs = steps * cases // n_train
    return compose_config(
        "train",
        [
            f"experiment=quick/{run.data}",
            *MODELS[run.model],
            *SETTING,
            *sizes,
            f"data.batch_size={cases}",
            f"data.n_points={tokens}",
            f"seed={run.seed}",
            f"label={run.data}",
            f"run_dir={run.directory(runs)}",
            f"training.precision={run.precision}",
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


def skipped_updates(directory: Path, steps: int) -> int:
    """Return in how many steps the gradient scaler found an overflow: AdamW counts the others."""
    newest = CheckpointStore(directory / "checkpoints").entries()[-1]
    adamw, _ = load_training_state(newest)["optimizer"]["optimizers"]
    return steps - int(adamw["state"][0]["step"])


def measure(run: Run, steps: int, runs: Path) -> dict:
    """Train one run and return its row."""
    result = train_compared(ComparedRun(run.model, run.seed, config(run, steps, runs)))
    losses = run.losses(runs)
    found = spikes(losses)
    return {
        **dict(zip(IDENTITY, run, strict=True)),
        "steps": len(losses),
        "test error, %": round(100 * result.error, 2),
        "not finite": int((~np.isfinite(losses)).sum()),
        "updates skipped": skipped_updates(run.directory(runs), len(losses)),
        **{name: round(value, 2) for name, value in found.items()},
    }


def draw(found: Sequence[Run], runs: Path, path: Path) -> None:
    """Draw FLARE++'s median loss of 200 steps, one line per precision, and the range of losses."""
    figure = Figure(figsize=(13, 3.0), dpi=120, layout="constrained")
    for axes, data in zip(figure.subplots(1, len(SETS)), SETS, strict=True):
        for run in (run for run in found if run[:2] == (data, "FLARE++") and run.seed == 0):
            losses = run.losses(runs)
            color = f"C{list(PRECISIONS).index(run.precision)}"
            parts = losses[: len(losses) // WINDOW * WINDOW].reshape(-1, WINDOW)
            steps = WINDOW * (1 + np.arange(len(parts)))
            axes.plot(steps, np.median(parts, axis=1), color=color, label=run.precision, lw=1.2)
            low, high = parts.min(axis=1), parts.max(axis=1)
            axes.fill_between(steps, low, high, color=color, alpha=0.12, lw=0)
        axes.set_yscale("log")
        axes.set_title(data)
        axes.set_xlabel("steps")
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("loss: median and range")
    legend_below(figure)
    figure.savefig(path)


def main() -> None:
    """Train what is missing, then write the CSV file, the figure and the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", choices=SETS, default=SETS)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["FLARE++"])
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    parser.add_argument("--seeds", nargs="*", type=int, default=(0,), help="none: only draw")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--runs", type=Path, default=Path("outputs/long_runs"))
    parser.add_argument("--out", type=Path, default=Path("long_runs"), help="for .csv, .png")
    chosen = parser.parse_args()
    if chosen.steps <= 2 * WINDOW:
        parser.error(f"--steps is {chosen.steps}, expected more than two windows of {WINDOW}")
    table = chosen.out.with_suffix(".csv")
    rows = read_csv(table)
    done = [Run(row["set"], row["model"], row["precision"], int(row["seed"])) for row in rows]
    for precision, seed, data, model in itertools.product(
        chosen.precisions, chosen.seeds, chosen.sets, chosen.models
    ):
        run = Run(data, model, precision, seed)
        if run not in done:
            rows.append(measure(run, chosen.steps, chosen.runs))
            done.append(run)
            write_csv(rows, table)
    print_table(rows)
    draw(done, chosen.runs, chosen.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
