"""The help of the verbs that Hydra configures, from comments in files and help of settings.

Imports nothing slow.
"""

import dataclasses
import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..datapipes.config import DataConfig
from ..training.config import ParallelSettings, RunConfig, TrainingConfig
from .configs import REGISTERED, config_directory

_GROUPS = ("experiment", "model", "data", "training")
# Where values are documented: classes by the help of their fields, files by their comments.
_CLASSES = {"parallel": ParallelSettings, "data": DataConfig, "training": TrainingConfig}
_MODEL_FILES = ("_sizes", "_backbone", "flarepp")
_COLUMN, _WIDTH = 34, 80
# What most users change, for the short help.
_COMMON = {
    "seed": "weights, order of cases, drawn points",
    "run_dir": "where the run lives; a stopped run resumes there",
    "restart": "true: delete the run in run_dir and start over",
    "device": "auto, cpu, cuda or cuda:<i>",
    "data.root": "folder of your files (data=own); see flarepp inspect",
    "data.fields": "arrays to predict, such as '[p,tau]'",
    "data.n_points": "points drawn per case and epoch; null: all",
    "data.batch_size": "cases per step, over all ranks",
    "training.epochs": "passes over the cases; or .steps, or .minutes",
    "training.learning_rate": "peak of the schedule",
    "training.precision": "fp32, bf16 or fp16",
    "training.stream": "points per chunk, or auto: meshes larger than the GPU",
    "model.n_layers": "blocks; also n_hidden, n_head, slice_num",
    "parallel.context": "ranks that share one case, under torchrun",
}
_HELP = """\
usage: flarepp {verb} [GROUP=OPTION ...] [KEY=VALUE ...] [-m]

{summary}.

Hydra composes the config from one option of each group, by default those
marked *. GROUP=OPTION chooses another one, KEY=VALUE changes a value. An
experiment sets options and values of the other groups.

  -m               one run for each combination of values given as a,b,c
  --cfg job        print the composed config and exit
  --config-dir D   look for more options in D, such as D/experiment/mine.yaml
  --help all       explain every option and every value
  --hydra-help     Hydra's other flags

Groups
{groups}

{title}
{values}"""


def describe_entry(verb: str, entry: str, summary: str, everything: bool = False) -> str:
    """Return the help of a verb on two screens, or with every option and value explained."""
    root = config_directory()
    files = [root / f"{name}.yaml" for name in dict.fromkeys(("train", entry))]
    chosen = dict(re.findall(r"- (?:override )?(\w+): (\S+)", "".join(map(Path.read_text, files))))
    listed = _options if everything else _option_names
    groups = [line for group in _GROUPS for line in listed(root / group, chosen[group])]
    own = [line for path in files for line in _values(path)]
    if everything:
        values = [*own, *_all_values(root)]
    else:
        own = [line for line in own if not line.startswith(("label:", "run_dir:"))]
        values = [*own, *(f"{key:24}{text}" for key, text in _COMMON.items())]
    return _HELP.format(
        verb=verb,
        summary=summary[0].upper() + summary[1:],
        groups="\n".join(groups),
        title="Values" if everything else "Common values",
        values="\n".join(f"  {line}" for line in values),
    )


def _explained(group: Path) -> dict[str, str]:
    """Return the options that users choose, each with the first comment of its file."""
    texts = dict(REGISTERED.get(group.name, {}))
    for path in sorted(group.rglob("*.yaml")):
        if not path.name.startswith("_"):
            comments = re.findall(r"^# (?!@package)(.*)", path.read_text(), re.MULTILINE)
            texts[str(path.relative_to(group).with_suffix(""))] = next(iter(comments), "")
    return dict(sorted(texts.items()))


def _option_names(group: Path, chosen: str) -> list[str]:
    """Return the names of a group's options, wrapped."""
    names = " ".join(f"{name}*" if name == chosen else name for name in _explained(group))
    lines = textwrap.wrap(names, _WIDTH - 15, break_on_hyphens=False)
    return [f"  {group.name if i == 0 else '':13}{line}" for i, line in enumerate(lines)]


def _options(group: Path, chosen: str) -> Iterator[str]:
    """Return a line for each option of a group."""
    for option, text in _explained(group).items():
        name = f"{group.name}={option}"
        yield f"{'*' if option == chosen else ' '} {name:{_COLUMN}}{text}".rstrip()


def _all_values(root: Path) -> Iterator[str]:
    yield from _defaults(RunConfig, left_out=("label", *_CLASSES))
    for name, kind in _CLASSES.items():
        yield from (f"{name}:", *(f"  {line}" for line in _defaults(kind)))
    yield "model:"
    for name in _MODEL_FILES:
        yield from (f"  {line}" for line in _values(root / "model" / f"{name}.yaml"))


def _values(path: Path) -> Iterator[str]:
    """Return the lines of a config that a user may change, with their comments."""
    block = ""
    for line in path.read_text().splitlines():
        if line and not line[0].isspace():
            block = line.partition(":")[0]
        hidden = block in ("defaults", "hydra", "_target_") or block.startswith("#")
        if line.strip() and not hidden:
            yield line


def _defaults(kind: type, left_out: Sequence[str] = ()) -> Iterator[str]:
    r"""Return lines for the defaults of a dataclass, with the help of each field.

    >>> print(*_defaults(ParallelSettings), sep="\n")
    context: 1                      # Ranks that share ...
    """
    indent = " " * (_COLUMN - 2) + "# "
    for field in dataclasses.fields(kind):
        value = field.default
        if field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        if value is dataclasses.MISSING or field.name in left_out:
            continue
        text = field.metadata["help"]
        first, *others = textwrap.wrap(
            text, _WIDTH, initial_indent=indent, subsequent_indent=indent
        )
        yield f"{field.name}: {_in_yaml(value)}".ljust(_COLUMN - 3) + " " + first.lstrip()
        yield from others


def _in_yaml(value: object) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
