"""Train the four mixers on the reduced tasks of Long Range Arena, and print the table.

    python examples/long_range_arena/reduced.py --tasks listops,image --seeds 0,1,2 \
        data.image=DIR data.text=ARCHIVE

Every run is ``flarepp train experiment=lra/quick/TASK model=MIXER seed=SEED``; runs that are there
already are read, not repeated. ``--until 05:20`` starts no run after that time of day.
"""

import argparse
import statistics
import time
from itertools import product
from pathlib import Path

from physicsnemo_flarepp.commands.configs import compose_config
from physicsnemo_flarepp.runs import read_metrics
from physicsnemo_flarepp.texts import format_table
from physicsnemo_flarepp.training import train

MIXERS = ("attention", "flare", "flarepp", "transolver")


def finished(directory: Path) -> dict | None:
    """Return the last row of a complete run."""
    if not (directory / "table.md").is_file():
        return None
    return next(row for row in read_metrics(directory) if row["kind"] == "result")


def main() -> None:
    """Run what is missing, then print accuracies as mean and range over the seeds."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tasks", default="listops,image,text,pathfinder")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--mixers", default=",".join(MIXERS))
    parser.add_argument("--out", type=Path, default=Path("outputs/lra"))
    parser.add_argument("--until", default="99:99", help="time of day after which no run starts")
    parser.add_argument("roots", nargs="*", help="data.TASK=PATH of tasks whose files you have")
    chosen = parser.parse_args()
    roots = dict(text.removeprefix("data.").split("=", 1) for text in chosen.roots)
    tasks, seeds, mixers = (getattr(chosen, n).split(",") for n in ("tasks", "seeds", "mixers"))
    found: dict[tuple[str, str], list[float]] = {}
    for task, seed, mixer in product(tasks, seeds, mixers):
        directory = chosen.out / f"{task}-{mixer}-seed{seed}"
        if finished(directory) is None and time.strftime("%H:%M") < chosen.until:
            settings = [f"experiment=lra/quick/{task}", f"model={mixer}", f"seed={seed}"]
            settings += [f"run_dir={directory}", f"label={task}"]
            settings += [f"data.root={roots[task]}"] if task in roots else []
            train(compose_config("train", settings))
        if (row := finished(directory)) is not None:
            found.setdefault((task, mixer), []).append(100 * (1 - row["error"]))
            common = f"{100 * (1 - row['mean_predictor_error']):.1f}"
            found[task, "common"] = [common]
    rows = [("task", "commonest class", *mixers)]
    for task in tasks:
        cells = (describe(found.get((task, mixer), [])) for mixer in mixers)
        rows.append((task, *found.get((task, "common"), ["-"]), *cells))
    print(format_table(rows, markdown=True))


def describe(values: list[float]) -> str:
    """Return the mean, the smallest and the largest value, and their number."""
    if not values:
        return "-"
    spread = f" ({min(values):.1f} to {max(values):.1f})" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{spread}, n={len(values)}"


if __name__ == "__main__":
    main()
