"""Whether a learning rate found on a small model serves a wide or a deep one.

FLARE++ on the built-in cars, 200 steps of one case x 256 tokens, at the default learning rates
times 0.3, 1 and 3, for several widths (2 blocks) and depths (64 channels).

    python examples/scaling/rate_transfer.py --seeds 0 1 2 --out rate_transfer
"""

import argparse
import itertools
import statistics
from pathlib import Path

from matplotlib.figure import Figure
from measuring import print_table, read_csv, write_csv
from omegaconf import DictConfig

from physicsnemo_flarepp.commands.configs import compose_config
from physicsnemo_flarepp.training.comparison import ComparedRun, train_compared
from physicsnemo_flarepp.training.config import TrainingConfig

FACTORS = (0.3, 1.0, 3.0)
# Blocks and channels.
SIZES = {"width": [(2, 64), (2, 128), (2, 256)], "depth": [(2, 64), (4, 64), (8, 64)]}


def config(blocks: int, channels: int, factor: float, seed: int, runs: Path) -> DictConfig:
    """Return the config of one run."""
    rates = TrainingConfig()
    return compose_config(
        "train",
        [
            "experiment=quick/cars",
            f"model.n_layers={blocks}",
            f"model.n_hidden={channels}",
            f"training.learning_rate={factor * rates.learning_rate}",
            f"training.muon_learning_rate={factor * rates.muon_learning_rate}",
            "training.epochs=5",
            "training.evaluate_every=5",
            "training.keep_checkpoints=1",
            "data.n_points=256",
            "data.n_points_test=1024",
            "data.n_val=0",
            "data.num_workers=0",
            "label=cars",
            f"seed={seed}",
            f"run_dir={runs / f'blocks{blocks}-channels{channels}-x{factor:g}-seed{seed}'}",
        ],
    )


def errors_of(rows: list[dict], blocks: int, channels: int, factor: float) -> list[float]:
    """Return the errors of all seeds in percent."""
    wanted = (blocks, channels, factor)
    return [
        100 * float(row["test error"])
        for row in rows
        if (int(row["blocks"]), int(row["channels"]), float(row["rate factor"])) == wanted
    ]


def tabulate(rows: list[dict]) -> None:
    """Print the errors, one row per size."""
    table = []
    for blocks, channels in dict.fromkeys(itertools.chain(*SIZES.values())):
        shown = {"blocks": blocks, "channels": channels}
        for factor in FACTORS:
            errors = errors_of(rows, blocks, channels, factor)
            spread = f" ± {statistics.stdev(errors):.1f}" if len(errors) > 1 else ""
            shown[f"x {factor:g}"] = f"{statistics.mean(errors):.1f}{spread}" if errors else "-"
        table.append(shown)
    print_table(table)


def draw(rows: list[dict], path: Path) -> None:
    """Draw the errors over the rate, one panel for widths and one for depths."""
    figure = Figure(figsize=(8, 3.2), dpi=120, layout="constrained")
    for axes, (name, sizes) in zip(figure.subplots(1, 2, sharey=True), SIZES.items(), strict=True):
        for blocks, channels in sizes:
            found = [errors_of(rows, blocks, channels, factor) for factor in FACTORS]
            if all(found):
                middle = [statistics.mean(errors) for errors in found]
                reach = [[m - min(e) for m, e in zip(middle, found, strict=True)],
                         [max(e) - m for m, e in zip(middle, found, strict=True)]]  # fmt: skip
                label = f"C={channels}" if name == "width" else f"B={blocks}"
                axes.errorbar(FACTORS, middle, reach, marker="o", capsize=3, label=label)
        axes.set_xscale("log")
        axes.set_xticks(FACTORS, [f"x {factor:g}" for factor in FACTORS])
        axes.minorticks_off()
        axes.set_title(name)
        axes.set_xlabel("default learning rates")
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("test error, %")
    figure.axes[0].set_ylim(bottom=0)
    figure.savefig(path)


def main() -> None:
    """Train what is missing, then write the CSV file, the figure and the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs="*", type=int, default=(0, 1, 2), help="none: only draw")
    parser.add_argument("--runs", type=Path, default=Path("outputs/rate_transfer"))
    parser.add_argument("--out", type=Path, default=Path("rate_transfer"), help="for .csv, .png")
    chosen = parser.parse_args()
    table = chosen.out.with_suffix(".csv")
    rows = read_csv(table)
    done = {
        (int(row["blocks"]), int(row["channels"]), float(row["rate factor"]), int(row["seed"]))
        for row in rows
    }
    sizes = dict.fromkeys(itertools.chain(*SIZES.values()))
    for seed, (blocks, channels), factor in itertools.product(chosen.seeds, sizes, FACTORS):
        if (blocks, channels, factor, seed) not in done:
            cfg = config(blocks, channels, factor, seed, chosen.runs)
            rows.append(
                {
                    "blocks": blocks,
                    "channels": channels,
                    "rate factor": factor,
                    "seed": seed,
                    "test error": train_compared(ComparedRun("FLARE++", seed, cfg)).error,
                }
            )
            write_csv(rows, table)
    draw(rows, chosen.out.with_suffix(".png"))
    tabulate(rows)


if __name__ == "__main__":
    main()
