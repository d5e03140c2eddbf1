"""The configs in ``conf/``: where they are, their help, and how a verb runs on a composed one.

Imports nothing slow.
"""

import dataclasses
import difflib
import hashlib
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ..datapipes.config import DataConfig
from ..datapipes.specs import BENCHMARKS
from ..texts import format_table
from ..training.config import (
    CONFIGS,
    ParallelSettings,
    RunConfig,
    TrainingConfig,
    compose,
    one_budget,
)

if TYPE_CHECKING:
    from omegaconf import DictConfig

# Options that have no file, by group, with their explanations; conf/__init__.py registers them.
REGISTERED = {
    "data": {
        f"{name}_published": f"Published files: flarepp download {name}"
        for name, spec in BENCHMARKS.items()
        if spec.folder is not None and not name.startswith("drivaerml")
    },
    "experiment": {"none": "No experiment: model, data and training as the groups have them."},
    "training": {"default": "The paper's optimisation."},
}
# What a run directory is named after already.
_IN_NAME = {"data", "label", "model", "seed"}
_LONGEST_NAME = 100
# Hydra's flags that are followed by a value.
_WITH_VALUE = {"--cfg", "-c", "--package", "-p", "--config-path", "-cp", "--config-name", "-cn",
               "--config-dir", "-cd", "--experimental-rerun"}  # fmt: skip
# Texts in quotes, and words outside of quotes.
_WORDS = re.compile(r"""("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')|"""
                    r"""([^\s,\[\]{}:"'](?:[^,\[\]{}:"']*[^\s,\[\]{}:"'])?)""")  # fmt: skip

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


class UnknownKey(ValueError):
    """An override of a key that no config has; the message names the nearest one."""


def config_directory() -> Path:
    """Return ``pkg://physicsnemo_flarepp.conf``, in a checkout a link to ``conf/`` at the top."""
    return Path(__file__).parents[1] / "conf"


def completed(entry: str, arguments: Iterable[str]) -> list[str]:
    """Return arguments with what they imply: the experiment of own data, one length of the run.

    Data that is not of this package is own data.
    """
    arguments = [_quoted(text) for text in arguments]
    given = {key: value for key, found, value in (text.partition("=") for text in arguments)
             if found and not key.startswith("-")}  # fmt: skip
    known = {path.stem for path in (config_directory() / "data").glob("*.yaml")} - {"own"}
    data = given.get("data", "cars")
    foreign = data not in known | set(REGISTERED["data"]) and "," not in data
    if foreign and "experiment" not in given and entry != "prepare":
        arguments.append("experiment=own")
    training = {key.removeprefix("training."): value for key, value in given.items()
                if key.startswith("training.") and value != "null"}  # fmt: skip
    return [*arguments, *(f"training.{name}=null" for name in one_budget(training))]


def _quoted(argument: str) -> str:
    """Return an override with quotes around words that Hydra reads only in quotes: not ASCII."""
    key, found, value = argument.partition("=")
    if not found or argument.startswith("-") or value.isascii():
        return argument
    quoted = _WORDS.sub(lambda m: m[1] or (m[2] if m[2].isascii() else f'"{m[2]}"'), value)
    return f"{key}={quoted}"


def compose_config(entry: str, overrides: Sequence[str]) -> "DictConfig":
    """Return the config that Hydra composes of overrides, without running anything."""
    overrides = completed(entry, overrides)
    with _explaining_keys(entry, overrides):
        return compose(entry, overrides)


@contextmanager
def _explaining_keys(entry: str, overrides: Iterable[str]) -> Iterator[None]:
    """Turn Hydra's advice to append an unknown key into the name of the key that was meant."""
    from hydra.errors import ConfigCompositionException
    from omegaconf import OmegaConf

    try:
        yield
    except ConfigCompositionException as error:
        found = re.match(r"Could not override '([^']+)'", str(error))
        if found is None:
            raise
        wrong = found[1]
        models = {text for text in overrides if text.startswith("model=")}
        known = [f"model={path.stem}" for path in (config_directory() / "model").glob("*.yaml")]
        cfg = compose(entry, [*models.intersection(known)][:1])
        near = nearest_key(wrong, _keys(OmegaConf.to_container(cfg)))
        hint = f"did you mean {near}?" if near else f"flarepp {entry} --help all lists all keys"
        raise UnknownKey(f"there is no key {wrong!r}; {hint}") from error


def _keys(values: Mapping, prefix: str = "") -> Iterator[str]:
    for name, value in values.items():
        yield f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from _keys(value, f"{prefix}{name}.")


def nearest_key(wrong: str, keys: Iterable[str]) -> str | None:
    """Return the key that was probably meant: by name, initials, beginning or spelling."""
    section, _, leaf = wrong.rpartition(".")
    # Keys of the section that was named come first.
    near = sorted(keys, key=lambda key: key.rpartition(".")[0] != section)
    spelled = difflib.get_close_matches(leaf, map(_leaf, near), n=1, cutoff=0.7)
    for fits in (
        lambda name: name == leaf,
        lambda name: "_" in name and "".join(word[:1] for word in name.split("_")) == leaf,
        lambda name: len(leaf) > 2 and name.startswith(leaf),
        lambda name: name in spelled,
    ):
        for key in near:
            if fits(_leaf(key)):
                return key
    return None


def _leaf(key: str) -> str:
    return key.rpartition(".")[2]


def flags_first(arguments: Iterable[str]) -> list[str]:
    """Return arguments with flags, and their values, before the overrides, as Hydra wants them."""
    flags, overrides, before = [], [], ""
    for text in arguments:
        (flags if text.startswith("-") or before in _WITH_VALUE else overrides).append(text)
        before = text
    return flags + overrides


