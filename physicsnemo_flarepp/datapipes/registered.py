"""Readers and transforms of PhysicsNeMo's registry, by the names that a config gives them."""

import inspect
import sys
from collections.abc import Mapping
from typing import Any

import torch
from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf
from physicsnemo.datapipes import COMPONENT_REGISTRY, Transform

# Of PhysicsNeMo: they compute, and open no file.
_SAFE_TRANSFORMS = {
    *("BoundingBoxFilter", "BroadcastGlobalFeatures", "CenterOfMass", "ComputeNormals"),
    *("ConcatFields", "ConstantField", "CreateGrid", "FieldSlice", "KNearestNeighbors"),
    *("Normalize", "NormalizeVectors", "Purge", "Rename", "Scale", "SubsamplePoints", "Translate"),
}


def registered_class(target: str, trust: bool) -> type | None:
    """Return the class of the registry that a text names, or None; with trust, any class."""
    module, _, name = target.rpartition(".")
    if module and trust:
        return get_class(target)
    found = COMPONENT_REGISTRY.get(name) if name in COMPONENT_REGISTRY else None
    if module and found is not getattr(sys.modules.get(module), name, None):
        return None
    return found


def foreign_reader(reader_class: type, given: DictConfig, root: str | None) -> Any:
    """Return a reader that is not of this package, made with the arguments of the config."""
    arguments = OmegaConf.to_container(given, resolve=True)
    arguments.pop("_target_", None)
    accepted = inspect.signature(reader_class).parameters
    if root is not None and "path" in accepted:
        arguments.setdefault("path", root)
    unknown = [name for name in arguments if name not in accepted]
    if unknown:
        raise ValueError(
            f"data.reader has {', '.join(unknown)}, but {reader_class.__name__} takes "
            f"{', '.join(accepted)} there; names of arrays go to data.fields, data.features, ..."
        )
    return reader_class(**arguments)


def make_transform(entry: Mapping[str, Any], trust: bool) -> Transform:
    """Return a transform of the registry, by the name of its class and its arguments.

    Examples
    --------
    >>> make_transform({"_target_": "Rename", "mapping": {"pos": "coordinates"}}, False)
    Rename(...)
    """
    arguments = {str(key): value for key, value in entry.items()}
    target = str(arguments.pop("_target_", ""))
    found = registered_class(target, trust)
    if found is None or not (isinstance(found, type) and issubclass(found, Transform)):
        classes = {name: COMPONENT_REGISTRY.get(name) for name in COMPONENT_REGISTRY.list()}
        known = [name for name, kind in classes.items() if issubclass(kind, Transform)]
        raise ValueError(f"transform {target!r} is not registered; registered are {known}")
    if not trust and (found.__name__ not in _SAFE_TRANSFORMS or "stats_file" in arguments):
        raise ValueError(
            f"transform {target!r} may not be named by a file of others, for it could open files. "
            "If you trust whoever wrote it, say trust=True (--trust)"
        )
    parameters = inspect.signature(found).parameters
    for name, value in arguments.items():
        if name in parameters and "Tensor" in str(parameters[name].annotation):
            arguments[name] = _as_tensors(value)
    try:
        return found(**arguments)
    except TypeError as error:
        raise ValueError(
            f"data.transforms: {found.__name__} was not made ({error}); it takes "
            f"{', '.join(parameters)}"
        ) from error


def _as_tensors(value: Any) -> Any:
    """Return lists of numbers as tensors, which YAML cannot write, also inside a mapping."""
    if isinstance(value, Mapping):
        return {key: _as_tensors(inner) for key, inner in value.items()}
    numbers = isinstance(value, list) and all(isinstance(v, int | float) for v in value)
    return torch.tensor(value, dtype=torch.float32) if numbers and value else value
