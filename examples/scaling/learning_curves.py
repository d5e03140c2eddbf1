"""Test error over CPU time and steps: with the defaults of version 0.2 and with today's.

Between "old" and "new" are "weights", which changes only how the first weights are drawn, and
"inputs", which also scales the inputs; "new" also changes the optimiser.

Every run is small (2 blocks, C=64, M=32, 300 steps of 2 cases x 128 tokens). A run whose rows are
in the CSV file is not repeated; one that was stopped resumes.

    python examples/scaling/learning_curves.py --seeds 0 1 2 --out learning_curves
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from measuring import legend_below, print_table, read_csv, slug, write_csv
from omegaconf import DictConfig

from physicsnemo_flarepp.commands.configs import compose_config
from physicsnemo_flarepp.runs import read_metrics
from physicsnemo_flarepp.training.comparison import ComparedResult, ComparedRun, train_compared

SETS = ("cars", "darcy", "elasticity", "airfoil", "pipe")
MODELS = {
    "FLARE++": ["model=flarepp"],
    "FLARE": ["model=flare"],
    "Transolver": ["model=transolver"],
    "FLARE++ anchored": ["model=flarepp", "model.anchored_queries=true"],
}
_OLD = {"model.init": "paper", "data.normalization": "paper", "training.optimizer": "adamw"}
DEFAULTS = {"old": _OLD, "weights": _OLD | {"model.init": "balanced"}}
DEFAULTS["inputs"] = {"model.init": "balanced", "training.optimizer": "adamw"}
DEFAULTS["new"] = {"model.init": "balanced", "training.optimizer": "muon"}
SETTING = [
    "threads=1",
    "data.n_points_test=512",
    "data.n_val=0",
    "data.batch_size=2",
    "data.num_workers=0",
    "data.weights=none",
    "training.norm=tokens",
    "training.watch_test=true",  # nothing is chosen by it
    "training.keep_checkpoints=1",
    "training.log_every=50",
]
STEPS = 300
TOKENS = 128
COLORS = {"FLARE++": "C3", "FLARE": "C0", "Transolver": "C2", "FLARE++ anchored": "C4"}


def config(
    data: str, model: str, defaults: str, seed: int, runs: Path, tokens: int = TOKENS
) -> DictConfig:
    """Return the config of one run: a quick experiment, made smaller."""
    n_train = 40 if data == "cars" else 100
    epochs = STEPS * 2 // n_train
    sizes = [] if data == "cars" else [f"data.n_train={n_train}", "data.n_test=20"]
    name = f"{data}-{slug(model)}-{defaults}-seed{seed}"
    return compose_config(
        "train",
        [
            f"experiment=quick/{data}",
            *MODELS[model],
            *(f"{key}={value}" for key, value in DEFAULTS[defaults].items()),
            *SETTING,
            *sizes,
            f"data.n_points={tokens}",
            f"seed={seed}",
            f"label={data}",
            f"run_dir={runs / name}",
            f"training.epochs={epochs}",
            f"training.evaluate_every={max(1, epochs // 7)}",
            f"training.checkpoint_every={STEPS}",
        ],
    )


def curve(
    data: str, model: str, defaults: str, seed: int, runs: Path, tokens: int = TOKENS
) -> list[dict]:
    """Train one run and return a row for each of its evaluations.

    The CPU time of the whole run, with reading, evaluation and checkpoints, is spread over its
    steps: neither depends on who else uses the machine.
    """
    cfg = config(data, model, defaults, seed, runs, tokens)
    begin = time.process_time()
    result = train_compared(ComparedRun(model, seed, cfg))
    seconds = (time.process_time() - begin) / STEPS
    identity = {"set": data, "model": model, "defaults": defaults, "seed": seed}
    return evaluations(result, identity, seconds)


def evaluations(result: ComparedResult, identity: dict, step_seconds: float) -> list[dict]:
    """Return a row for each evaluation of the test set in a run."""
    return [
        identity
        | {
            "step": row["step"],
            "CPU seconds": round(step_seconds * row["step"], 2),
            "test error": row["error"],
        }
        for row in read_metrics(result.directory)
        if row["kind"] == "evaluation" and row["split"] == "test"
    ]


def mean_curve(rows: Sequence[dict], data: str, model: str, defaults: str) -> dict[int, tuple]:
    """Return CPU seconds, mean error and its standard deviation over the seeds, by step."""
    found: dict[int, list[dict]] = {}
    for row in rows:
        if (row["set"], row["model"], row["defaults"]) == (data, model, defaults):
            found.setdefault(int(row["step"]), []).append(row)
    curve = {}
    for step, at_step in sorted(found.items()):
        errors = [float(row["test error"]) for row in at_step]
        spread = statistics.stdev(errors) if len(errors) > 1 else 0.0
        seconds = statistics.median(float(row["CPU seconds"]) for row in at_step)
        curve[step] = (seconds, statistics.mean(errors), spread)
    return curve


def seconds_to_reach(curve: dict[int, tuple], error: float) -> float | None:
    """Return the CPU seconds after which the mean error is at most `error`, by interpolation.

    Examples
    --------
    >>> seconds_to_reach({1: (10.0, 0.5, 0.0), 2: (20.0, 0.3, 0.0)}, 0.4)
    15.0
    """
    before = None
    for seconds, mean, _ in curve.values():
        if mean <= error:
            if before is None:
                return seconds
            share = (before[1] - error) / (before[1] - mean)
            return before[0] + share * (seconds - before[0])
        before = (seconds, mean)
    return None


def tabulate(rows: Sequence[dict]) -> None:
    """Print final errors in percent, and at which share of the old time new runs reach the old."""
    table = []
    for data, model in itertools.product(SETS, MODELS):
        curves = {name: mean_curve(rows, data, model, name) for name in DEFAULTS}
        if not curves["new"]:
            continue
        shown = {"set": data, "model": model}
        for name, found in curves.items():
            last = list(found.values())[-1] if found else None
            shown[f"{name}, %"] = f"{100 * last[1]:.2f} ± {100 * last[2]:.2f}" if last else "-"
        reached = None
        if curves["old"]:
            seconds, final, _ = list(curves["old"].values())[-1]
            reached = seconds_to_reach(curves["new"], final)
        shown["time to the old error"] = "-" if reached is None else f"{reached / seconds:.2f}"
        table.append(shown)
    print_table(table)


def draw(rows: Sequence[dict], path: Path) -> None:
    """Draw the curves of all sets: dashed the old defaults, solid the new."""
    figure = Figure(figsize=(13, 3.2), dpi=120, layout="constrained")
    for axes, data in zip(figure.subplots(1, len(SETS)), SETS, strict=True):
        for (model, color), defaults in itertools.product(COLORS.items(), ("old", "new")):
            found = list(mean_curve(rows, data, model, defaults).values())
            if found:
                seconds, mean, spread = zip(*found, strict=True)
                style = "--" if defaults == "old" else "-"
                label = f"{model}, {defaults}"
                axes.plot(seconds, [100 * m for m in mean], style, color=color, label=label, lw=1.3)
                low, high = ([100 * (m + sign * s) for m, s in zip(mean, spread, strict=True)]
                             for sign in (-1, 1))  # fmt: skip
                axes.fill_between(seconds, low, high, color=color, alpha=0.15, lw=0)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("{x:g}")
        axes.set_title(data)
        axes.set_xlabel("CPU seconds")
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("test error, %")
    legend_below(figure)
    figure.savefig(path)


def main() -> None:
    """Train what is missing, then write the CSV file, the figure and the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", choices=SETS, default=SETS)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--defaults", nargs="+", choices=DEFAULTS, default=["old", "new"])
    parser.add_argument("--seeds", nargs="*", type=int, default=(0, 1, 2), help="none: only draw")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="drawn from each case of a step")
    parser.add_argument("--runs", type=Path, default=Path("outputs/learning_curves"))
    parser.add_argument("--out", type=Path, default=Path("learning_curves"), help="for .csv, .png")
    chosen = parser.parse_args()
    table = chosen.out.with_suffix(".csv")
    rows = read_csv(table)
    done = {(row["set"], row["model"], row["defaults"], int(row["seed"])) for row in rows}
    for seed, defaults, data, model in itertools.product(
        chosen.seeds, chosen.defaults, chosen.sets, chosen.models
    ):
        published = model != "FLARE++ anchored"
        if (data, model, defaults, seed) not in done and (published or defaults == "new"):
            rows += curve(data, model, defaults, seed, chosen.runs, chosen.tokens)
            write_csv(rows, table)
    draw(rows, chosen.out.with_suffix(".png"))
    tabulate(rows)


if __name__ == "__main__":
    main()
