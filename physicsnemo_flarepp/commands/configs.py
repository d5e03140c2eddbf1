"""The configs in ``conf/``: where they are, what they offer, and a verb run on a composed one."""

import dataclasses
import hashlib
import os
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..datapipes.config import DataConfig
from ..datapipes.specs import BENCHMARKS
from ..training.config import ParallelSettings, RunConfig, TrainingConfig

if TYPE_CHECKING:
    from omegaconf import DictConfig

_PACKAGE = "physicsnemo_flarepp.conf"
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
# Groups in the order of the help.
_GROUPS = ("experiment", "model", "data", "training")
# Whose values it shows: files, with their comments, and classes, with the help of their fields.
_MODEL_FILES = ("_sizes", "_backbone", "flarepp")
_CLASSES = {"parallel": ParallelSettings, "data": DataConfig, "training": TrainingConfig}
_HELP_COLUMN, _HELP_WIDTH = 34, 80
_HELP = """\
usage: flarepp {verb} [GROUP=OPTION ...] [KEY=VALUE ...] [-m]

{summary}.

The config is composed by Hydra from one option of each group, by default those
marked *. GROUP=OPTION chooses another, KEY=VALUE changes a value, nested keys
with dots (training.epochs=50). An experiment changes options and values of the
other groups.

  -m               one run for every combination of values given as a,b,c, each
                   in a run directory of its own
  --cfg job        print the config that the arguments make, and do nothing
  --config-dir D   look for further options in D, such as D/experiment/mine.yaml
  --hydra-help     Hydra's other flags

Groups
{groups}

Values
{values}"""


def config_directory() -> Path:
    """Return the directory of the configs, in a checkout and in an installed package alike.

    It is the package ``physicsnemo_flarepp.conf``, so ``pkg://physicsnemo_flarepp.conf`` names it
    to Hydra. In a checkout it is a link to ``conf/`` at the top.

    Examples
    --------
    >>> (config_directory() / "train.yaml").is_file()
    True
    """
    return Path(__file__).parents[1] / "conf"


def describe_entry(verb: str, entry: str, summary: str) -> str:
    """Return the help of a verb that Hydra configures: groups, options and values.

    The explanations are the comments in the files, and those of the classes that hold the
    defaults.
    """
    root = config_directory()
    files = [root / f"{name}.yaml" for name in dict.fromkeys(("train", entry))]
    chosen = dict(re.findall(r"- (?:override )?(\w+): (\S+)", "".join(map(Path.read_text, files))))
    groups = [line for group in _GROUPS for line in _options(root / group, chosen[group])]
    values = [line for path in files for line in _values(path)]
    values += _defaults(RunConfig, left_out=("label", *_CLASSES))
    for name, kind in _CLASSES.items():
        values += [f"{name}:", *(f"  {line}" for line in _defaults(kind))]
    values.append("model:")
    for name in _MODEL_FILES:
        values += [f"  {line}" for line in _values(root / "model" / f"{name}.yaml")]
    return _HELP.format(
        verb=verb,
        summary=summary[0].upper() + summary[1:],
        groups="\n".join(groups),
        values="\n".join(f"  {line}" for line in values),
    )


