"""Settings of a data set and of its loaders, with their help; nothing slow is imported here."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from ..files import RefusedFile, reading

if TYPE_CHECKING:
    from omegaconf import DictConfig

# A config has some hundred; lists of cases may have many thousand.
_MOST_VALUES = 1_000_000


def setting(default: Any, text: str) -> Any:
    """Return a field of a config with its help; a class as default makes a new one each time."""
    key = "default_factory" if isinstance(default, type) else "default"
    return field(**{key: default}, metadata={"help": text})


@dataclass
class DataConfig:
    """Which data a run reads, and how; an unknown key is an error. See ``flarepp train --help``."""

    benchmark: str | None = setting(
        None,
        "Published benchmark, which gives reader, splits and normalisation; null with root needs "
        "reader._target_.",
    )
    reader: Any = setting(
        dict,
        "Arguments of the reader, and _target_ (registry name, class path or ${dp:...}) if it is "
        "not the benchmark's.",
    )
    root: str | None = setting(
        None, "Directory of the files. Set either root or builtin, never both."
    )
    coordinates: Any = setting(
        None,
        "Own files (data=own): the array of the coordinates, the arrays x, y, z, or grid; not for "
        "meshes. null: guessed and reported.",
    )
    features: Any = setting(
        None,
        "Own files: inputs at the tokens, a list of arrays or a mapping such as {normals: "
        '"surface[0:3]"}. null: guessed and reported.',
    )
    fields: Any = setting(
        None,
        "Own files: what is predicted, a list of arrays or a mapping such as {shear: "
        '"surface_fields[1:4]"}. null: guessed and reported.',
    )
    globals: Any = setting(
        None,
        "Own files: inputs with one value per case, a list of names or a mapping such as {speed: "
        "U_inf}. null: guessed and reported.",
    )
    association: str | None = setting(
        None, "Own meshes: whether fields are at cells or points; auto decides by the fields."
    )
    builtin: str | None = setting(None, "Built-in set, generated or taken from its cache.")
    splits: Any = setting(
        None,
        "null: by manifest.json, directories train, val and test, or published positions. Else a "
        "mapping with train, val and test: fractions of the cases (with a seed), or each a split "
        "of the manifest, a list of ids, or a file of ids; a text alone is a manifest.",
    )
    n_train: int | None = setting(
        None, "Training cases; null takes the published number. 0: files of test cases only."
    )
    n_val: int | None = setting(
        None,
        "Validation cases; null takes published cases that are in no other split, or as many as "
        "test cases of built-in sets.",
    )
    n_test: int | None = setting(None, "Test cases; null takes the published or built-in number.")
    n_points: int | None = setting(None, "Tokens drawn per training case; null takes all.")
    n_points_test: int | None = setting(
        None, "Tokens drawn per validation and test case; null takes all."
    )
    sampling: str = setting(
        "epoch", "Training draws: epoch (fresh each epoch) or fixed. Test draws are always fixed."
    )
    weights: str = setting(
        "none",
        "Weight of a token in the gathers of the model: none, measure (the area it stands for), "
        "auto (measure where areas are known) or the name of a stored array.",
    )
    sampling_density: str = setting(
        "cells",
        "How training tokens are drawn: cells, all equally likely, or area, in proportion to "
        "weights, which are corrected for it. Test tokens are always drawn by cells.",
    )
    transforms: Any = setting(
        list,
        "Transforms of PhysicsNeMo's registry that every sample passes before it is normalised, "
        'such as [{_target_: "${dp:Translate}", input_keys: [coordinates], translation: [1, 0, '
        "0]}].",
    )
    normalization: Any = setting(
        "fit",
        "fit: coordinates centred and divided by one scale, all else to mean 0 and deviation 1. "
        "paper: as published. none. Or what differs from fit: a mapping from sample key to "
        'gaussian, isotropic, per_point, unit_box or none. {"load": path}: a stored normaliser.',
    )
    baseline: str = setting(
        "none",
        "linear or mean_field, for cases that share a mesh: the model learns the remainder of a "
        "fit, token by token: a regression on the globals, or the mean field, times the size of "
        "the fields by the globals where that fits better. none: it learns the fields.",
    )
    batch_size: int = setting(
        1,
        "Training cases per batch over all data ranks, which must divide it: any number of ranks "
        "trains the same.",
    )
    batch_size_test: int = setting(
        1, "Cases that a data rank evaluates at a time; results stay the same."
    )
    num_workers: int = setting(
        2, "Reading threads; with 0, or small cases in memory on a CPU, the calling thread reads."
    )
    prefetch: int = setting(2, "Batches read ahead.")
    memory: float = setting(
        0.25,
        "Share of the free memory in which decoded cases stay between epochs; 0 keeps none. "
        "Prepared cases and stores are read by rows.",
    )
    builtin_seed: int = setting(
        0, "Seed of the built-in set, so that runs that differ in seed train on the same data."
    )


@dataclass
class ParallelConfig:
    """Place of this process in the mesh of ranks."""

    data_rank: int = 0
    data_size: int = 1
    context_rank: int = 0
    context_size: int = 1


@dataclass
class LoaderConfig(DataConfig):
    """The data, and the place of the loaders: seed, device and ranks, which a run sets itself."""

    seed: int = setting(
        0,
        "Seed of the order of training cases and of their draws; those of test cases are the same "
        "for all seeds.",
    )
    device: str | None = setting(
        None, "Where batches live: null leaves them on the CPU, auto follows PhysicsNeMo."
    )
    pin_memory: bool = setting(False, "Pin host memory for asynchronous copies.")
    collate_metadata: bool = setting(False, "Yield (batch, [metadata, ...]).")
    parallel: ParallelConfig = setting(ParallelConfig, "Place in the mesh of ranks.")


def load_yaml(path: Path) -> "DictConfig":
    """Return the values in a YAML file, which aliases must not multiply."""
    from omegaconf import OmegaConf

    with reading(path):
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
        if _n_values(root, {}) > _MOST_VALUES:
            raise RefusedFile(
                f"{path} stands for more than {_MOST_VALUES} values, by aliases of aliases; write "
                "the values out"
            )
        return OmegaConf.load(path)


def _n_values(node: yaml.Node | None, known: dict[int, float]) -> float:
    """Count the values below a node, those of an alias at each place; inf in a circle."""
    if node is None or isinstance(node, yaml.ScalarNode):
        return 1
    if id(node) not in known:
        known[id(node)] = math.inf  # until counted: who meets it below itself is in a circle
        is_mapping = isinstance(node, yaml.MappingNode)
        below = [child for pair in node.value for child in pair] if is_mapping else node.value
        known[id(node)] = 1 + sum(_n_values(child, known) for child in below)
    return known[id(node)]
