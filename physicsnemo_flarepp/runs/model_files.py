"""Models as ``.mdlus`` files: written atomically, and read without running code from them."""

import json
import os
import pickle
import tarfile
import warnings
import zipfile
from collections.abc import Callable, Iterable
from copy import deepcopy
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import torch
from hydra.utils import get_class
from physicsnemo.core import Module
from torch import Tensor

from ..files import Fingerprint, Sink, replace_file
from ..models.feeding import INPUT_RULES, listed_class

_MEMBERS = ("args.json", "metadata.json", "model.pt")
_CLASS_KEYS = ("__name__", "__module__", "__args__")
_NESTED = "__physicsnemo.Module__"


def save_module(model: Module, path: str | os.PathLike) -> Fingerprint:
    """Write a bare model as a ``.mdlus`` file that ``physicsnemo.Module.from_checkpoint`` loads.

    Unlike ``model.save`` of PhysicsNeMo 2.2 the file is replaced atomically, nothing passes
    through the system's temporary folder, and it works inside a git repository without commits.
    Size and SHA-256 of the file are returned.

    Examples
    --------
    >>> import tempfile
    >>> from physicsnemo_flarepp import FlarePP
    >>> model = FlarePP(functional_dim=2, out_dim=1, n_layers=1, n_hidden=8, n_head=2, slice_num=4)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = save_module(model, f"{folder}/model.mdlus")
    ...     again = load_model(f"{folder}/model.mdlus")
    >>> x = torch.rand(1, 5, 2)
    >>> torch.equal(again(x), model(x))
    True
    """
    path = Path(path)
    if path.suffix != ".mdlus":
        raise ValueError(f"path is {path}, but PhysicsNeMo loads models from .mdlus files only")
    return replace_file(path, lambda sink: write_module(model, sink))


def write_module(model: Module, sink: Sink | BinaryIO) -> None:
    """Write the bytes of a ``.mdlus`` file, in order and without seeking."""
    if not isinstance(model, Module):
        raise TypeError(
            f"model is a {type(model).__name__}, expected a physicsnemo.Module; pass the bare "
            "model (`_orig_mod` of a compiled one, `module` of a wrapped or averaged one)"
        )
    if any(hasattr(layer, "lora_A") for layer in model.modules()):
        from physicsnemo.experimental.peft import merge_lora

        model = merge_lora(deepcopy(model))  # what is used later needs no adapters
    metadata = {"physicsnemo_version": version("nvidia-physicsnemo")}
    arguments = _described(model, _NESTED, metadata, nested := {})
    metadata["mdlus_file_version"] = model.__model_checkpoint_version__
    # Made first: arguments that JSON cannot hold must not leave a file behind.
    contents = {"args.json": arguments | nested, "metadata.json": metadata}
    texts = {name: json.dumps(content) for name, content in contents.items()}
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_STORED) as archive:
        with archive.open("model.pt", "w", force_zip64=True) as file:
            torch.save(model.state_dict(), file)
        for name, text in texts.items():
            archive.writestr(name, text)


