"""From a config to readers: where the files are, which of their cases are meant, who reads them."""

import inspect
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf
from physicsnemo.datapipes import COMPONENT_REGISTRY, Transform

from ..builtin.engine import read_stamp
from ..files import RefusedFile
from ..parallel.ranks import on_first_rank
from .config import LoaderConfig
from .readers import CaseReader, DarcyReader, GeoFNOReader, NamedReader, OwnReader, ReaderOptions
from .readers.base import MEASURE, NO_WEIGHTS
from .readers.benchmarks import stored_cases
from .readers.memory import MemoryCases, MemoryReader, from_dataset
from .readers.names import NAMES
from .readers.splits import (
    SPLITS,
    SplitFraction,
    SplitMissing,
    case_choices,
    says_its_split,
)
from .specs import BenchmarkSpec, benchmark

_SET_BY_DATA = (
    *("root", "split", "cases", "manifest", "choice"),
    *("n_train", "n_val", "n_test", "options"),
)
# Weights that are the measure of the tokens where it is known.
AUTO = "auto"
# Marks a config whose cases were in memory.
MEMORY = "memory"
# Seed of the draws of test cases: the same in all runs, which are tested on the same tokens.
TEST_SEED = 0
# Transforms of PhysicsNeMo that compute and open no file.
_SAFE_TRANSFORMS = {
    *("BoundingBoxFilter", "BroadcastGlobalFeatures", "CenterOfMass", "ComputeNormals"),
    *("ConcatFields", "ConstantField", "CreateGrid", "FieldSlice", "KNearestNeighbors"),
    *("Normalize", "NormalizeVectors", "Purge", "Rename", "Scale", "SubsamplePoints", "Translate"),
}


@dataclass(frozen=True)
class DataSource:
    """Checked config of a data set, where its files are, and who reads them."""

    cfg: DictConfig
    root: Path
    spec: BenchmarkSpec | None
    reader_class: type[CaseReader]
    splits: Mapping[str, Any] = field(default_factory=dict)
    memory: MemoryCases | None = None
    trust: bool = True

    def find_reader(self, split: str) -> CaseReader | None:
        """Return the reader of a split; None if the config asks for none and the data has none."""
        if split == "val" and not self._has_validation():
            return None
        by_share = any(isinstance(choice, SplitFraction) for choice in self.splits.values())
        if split not in self.splits and by_share:
            return None  # fractions divide all cases among the splits that they name
        try:
            return self.reader(split)
        except SplitMissing:
            asked = self.cfg[f"n_{split}"] is not None or split in self.splits
            if asked or split == "train":
                raise
            return None

    def _has_validation(self) -> bool:
        """Return whether a validation split is asked for or may be there."""
        if self.cfg.n_val == 0:
            return False
        # Else a reader that knows no validation split might give the cases of another.
        knows = self._takes("n_val")
        if not knows and ("val" in self.splits or self.cfg.n_val is not None):
            raise ValueError(
                f"{self.reader_class.__name__} has no argument n_val, so no validation split; set "
                "data.n_val to 0"
            )
        return knows

    def reader(self, split: str) -> CaseReader:
        """Return the reader of a split, of this rank's tokens."""
        cfg, reader, given = self.cfg, self.reader_class, _plain(self.cfg)
        arguments = given["reader"]
        arguments.pop("_target_", None)
        if self.memory is not None:
            arguments = {}  # of a foreign reader, for the reader itself
            reader = partial(MemoryReader, self.memory)
        if reader is GeoFNOReader and self.spec is not None:
            arguments.setdefault("name", self.spec.name)
        # The names of own files have their place in ``data``, not in ``reader``.
        names = {key: given[key] for key in NAMES if given[key] is not None}
        if names and not issubclass(self.reader_class, NamedReader):
            raise ValueError(
                f"data.{next(iter(names))} is for own files (data=own); "
                f"{self.reader_class.__name__} takes the names of its arrays in data.reader"
            )
        # Where some splits are listed, another is what the data says it is, never a share of all.
        unlisted = split if any(name in SPLITS for name in self.splits) else None
        cases, manifest = self.splits.get(split, unlisted), self.splits.get("manifest")
        choice = {"cases": cases, "manifest": manifest}
        choice = {name: value for name, value in choice.items() if value is not None}
        if not all(self._takes(name) for name in choice):
            raise ValueError(
                f"data.splits is {dict(cfg.splits)}, but cases of {self.reader_class.__name__} "
                "have positions, not names: set data.n_train, data.n_val and data.n_test"
            )
        _check_arguments(
            self.reader_class,
            arguments,
            [name for name in inspect.signature(reader).parameters if name not in _SET_BY_DATA],
            ". An experiment for other data may have set it: choose another, or experiment=none",
        )
        training, parallel = split == "train", cfg.parallel
        made = reader(
            root=self.root,
            split=split,
            n_train=cfg.n_train,
            n_test=cfg.n_test,
            **({"n_val": cfg.n_val} if self._takes("n_val") else {}),
            **choice,
            options=ReaderOptions(
                n_points=cfg.n_points if training else cfg.n_points_test,
                sampling=cfg.sampling if training else "fixed",
                shard=(parallel.context_rank, parallel.context_size),
                weights=cfg.weights,
                density=cfg.sampling_density if training else "cells",
                seed=cfg.seed if training else TEST_SEED,
                pin_memory=cfg.pin_memory,
                memory=cfg.memory,
            ),
            **(arguments | names),
        )
        # New ones, each with a state of its own.
        made.transforms = tuple(
            make_transform(entry, self.trust) for entry in given["transforms"] or ()
        )
        return made

    def _takes(self, name: str) -> bool:
        return name in inspect.signature(self.reader_class).parameters

    def with_names(self, reader: CaseReader) -> "DataSource":
        """Return the source with the names that a reader of own files guessed, for all splits."""
        if not isinstance(reader, NamedReader):
            return self
        reader.check_parameters()
        return replace(self, cfg=OmegaConf.merge(self.cfg, reader.names.as_config()))


