"""Models as ``.mdlus`` files: written atomically, and read without running code from them."""

import json
import os
import pickle
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import torch
from physicsnemo.core import Module
from physicsnemo.core.registry import ModelRegistry

from ..files import Fingerprint, Sink, replace_file

_MEMBERS = ("args.json", "metadata.json", "model.pt")
_PACKAGES = ("physicsnemo", "physicsnemo_flarepp")
_NESTED = "__physicsnemo.Module__"


def save_module(model: Module, path: str | os.PathLike) -> Fingerprint:
    """Write a model as a file that ``physicsnemo.Module.from_checkpoint`` loads.

    Unlike ``model.save`` of PhysicsNeMo 2.2 the file is replaced atomically, nothing passes
    through the system's temporary folder, and it works inside a git repository without commits.

    Parameters
    ----------
    model : physicsnemo.Module
        The bare model, not the compiled or wrapped one.
    path : str or PathLike
        Ends with ``.mdlus``; its folder must exist.

    Returns
    -------
    Fingerprint
        Size and SHA-256 of the file.

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
    """Write the bytes of a ``.mdlus`` file.

    Parameters
    ----------
    model : physicsnemo.Module
        The bare model.
    sink : Sink or binary file
        Written in order, without seeking.
    """
    if not isinstance(model, Module):
        raise TypeError(
            f"model is a {type(model).__name__}, expected a physicsnemo.Module; pass the bare "
            "model (`_orig_mod` of a compiled one, `module` of a wrapped or averaged one)"
        )
    metadata = {"physicsnemo_version": version("nvidia-physicsnemo")}
    arguments = _described(model, _NESTED, metadata, nested := {})
    metadata["mdlus_file_version"] = model.__model_checkpoint_version__
    # Made first: arguments that JSON cannot hold must not leave a file behind.
    texts = {
        "args.json": json.dumps(arguments | nested),
        "metadata.json": json.dumps(metadata),
    }
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_STORED) as archive:
        with archive.open("model.pt", "w", force_zip64=True) as file:
            torch.save(model.state_dict(), file)
        for name, text in texts.items():
            archive.writestr(name, text)


def load_model(path: str | os.PathLike) -> Module:
    """Load a local ``.mdlus`` file on the CPU (or the default device) without running its code.

    ``Module.from_checkpoint`` leaves ``weights_only`` to torch's default, which an environment
    variable (TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD) switches off, and imports any module that the file
    names. Here the weights must pass torch's default list of harmless types, and the class must
    be a registered PhysicsNeMo model, or one of PhysicsNeMo, of this package, or of a module that
    is already imported.

    Parameters
    ----------
    path : str or PathLike
        File of :func:`save_module` or ``Module.save``, not in the tar format of PhysicsNeMo 1.

    Returns
    -------
    physicsnemo.Module
        With the weights of the file.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no model at {path}; save_module writes one")
    if tarfile.is_tarfile(path) or not zipfile.is_zipfile(path):
        raise ValueError(
            f"{path} is no zip archive: it is damaged, or in the tar format of PhysicsNeMo 1; "
            "write it again with save_module"
        )
    with zipfile.ZipFile(path) as archive:
        # A second member of one name could be another than the one checked.
        if sorted(archive.namelist()) != sorted(_MEMBERS):
            raise ValueError(f"{path} holds {archive.namelist()}, expected {list(_MEMBERS)}")
        try:
            arguments = json.loads(archive.read("args.json"))
            weights = archive.read("model.pt")
        except (zipfile.BadZipFile, ValueError) as error:
            raise ValueError(f"{path} is damaged: {error}") from error
    _check_class(arguments, path)
    for name, entry in arguments.items():
        if name.startswith(_NESTED):
            _check_class(entry, path)
    load_plain(BytesIO(weights), f"model.pt in {path}", map_location="cpu")
    return Module.from_checkpoint(str(path))


def load_plain(
    file: Path | BinaryIO, name: str, map_location: str | torch.device | None = None
) -> dict[str, Any]:
    """Load a dict that ``torch.save`` wrote; anything but tensors and plain values is refused.

    Parameters
    ----------
    file : Path or binary file
        What to read.
    name : str
        How messages call it.
    map_location : str or torch.device, optional
        Where tensors go.

    Raises
    ------
    ValueError
        If the file would run code, is damaged, or holds something else than a dict.
    """
    try:
        with _default_allowlist():
            content = torch.load(file, map_location=map_location, weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{name} is refused: it holds more than tensors and plain values, and loading it "
            "could run code of whoever wrote it. Nothing of it was run; delete it, and find out "
            "where it came from"
        ) from error
    except Exception as error:
        raise ValueError(f"{name} cannot be read: {type(error).__name__}: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{name} holds a {type(content).__name__}, expected a dict")
    return content


@contextmanager
def _default_allowlist() -> Iterator[None]:
    """Take torch's own list of harmless types, without what other packages have added to it.

    tensordict, which PhysicsNeMo imports, adds functions that build objects from their arguments.
    """
    added = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    try:
        yield
    finally:
        torch.serialization.add_safe_globals(added)


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


def _check_class(entry: Any, path: Path) -> None:
    """Refuse a class that is no model, before anything of its module is imported or called."""
    try:
        name, module = entry["__name__"], entry["__module__"]
        package = module.split(".")[0]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: args.json does not name the class of a model") from error
    if name in ModelRegistry().list_models():
        return
    try:
        known = import_module(module) if package in _PACKAGES else sys.modules.get(module)
    except ImportError:
        known = None
    found = getattr(known, name, None)
    if not (isinstance(found, type) and issubclass(found, Module)):
        raise ValueError(
            f"{path} asks for {name!r} of {module!r}, which is no PhysicsNeMo model known here; if "
            "it is one of yours, import its module before loading"
        )
