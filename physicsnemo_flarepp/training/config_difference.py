"""What differs between the config of a checkpoint and that of now, and whether it may."""

from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

SECTIONS = ("model", "data", "training", "parallel", "seed")

# These change what is written, where or how fast, but no number of the run.
FREE = frozenset(
    {
        "device",
        "data.device",
        "data.num_workers",
        "data.pin_memory",
        "data.prefetch",
        "training.checkpoint_every",
        "training.evaluate_every",
        "training.keep_checkpoints",
        "training.log_every",
    }
)
_ABSENT = object()


def config_difference(
    saved: Mapping[str, Any] | DictConfig,
    current: Mapping[str, Any] | DictConfig,
    sections: Sequence[str] = SECTIONS,
) -> list[str]:
    """List the values that would make a resumed run another run, one line each.

    Parameters
    ----------
    saved, current : Mapping or DictConfig
        Whole configs; interpolations are resolved first.
    sections : sequence of str
        Top-level keys to compare. Within them the names in ``FREE`` may differ.

    Returns
    -------
    list of str
        Empty if the run can go on.

    Examples
    --------
    >>> saved = {"model": {"n_hidden": 128, "n_head": 8}, "training": {"log_every": 10}}
    >>> current = {"model": {"n_hidden": 64}, "training": {"log_every": 50}}
    >>> for line in config_difference(saved, current):
    ...     print(line)
    model.n_head: 8 in the checkpoint, absent now
    model.n_hidden: 128 in the checkpoint, 64 now
    """
    before, now = (_leaves(_plain(config), sections) for config in (saved, current))
    return [
        f"{name}: {_shown(before, name)} in the checkpoint, {_shown(now, name)} now"
        for name in sorted((before.keys() | now.keys()) - FREE)
        if not _same(before.get(name, _ABSENT), now.get(name, _ABSENT))
    ]


def check_same_config(
    saved: Mapping[str, Any] | DictConfig,
    current: Mapping[str, Any] | DictConfig,
    sections: Sequence[str] = SECTIONS,
) -> None:
    """Raise ValueError with the differences, and what to do, if a run cannot go on as it was.

    Parameters
    ----------
    saved, current, sections
        As in :func:`config_difference`.
    """
    lines = config_difference(saved, current, sections)
    if lines:
        raise ValueError(
            "the run directory holds checkpoints of another config:\n  "
            + "\n  ".join(lines)
            + "\nGive back these values to resume, choose another run_dir for a new run, or set "
            "restart=true to start this one again from the beginning"
        )


def _plain(config: Mapping[str, Any] | DictConfig) -> Mapping[str, Any]:
    if isinstance(config, DictConfig):
        return OmegaConf.to_container(config, resolve=True)
    return config


def _leaves(config: Mapping[str, Any], sections: Sequence[str]) -> dict[str, Any]:
    """Flatten the sections to {"model.n_hidden": 128}; lists are leaves, empty mappings none."""
    leaves: dict[str, Any] = {}

    def visit(name: str, value: Any) -> None:
        if isinstance(value, Mapping):
            for key, item in value.items():
                visit(f"{name}.{key}", item)
        else:
            leaves[name] = value

    for section in sections:
        if section in config:
            visit(section, config[section])
    return leaves


def _same(a: Any, b: Any) -> bool:
    """Compare values of YAML; a tuple equals a list, 2 equals 2.0, but 1 is not True."""
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_same(value, b[key]) for key, value in a.items())
    if isinstance(a, bool) != isinstance(b, bool):
        return False
    both_nan = a != a and b != b
    return both_nan or a == b


def _shown(leaves: dict[str, Any], name: str) -> str:
    return repr(leaves[name]) if name in leaves else "absent"