def _check_arguments(
    reader: type, given: Mapping[str, Any], accepted: Iterable[str], hint: str
) -> None:
    """Raise if ``data.reader`` has an argument that the reader does not take there."""
    if unknown := [name for name in given if name not in accepted]:
        raise ValueError(
            f"data.reader has {', '.join(unknown)}, but {reader.__name__} takes "
            f"{', '.join(accepted) or 'nothing'} there{hint}"
        )


def complete_names(
    cfg: Mapping[str, Any] | DictConfig, *, data: MemoryCases | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Return a data config in which own files have all their names, and what was guessed for it."""
    plain = _plain(cfg)
    if plain.get("weights") == AUTO:
        plain["weights"] = open_source(cfg, True, data).cfg.weights
        cfg = plain
    target = str((plain.get("reader") or {}).get("_target_", ""))
    if data is None and target.rpartition(".")[2] not in COMPONENT_REGISTRY:
        return plain, []
    source = open_source(cfg, True, data)
    if not issubclass(source.reader_class, NamedReader):
        return plain, []
    reader = source.reader("train")
    reader.check_parameters()
    if data is not None:
        plain |= {"reader": {**(plain.get("reader") or {}), "_target_": MEMORY}}
    return plain | reader.names.as_config(), reader.guesses


def checked_config(cfg: Mapping[str, Any] | DictConfig) -> DictConfig:
    """Return a data config with all its defaults; an unknown key is an error."""
    if cfg.get("sequences") is not None:
        raise ValueError(
            f"data.sequences is {cfg['sequences']!r}: sequences have classes, not fields. Results "
            "of such a run are in its table.md and errors.csv"
        )
    return OmegaConf.merge(OmegaConf.structured(LoaderConfig), _plain(cfg))


def open_source(
    cfg: Mapping[str, Any] | DictConfig, trust: bool, data: MemoryCases | None = None
) -> DataSource:
    """Return where the data of a config is and who reads it; a built-in set is made first."""
    cfg = checked_config(cfg)
    if not trust:
        _check_inside(cfg)
    if cfg.weights == AUTO:
        measured = open_source(OmegaConf.merge(cfg, {"weights": MEASURE}), trust, data)
        known = measured.reader("train").open_case(0).weights
        cfg.weights = MEASURE if MEASURE in known else NO_WEIGHTS
    if data is not None:
        choices = case_choices(cfg.splits, Path())
        return DataSource(cfg, cfg.root, None, MemoryReader, choices, data, trust)
    if cfg.reader.get("_target_") == MEMORY:
        if cfg.root is None:
            raise ValueError(
                "the cases of this config were in memory; give them again as load_run(directory, "
                "data=...), or a folder of files as data.root (--data-root)"
            )
        cfg.reader._target_ = OwnReader.__name__
    name = cfg.benchmark or cfg.builtin
    spec = benchmark(name) if name is not None else None
    reader_class = _reader_class(cfg, spec, trust)
    if not issubclass(reader_class, CaseReader):
        choices = case_choices(cfg.splits, Path(cfg.root or "."))
        arguments = _plain(cfg.reader)
        arguments.pop("_target_", None)
        accepted = inspect.signature(reader_class).parameters
        if cfg.root is not None and "path" in accepted:
            arguments.setdefault("path", cfg.root)
        hint = "; names of arrays go to data.fields, data.features, ..."
        _check_arguments(reader_class, arguments, accepted, hint)
        foreign = from_dataset(reader_class(**arguments))
        return DataSource(cfg, cfg.root, None, MemoryReader, choices, foreign, trust)
    root = _data_root(cfg)
    return DataSource(cfg, root, spec, reader_class, case_choices(cfg.splits, root), trust=trust)


def _check_inside(cfg: DictConfig) -> None:
    """Raise if a config of somebody else names files outside of the root of its data."""
    root = os.path.abspath(Path(cfg.root or ".").expanduser())
    given = _plain(cfg)
    given["reader"].pop("_target_", None)
    for value, is_list in ((given["reader"], False), (given["splits"], True)):
        for text in _texts(value):
            named = Path(text).expanduser()
            path = os.path.abspath(root / named)
            # Lists are looked for in the current directory first.
            elsewhere = is_list and named.is_file() and os.path.abspath(named) != path
            if elsewhere or not Path(path).is_relative_to(root):
                raise RefusedFile(
                    f"{text!r} in the data config is outside of the root of the data, {root}. Move "
                    "it there, or, if you trust the author, pass trust=True (--trust)"
                )


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in nested containers."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(inner)


def data_elsewhere(
    cfg: Mapping[str, Any] | DictConfig, root: str | Path, *, moved: bool | None = None
) -> dict[str, Any]:
    """Return the config of the data in another directory, in the layout of `cfg`.

    Data that was only moved keeps the splits of `cfg`. The test cases of other data are those that
    its stamp, manifest, directory ``test`` or file of test cases (Darcy) names. Otherwise arrays
    with as many cases as published have the published split, and all other cases are for testing.

    Examples
    --------
    >>> other = data_elsewhere({"builtin": "cars", "n_train": 12, "n_points": 64}, "elsewhere")
    >>> {key: value for key, value in other.items() if value is not None}
    {'n_points': 64, 'benchmark': 'cars', 'root': 'elsewhere', 'splits': {'test': 1.0}}
    """
    cfg = _plain(cfg)
    root = Path(root)
    name = cfg.get("benchmark") or cfg.get("builtin")
    same = cfg | {"builtin": None, "benchmark": name, "root": str(root)}
    stamp = read_stamp(root)
    if moved:
        return same
    counts = ("n_train", "n_val", "n_test")
    other = same | {"splits": None} | dict.fromkeys(counts)
    if stamp is not None:
        return other | {count: stamp.get(count, 0) for count in counts}
    if says_its_split(root):
        return other
    if moved is None and cfg.get("splits"):
        return same
    spec = benchmark(name) if name is not None else None
    target = cfg.get("reader", {}).get("_target_") or (spec.reader if spec is not None else "")
    if target in (DarcyReader.__name__, GeoFNOReader.__name__):
        # Training cases of Darcy have a file of their own; few arrays are for testing alone.
        tests = spec.reader == DarcyReader.__name__ or (
            root.is_dir() and stored_cases(root, spec) < spec.n_train + spec.n_test
        )
        return other | ({"n_train": 0} if tests else {})
    kind = str(target).rpartition(".")[2]
    reader = COMPONENT_REGISTRY.get(kind) if kind in COMPONENT_REGISTRY else None
    if reader is not None and "cases" not in inspect.signature(reader).parameters:
        return other
    return other | {"splits": {"test": 1.0}}


def _plain(cfg: Mapping[str, Any] | DictConfig) -> dict[str, Any]:
    return OmegaConf.to_container(cfg, resolve=True) if OmegaConf.is_config(cfg) else dict(cfg)


def _data_root(cfg: DictConfig) -> Path:
    """Return the directory of the files, after generating a built-in set and noting its counts."""
    if (cfg.root is None) == (cfg.builtin is None):
        raise ValueError(
            f"data.root is {cfg.root!r} and data.builtin is {cfg.builtin!r}; set exactly one"
        )
    if cfg.root is not None:
        # A folder without a stamp was made by others and has no checksums to verify.
        read_stamp(Path(cfg.root))
        return Path(cfg.root)
    counts = {"n_train": cfg.n_train, "n_val": cfg.n_val, "n_test": cfg.n_test}
    root = generate_once(cfg.builtin, seed=cfg.builtin_seed, **counts)
    stamp = json.loads((root / "stamp.json").read_text())
    for count in counts:
        cfg[count] = stamp.get(count, 0)
    return root


def generate_once(name: str, *, seed: int, **counts: int | None) -> Path:
    """Return the directory of a built-in set; the first rank makes it, and the others wait."""
    from ..builtin import generate

    make = partial(generate, name, seed=seed, **counts)
    return on_first_rank(make, f"generating the built-in set {name}")


def _reader_class(cfg: DictConfig, spec: BenchmarkSpec | None, trust: bool) -> type:
    target = cfg.reader.get("_target_", spec and spec.reader)
    if target is None:
        raise ValueError("neither `benchmark` nor `reader._target_` is set; name a reader")
    found = _registered_class(str(target), trust)
    if found is None:
        readers = [name for name in COMPONENT_REGISTRY.list() if name.endswith("Reader")]
        hint = "" if trust else ". A reader of your own needs trust=True (--trust)"
        raise ValueError(f"reader {target!r} is not registered; registered are {readers}{hint}")
    # Other registered components take other arguments, and PhysicsNeMo's mesh readers unpickle.
    if not trust and not issubclass(found, CaseReader):
        raise ValueError(
            f"reader {target!r} in somebody else's file is refused: only readers of this package "
            "are safe to open. If you trust its author, pass trust=True (--trust)"
        )
    return found


def _registered_class(target: str, trust: bool) -> type | None:
    """Return the class of the registry that a text names, or None; with trust, any class."""
    module, _, name = target.rpartition(".")
    if module and trust:
        return get_class(target)
    found = COMPONENT_REGISTRY.get(name) if name in COMPONENT_REGISTRY else None
    if module and found is not getattr(sys.modules.get(module), name, None):
        return None
    return found


def make_transform(entry: Mapping[str, Any], trust: bool) -> Transform:
    """Return a transform of the registry, by the name of its class and its arguments."""
    arguments = {str(key): value for key, value in entry.items()}
    target = str(arguments.pop("_target_", ""))
    found = _registered_class(target, trust)
    if found is None or not (isinstance(found, type) and issubclass(found, Transform)):
        classes = {name: COMPONENT_REGISTRY.get(name) for name in COMPONENT_REGISTRY.list()}
        known = [name for name, kind in classes.items() if issubclass(kind, Transform)]
        raise ValueError(f"transform {target!r} is not registered; registered are {known}")
    if not trust and (found.__name__ not in _SAFE_TRANSFORMS or "stats_file" in arguments):
        raise ValueError(
            f"transform {target!r} in somebody else's file is refused: it could open files. "
            "If you trust its author, pass trust=True (--trust)"
        )
    parameters = inspect.signature(found).parameters
    for name, value in arguments.items():
        if name in parameters and "Tensor" in str(parameters[name].annotation):
            arguments[name] = _as_tensors(value)
    try:
        return found(**arguments)
    except TypeError as error:
        raise ValueError(
            f"data.transforms: {found.__name__} takes {', '.join(parameters)} ({error})"
        ) from error


def _as_tensors(value: Any) -> Any:
    """Return lists of numbers as tensors, which YAML cannot write, also inside a mapping."""
    if isinstance(value, Mapping):
        return {key: _as_tensors(inner) for key, inner in value.items()}
    numbers = isinstance(value, list) and all(isinstance(v, int | float) for v in value)
    return torch.tensor(value, dtype=torch.float32) if numbers and value else value