def load_model(
    path: str | os.PathLike, *, allow: Iterable[type[Module]] = (), trust: bool = False
) -> Module:
    """Load a local ``.mdlus`` file on the CPU (or the default device) without running its code.

    ``Module.from_checkpoint`` imports any module that the file names, builds any registered model,
    of which some instantiate what their arguments name, and leaves ``weights_only`` to an
    environment variable. Here the file is read once; its class must be one of
    :data:`~physicsnemo_flarepp.models.feeding.INPUT_RULES` or of `allow`, its arguments must
    not name a class, and its weights must be tensors; ValueError names a file that is refused.

    Parameters
    ----------
    path : str or PathLike
        File of :func:`save_module` or ``Module.save``, not in the tar format of PhysicsNeMo 1.
    allow : iterable of type, optional
        Further classes that the file may ask for, for the model and for models among its
        arguments.
    trust : bool, optional
        Import whatever class the file names, if it is a ``physicsnemo.Module``: for a file of
        someone who may run code on this machine. Pickles are refused all the same.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no model at {path}; save_module writes one")
    if tarfile.is_tarfile(path) or not zipfile.is_zipfile(path):
        raise ValueError(
            f"{path} is not a zip archive: it is damaged, or in the tar format of PhysicsNeMo 1; "
            "write it again with save_module"
        )
    members = _read_members(path)
    weights = load_plain(BytesIO(members["model.pt"]), f"model.pt in {path}", map_location="cpu")
    own = {f"{cls.__module__}.{cls.__name__}": cls for cls in allow}
    try:
        entries = _class_entries(json.loads(members["args.json"]))
        versions = json.loads(members["metadata.json"])
        model = _build(entries, versions, _NESTED, lambda target: _find_class(target, own, trust))
        if entries:
            raise ValueError(f"args.json holds {sorted(entries)}, to which no argument refers")
        _check_extra_state(weights)
        model.load_state_dict(weights)
    except Exception as error:  # constructors raise anything on arguments that are not theirs
        raise ValueError(
            f"{path} cannot be loaded as a model: {type(error).__name__}: {error}"
        ) from error
    return model


def _read_members(path: Path) -> dict[str, bytes]:
    """Return the members of an archive, all read before any is used."""
    with zipfile.ZipFile(path) as archive:
        # A second member of one name could be another than the one checked.
        if sorted(archive.namelist()) != sorted(_MEMBERS):
            raise ValueError(f"{path} holds {archive.namelist()}, expected {list(_MEMBERS)}")
        try:
            return {name: archive.read(name) for name in _MEMBERS}
        except Exception as error:  # zlib, zip and bz2 have their own for one fact
            raise ValueError(f"{path} is damaged: {error}") from error


def _class_entries(content: Any) -> dict[str, dict[str, Any]]:
    """Return name -> class and arguments of the model, called ``_NESTED``, and of those inside."""
    if not isinstance(content, dict):
        raise ValueError(f"args.json holds a {type(content).__name__}, expected a dict")
    entries = {_NESTED: {key: content.pop(key) for key in _CLASS_KEYS if key in content}, **content}
    for name, entry in entries.items():
        # PhysicsNeMo matches the prefix as a regular expression; here its dot is a dot.
        if name != _NESTED and not name.startswith(f"{_NESTED}."):
            raise ValueError(f"args.json holds {name!r}, expected only {list(_CLASS_KEYS)}")
        if not (
            isinstance(entry, dict)
            and set(entry) == set(_CLASS_KEYS)
            and all(isinstance(entry[key], str) for key in _CLASS_KEYS[:2])
            and isinstance(entry["__args__"], dict)
        ):
            raise ValueError(f"args.json does not name the class of a model: {str(entry)[:200]}")
    return entries


def _build(
    entries: dict[str, dict[str, Any]],
    versions: dict[str, str],
    name: str,
    find_class: Callable[[str], type[Module]],
) -> Module:
    """Build the model of entry `name` and the models among its arguments, using up the entries."""
    entry = entries.pop(name)
    cls = find_class(f"{entry['__module__']}.{entry['__name__']}")
    arguments = entry["__args__"]
    version_key = "mdlus_file_version" if name == _NESTED else f"{name}.mdlus_file_version"
    written = versions.get(version_key, cls.__model_checkpoint_version__)
    if written != cls.__model_checkpoint_version__:
        if written not in cls.__supported_model_checkpoint_version__:
            raise ValueError(
                f"it was written by version {written!r} of {cls.__name__}, expected "
                f"{cls.__model_checkpoint_version__!r}"
            )
        warnings.warn(cls.__supported_model_checkpoint_version__[written], stacklevel=3)
        arguments = cls._backward_compat_arg_mapper(written, arguments)
    for key, value in arguments.items():
        inner = f"{name}.{key}"
        if value == inner and inner in entries:
            arguments[key] = _build(entries, versions, inner, find_class)
        else:
            _check_plain(value, f"argument {key} of {cls.__name__}")
    return cls(**arguments)


def _find_class(target: str, own: dict[str, type[Module]], trust: bool) -> type[Module]:
    """Return the class of a path if it may be built; nothing else is imported."""
    found = own.get(target) or listed_class(target)
    if found is None and trust:
        found = get_class(target)
        if not issubclass(found, Module):
            raise ValueError(f"it asks for {target}, which is not a physicsnemo.Module")
    if found is None:
        raise ValueError(
            f"it asks for the class {target}; a file may only ask for {', '.join(INPUT_RULES)}. "
            "Nothing was imported. If the class is yours, pass it as load_model(..., "
            "allow=(YourModel,)); if you trust whoever wrote the file, say trust=True (--trust)"
        )
    return found


def _check_plain(value: Any, where: str) -> None:
    """Refuse values that name a class, at any depth; some constructors instantiate them."""
    for name in value if isinstance(value, dict) else [value] if isinstance(value, str) else ():
        if name == "_target_" or name.startswith("__"):
            raise ValueError(
                f"{where} holds {name!r}, which names a class to be called. Nothing was called; "
                "find out where the file came from"
            )
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            _check_plain(inner, where)


def _check_extra_state(weights: dict[str, Any]) -> None:
    """Refuse state that a layer keeps beside its tensors: Transformer Engine unpickles it."""
    for name, value in weights.items():
        empty = value is None or isinstance(value, Tensor) and value.numel() == 0
        if str(name).endswith("_extra_state") and not empty:
            raise ValueError(
                f"its weights hold {name}, which Transformer Engine would unpickle; train and "
                "save the model without FP8"
            )


def load_plain(
    file: Path | BinaryIO, name: str, map_location: str | torch.device | None = None
) -> dict[str, Any]:
    """Load a dict that ``torch.save`` wrote; anything but tensors and plain values is refused."""
    # Only torch's own list of harmless types holds: tensordict, which PhysicsNeMo imports, adds
    # functions that build objects from their arguments.
    added = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    try:
        content = torch.load(file, map_location=map_location, weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{name} is refused: it holds more than tensors and plain values, and loading it could "
            "run code of whoever wrote it. Nothing of it was run; find out where it came from"
        ) from error
    except Exception as error:
        raise ValueError(f"{name} cannot be read: {type(error).__name__}: {error}") from error
    finally:
        torch.serialization.add_safe_globals(added)
    if not isinstance(content, dict):
        raise ValueError(f"{name} holds a {type(content).__name__}, expected a dict")
    return content


def _described(
    model: Module, prefix: str, metadata: dict[str, str], nested: dict[str, Any]
) -> dict[str, Any]:
    """Return class and arguments of a model; models among the arguments go to ``nested``."""
    arguments = dict(model._args["__args__"])
    for key, value in arguments.items():
        if isinstance(value, Module):
            name = f"{prefix}.{key}"
            metadata[f"{name}.mdlus_file_version"] = value.__model_checkpoint_version__
            nested[name] = _described(value, name, metadata, nested)
            arguments[key] = name
        elif isinstance(value, torch.nn.Module):
            raise TypeError(
                f"argument {key} of {type(model).__name__} is a {type(value).__name__}; convert it "
                "with physicsnemo.Module.from_torch, so that the file can name its class"
            )
    return {**model._args, "__args__": arguments}
