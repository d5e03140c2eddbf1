"""Verbs about data: download, inspect, prepare."""

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..files import reading, replace_text
from ..texts import format_table, printable
from .configs import compose_config

if TYPE_CHECKING:  # a download waits for none of them
    from omegaconf import DictConfig

    from ..datapipes.inspection import Inspection


class DataProblems(ValueError):
    """Cases that cannot be trained on as they are; the message counts them."""


def download(options: argparse.Namespace) -> None:
    """Fetch the set and say where it is."""
    from ..datapipes.download import RAW_SETS, download, download_runs, parse_runs

    name, root, endpoint = options.set, options.root, options.endpoint
    if name not in RAW_SETS:
        if options.runs is not None:
            raise ValueError(f"--runs is for {', '.join(RAW_SETS)}; {name} is one archive")
        folder = download(name, root, endpoint=endpoint, keep=options.keep)
    else:
        if options.runs is None:
            raise ValueError(f"--runs is missing: say which runs of {name}, such as 1-10")
        runs, dry = parse_runs(options.runs), options.dry_run
        folder = download_runs(name, root, runs, options.files, endpoint=endpoint, dry_run=dry)
        if dry:
            return
    print(f"{name} is complete: set `data.root` to {folder}")


def prepare(cfg: "DictConfig") -> None:
    """Prepare the cases of ``cfg.data`` and say where they are and how to train on them."""
    from rich.filesize import decimal

    from ..datapipes.inspection import as_override
    from ..datapipes.preparation import bytes_of, prepare

    given = cfg.prepare
    out = prepare(cfg.data, given.out, workers=given.workers, seed=given.order_seed)
    root = shlex.quote(f"data.root={as_override(str(out))}")
    print(f"{out} is complete ({decimal(bytes_of(out))}): train with data=prepared {root}")


def inspect(options: argparse.Namespace) -> None:
    """Print what is in files, or what is wrong with the cases of a config; raise if anything is."""
    from ..datapipes.inspection import check_cases, inspect_data

    if not options.paths and not options.check:
        raise ValueError("nothing to inspect; name files or folders, or --check CONFIG")
    wrong: list[str] = []
    for path in options.paths:
        inspection = inspect_data(path)
        print(*describe(inspection), sep="\n")
        wrong += [text for text in inspection.problems if text.startswith("problem: ")]
        if options.output is not None and inspection.config:
            options.output.parent.mkdir(parents=True, exist_ok=True)
            replace_text(options.output, inspection.as_yaml())
            print(f"written: {options.output}")
    if options.check:
        count, problems = check_cases(read_data_config(options.check))
        if problems:
            print(*map(printable, problems), sep="\n")
            raise DataProblems(f"{len(problems)} problems in {count} cases, listed above")
        print(f"{count} cases fit together")
    if wrong:
        more = f"; {len(wrong) - 1} more are listed above" if len(wrong) > 1 else ""
        raise DataProblems(f"{wrong[0].removeprefix('problem: ')}{more}")


def describe(inspection: "Inspection") -> list[str]:
    """Return the lines to print about an inspection."""
    rows = [("array", "location", "shape", "type", "values", "used as")]
    rows += [(f.name, f.place, f.shape, f.kind, f.values, f.role) for f in inspection.found]
    lines = [*inspection.lines, "", format_table(rows), ""]
    lines += [f"guess: {text}" for text in inspection.guesses]
    lines += inspection.problems
    if unused := [f.name for f in inspection.found if f.role == "not used"]:
        lines.append(f"not used: {', '.join(unused)}")
    if inspection.config:
        arguments = " ".join(shlex.quote(text) for text in inspection.overrides())
        if not arguments.isprintable():
            arguments = "--config-dir configs data=mine  # after --output configs/data/mine.yaml"
        lines += ["", "config:", *(f"  {line}" for line in inspection.as_yaml().splitlines())]
        lines += ["", f"flarepp train {arguments}"]
    return lines


def read_data_config(given: list[str]) -> dict[str, Any]:
    """Return the data config of a YAML file with overrides, or of overrides alone."""
    from omegaconf import OmegaConf

    from ..datapipes.config import load_yaml

    path = Path(given[0])
    if "=" in given[0] and not path.exists():
        return OmegaConf.to_container(compose_config("train", given).data, resolve=True)
    if not path.is_file():
        raise FileNotFoundError(f"config {path} does not exist; give a YAML file or data=own ...")
    with reading(path):
        content = load_yaml(path)
    data = OmegaConf.to_container(content.get("data", content), resolve=True)
    data.pop("defaults", None)
    data.setdefault("reader", {}).setdefault("_target_", "OwnReader")
    changes = OmegaConf.from_dotlist([text.removeprefix("data.") for text in given[1:]])
    return OmegaConf.to_container(OmegaConf.merge(data, changes), resolve=True)