def _options(group: Path, chosen: str) -> Iterator[str]:
    """Return a line for each option of a group, with the first comment of its file."""
    told = dict(REGISTERED.get(group.name, {}))
    for path in group.rglob("*.yaml"):
        if not path.name.startswith("_"):
            lines = path.read_text().splitlines()
            comments = [line[2:] for line in lines if line.startswith("# ") and "@" not in line[:3]]
            told[str(path.relative_to(group).with_suffix(""))] = next(iter(comments), "")
    for option, text in sorted(told.items()):
        mark = "*" if option == chosen else " "
        yield f"{mark} {f'{group.name}={option}':34}{text}".rstrip()


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

    Examples
    --------
    >>> print(*_defaults(ParallelSettings), sep="\n")
    context: 1                      # Ranks that share the tokens of a case; the
                                    # rest of the ranks share the cases.
    """
    indent = " " * (_HELP_COLUMN - 2) + "# "
    for field in dataclasses.fields(kind):
        value = field.default
        if field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        if value is dataclasses.MISSING or field.name in left_out:
            continue
        shown = f"{field.name}: {_in_yaml(value)}"
        first, *others = textwrap.wrap(
            field.metadata["help"], _HELP_WIDTH, initial_indent=indent, subsequent_indent=indent
        )
        yield shown.ljust(_HELP_COLUMN - 3) + " " + first.lstrip()
        yield from others


def _in_yaml(value: object) -> str:
    """Return a default as YAML has it.

    Examples
    --------
    >>> [_in_yaml(value) for value in (None, True, 1e-5, "auto", {})]
    ['null', 'true', '1e-05', 'auto', '{}']
    """
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def compose_config(entry: str, overrides: Sequence[str]) -> "DictConfig":
    """Return the config that Hydra composes of overrides, without running anything.

    Parameters
    ----------
    entry : str
        Name of a config in :func:`config_directory`.
    overrides : sequence of str
        As on a command line.
    """
    from hydra import compose, initialize_config_module

    with initialize_config_module(_PACKAGE, version_base="1.3"):
        return compose(entry, list(overrides))


def run_composed(
    entry: str,
    task: "Callable[[DictConfig], object]",
    arguments: Sequence[str],
    directory: str = "run_dir",
) -> None:
    """Compose a config by Hydra and run `task` on it; in a sweep, on every one.

    Parameters
    ----------
    entry : str
        Name of a config in :func:`config_directory`.
    task : Callable
        Gets the composed config.
    arguments : sequence of str
        Overrides and flags of Hydra.
    directory : str
        Key that names where results go. In a sweep what is swept is added to its value, unless
        the arguments give it.
    """
    import hydra
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode
    from omegaconf import OmegaConf

    command = sys.argv
    kept: list[Exception] = []

    def job(cfg: "DictConfig") -> None:
        sys.argv = command  # the run directory records it
        if HydraConfig.get().mode == RunMode.MULTIRUN:
            name = sweep_name(HydraConfig.get().overrides.task, arguments, directory)
            OmegaConf.update(cfg, directory, OmegaConf.select(cfg, directory) + name)
            task(cfg)
            return
        try:
            task(cfg)
        except Exception as error:  # Hydra would print a line of its own before it
            kept.append(error)

    full_error = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises instead of printing and exiting
    sys.argv = ["flarepp", *arguments]
    try:
        hydra.main(f"pkg://{_PACKAGE}", entry, version_base="1.3")(job)()
    finally:
        sys.argv = command
        if full_error is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = full_error
    if kept:
        raise kept[0]


def sweep_name(overrides: Sequence[str], arguments: Sequence[str], directory: str) -> str:
    """Return what sets the directory of one job of a sweep apart from those of the others.

    Parameters
    ----------
    overrides : sequence of str
        Those of the job, one value each.
    arguments : sequence of str
        Those of the command: an override that is given with one value is the same in all jobs.
    directory : str
        Key of the directory; a user who gives it names all jobs.

    Examples
    --------
    >>> job = ["seed=1", "training.epochs=5", "training.learning_rate=1e-3", "model.slice_num=64"]
    >>> command = ["-m", "seed=0,1", "training.epochs=5", "training.learning_rate=1e-3,1e-4",
    ...            "model.slice_num=32,64"]
    >>> sweep_name(job, command, "run_dir")
    '-learning_rate=1e-3-slice_num=64'
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parser = OverridesParser.create()
    given = [
        text for text in arguments if not text.startswith("-") and ("=" in text or "~" in text)
    ]
    fixed = {o.key_or_group for o in parser.parse_overrides(given) if not o.is_sweep_override()}
    values = {o.key_or_group: o.input_line.partition("=")[2]
              for o in parser.parse_overrides(list(overrides))}  # fmt: skip
    if directory in values:
        return ""
    in_name = _IN_NAME - {"data"} if "label" in values else _IN_NAME
    told = {key: value for key, value in values.items() if key not in fixed | in_name}
    leaves = Counter(key.rpartition(".")[2] for key in told)
    words = []
    for key, value in told.items():
        leaf = key.rpartition(".")[2]
        words.append(f"-{leaf if leaves[leaf] == 1 else key}={value}")
    exact = "".join(words).replace("/", ".")
    name = re.sub(r"[^\w.+=-]+", "_", exact)
    if name != exact or len(name) > _LONGEST_NAME:
        name = f"{name[:_LONGEST_NAME]}-{hashlib.sha256(exact.encode()).hexdigest()[:8]}"
    return name