def run_composed(
    entry: str,
    task: "Callable[[DictConfig], Mapping[str, str] | None]",
    arguments: Sequence[str],
    directory: str = "run_dir",
) -> None:
    """Let Hydra compose a config and run `task` on it; in a sweep, on every one.

    A sweep ends with a table of the rows that the task returned, whatever ended it.
    `arguments` are overrides and Hydra's flags. `directory` is the key that names where results go:
    in a sweep, what is swept is added to its value, unless the arguments give it.
    """
    import hydra
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode
    from omegaconf import OmegaConf

    command, arguments = sys.argv, flags_first(completed(entry, arguments))
    kept: list[Exception] = []
    rows: list[Mapping[str, str]] = []

    def job(cfg: "DictConfig") -> None:
        sys.argv = command  # the run directory records it
        if HydraConfig.get().mode == RunMode.MULTIRUN:
            name = sweep_name(HydraConfig.get().overrides.task, arguments, directory)
            OmegaConf.update(cfg, directory, OmegaConf.select(cfg, directory) + name)
            rows.extend(filter(None, [task(cfg)]))
            return
        try:
            task(cfg)
        except Exception as error:  # Hydra would print a line of its own before it
            kept.append(error)

    sys.argv = ["flarepp", *arguments]
    try:
        with _explaining_keys(entry, arguments):
            hydra.main(f"pkg://{CONFIGS}", entry, version_base="1.3")(job)()
    finally:
        if rows:
            print(format_table([list(rows[0]), *(list(row.values()) for row in rows)]))
        sys.argv = command
    if kept:
        raise kept[0]


def sweep_name(overrides: Sequence[str], arguments: Sequence[str], directory: str) -> str:
    """Return what tells the directory of one job of a sweep from the others' directories.

    `overrides` are the job's, with one value each. An override with one value in the command's
    `arguments` is the same for all jobs. A user who gives the `directory` names all jobs.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parser = OverridesParser.create()
    given = [t for t in arguments if not t.startswith("-") and ("=" in t or "~" in t)]
    fixed = {o.key_or_group for o in parser.parse_overrides(given) if not o.is_sweep_override()}
    values = {o.key_or_group: o.input_line.partition("=")[2]
              for o in parser.parse_overrides(list(overrides))}  # fmt: skip
    if directory in values:
        return ""
    in_name = _IN_NAME - {"data"} if "label" in values else _IN_NAME
    told = {key: value for key, value in values.items() if key not in fixed | in_name}
    leaves = Counter(map(_leaf, told))
    words = (f"-{_leaf(k) if leaves[_leaf(k)] == 1 else k}={v}" for k, v in told.items())
    exact = "".join(words).replace("/", ".")
    name = re.sub(r"[^\w.+=-]+", "_", exact)
    if name != exact or len(name) > _LONGEST_NAME:
        name = f"{name[:_LONGEST_NAME]}-{hashlib.sha256(exact.encode()).hexdigest()[:8]}"
    return name


def describe_entry(verb: str, entry: str, summary: str, everything: bool = False) -> str:
    """Return the help of a verb on two screens, or with every option and value explained."""
    root = config_directory()
    files = [root / f"{name}.yaml" for name in dict.fromkeys(("train", entry))]
    chosen = dict(re.findall(r"- (?:override )?(\w+): (\S+)", "".join(map(Path.read_text, files))))
    groups = [line for g in _GROUPS for line in _options(root / g, chosen[g], everything)]
    values = [line for path in files for line in _values(path)]
    if everything:
        values += _all_values(root)
    else:
        values = [line for line in values if not line.startswith(("label:", "run_dir:"))]
        values += (f"{key:24}{text}" for key, text in _COMMON.items())
    return _HELP.format(
        verb=verb,
        summary=summary[0].upper() + summary[1:],
        groups="\n".join(groups),
        title="Values" if everything else "Common values",
        values="\n".join(f"  {line}" for line in values),
    )


def _options(group: Path, chosen: str, everything: bool) -> list[str]:
    """Return a group's options: their names, or a line for each with its file's first comment."""
    texts = dict(REGISTERED.get(group.name, {}))
    for path in sorted(group.rglob("*.yaml")):
        if not path.name.startswith("_"):
            comments = re.findall(r"^# (?!@package)(.*)", path.read_text(), re.MULTILINE)
            texts[str(path.relative_to(group).with_suffix(""))] = next(iter(comments), "")
    if everything:
        return [
            f"{'*' if name == chosen else ' '} {f'{group.name}={name}':{_COLUMN}}{text}".rstrip()
            for name, text in sorted(texts.items())
        ]
    names = " ".join(f"{name}*" if name == chosen else name for name in sorted(texts))
    lines = textwrap.wrap(names, _WIDTH - 15, break_on_hyphens=False)
    return [f"  {group.name if i == 0 else '':13}{line}" for i, line in enumerate(lines)]


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
    """Return lines for the defaults of a dataclass, with the help of each field."""
    indent = " " * (_COLUMN - 2) + "# "
    for field in dataclasses.fields(kind):
        value = field.default
        if field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        if value is dataclasses.MISSING or field.name in left_out:
            continue
        text = "null" if value is None else str(value)
        text = text.lower() if isinstance(value, bool) else text
        first, *others = textwrap.wrap(
            field.metadata["help"], _WIDTH, initial_indent=indent, subsequent_indent=indent
        )
        yield f"{field.name}: {text}".ljust(_COLUMN - 3) + " " + first.lstrip()
        yield from others
