"""What is in files of data, what it would be taken for, and a config to start from.

    flarepp inspect runs/
    flarepp inspect car.vtp
    flarepp inspect runs/ --output configs/data/mine.yaml
    flarepp inspect --check configs/data/mine.yaml
    flarepp inspect --check data=own data.root=runs/ 'data.fields=[p]'

Prints arrays with their shapes, ranges and places, which would be inputs and which outputs, and how
to train on them. --check reads all cases of a config once and names what does not fit: a missing
array, cells against points, a vector against a scalar, other units, NaN, another dimension.
"""

import argparse
import shlex
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from ..datapipes.inspection import Inspection, check_cases, inspect_data
from ..files import reading, replace_text
from .configs import compose_config


class DataProblems(ValueError):
    """Cases that cannot be trained on as they are."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of :func:`run`."""
    parser.add_argument("paths", nargs="*", type=Path, help="files, or folders of cases")
    parser.add_argument(
        "--check", nargs="+", metavar="CONFIG",
        help="read all cases of a config: a YAML file, or arguments as of flarepp train",
    )  # fmt: skip
    parser.add_argument("--output", type=Path, help="write the config to start from to this file")


def run(options: argparse.Namespace) -> None:
    """Print what is found, or what is wrong."""
    if not options.paths and not options.check:
        raise ValueError("nothing to inspect; name files or folders, or --check CONFIG")
    for path in options.paths:
        inspection = inspect_data(path)
        print(*describe(inspection), sep="\n")
        if options.output is not None and inspection.config:
            options.output.parent.mkdir(parents=True, exist_ok=True)
            replace_text(options.output, inspection.as_yaml())
            print(f"written: {options.output}")
    if options.check:
        count, problems = check_cases(read_data_config(options.check))
        if problems:
            print(*problems, sep="\n")
            raise DataProblems(f"{len(problems)} problems in {count} cases, listed above")
        print(f"{count} cases fit together")


def describe(inspection: Inspection) -> list[str]:
    """Return the lines that are printed of an inspection."""
    rows = [("array", "place", "shape", "type", "values", "taken for")]
    rows += [(f.name, f.place, f.shape, f.kind, f.values, f.role) for f in inspection.found]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    table = ["  ".join(t.ljust(w) for t, w in zip(r, widths, strict=True)).rstrip() for r in rows]
    lines = [*inspection.lines, "", *table, ""]
    lines += [f"guess: {text}" for text in inspection.guesses]
    unused = [f.name for f in inspection.found if f.role == "not used"]
    if unused:
        lines.append(f"not used: {', '.join(unused)}")
    if inspection.config:
        arguments = " ".join(shlex.quote(text) for text in inspection.overrides())
        lines += ["", "config:", *(f"  {line}" for line in inspection.as_yaml().splitlines())]
        if not arguments.isprintable():
            arguments = "--config-dir configs data=mine  # after --output configs/data/mine.yaml"
        lines += ["", f"flarepp train {arguments}"]
    return lines


def read_data_config(given: list[str]) -> dict[str, Any]:
    """Return the data config in a YAML file, changed by further arguments, or composed of them."""
    path = Path(given[0])
    if "=" in given[0] and not path.exists():
        return OmegaConf.to_container(compose_config("train", given).data, resolve=True)
    if not path.is_file():
        raise FileNotFoundError(f"config {path} does not exist; give a YAML file or data=own ...")
    with reading(path):
        content = OmegaConf.load(path)
    data = OmegaConf.to_container(content.get("data", content), resolve=True)
    data.pop("defaults", None)
    data.setdefault("reader", {}).setdefault("_target_", "OwnReader")
    changes = OmegaConf.from_dotlist([text.removeprefix("data.") for text in given[1:]])
    return OmegaConf.to_container(OmegaConf.merge(data, changes), resolve=True)
