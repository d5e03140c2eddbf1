"""What a run keeps of its training set: ranges of inputs, orientation, forces, and its files."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from omegaconf import DictConfig
from torch import Tensor

from ..datapipes.channels import Channels
from ..datapipes.loaders import Loaders
from ..datapipes.normalization import Normalizer, normalization_kinds
from ..datapipes.specs import builtin_name, force_convention
from ..datapipes.statistics import (
    doubtful_inputs,
    fit_normalizer,
    has_same_inputs,
    is_constant,
    surface_orientation,
)
from ..parallel.ranks import Ranks

FILE_NAME = "training_set.json"
# A parameter may be this share of its range outside of it.
_OUTSIDE = 0.1
_PIECE, _PIECES = 1 << 16, 8
# Where MATLAB files hold the date on which they were written.
_HEADER = 128


def describe_training_set(
    loaders: Loaders, channels: Channels, data: DictConfig, ranks: Ranks, chosen_on_test: bool
) -> dict[str, Any]:
    """Return what predictions on other data are compared with; all ranks call it."""
    reader, ranges = loaders.train.dataset.reader, loaders.normalizer.ranges
    if not ranges:  # no statistics were fitted to the training cases: they are read once
        mesh = ranks.mesh["data"]
        cases = range(mesh.get_local_rank(), len(reader), mesh.size())
        group = dist.group.WORLD if ranks.size > 1 else None
        ranges = fit_normalizer(reader, {}, cases=cases, group=group).ranges
    builtin = builtin_name(data.get("root"), data.get("builtin"))
    convention = force_convention(channels.fields, builtin)
    first = ranks.is_first
    return {
        **ranges,
        "forces": None if convention is None else asdict(convention),
        "builtin": builtin,
        "orientation": surface_orientation(reader) if first else None,
        "same_inputs": first and has_same_inputs([(reader, i) for i in range(len(reader))]),
        "files": data_files(loaders, test=chosen_on_test) if first else {},
    }


def describe_doubts(
    training_set: Mapping[str, Any], normalizer: Normalizer, channels: Channels, data: DictConfig
) -> list[str]:
    """Warn about inputs that are constant, huge or tiny after normalisation, one line each."""
    d = channels.coordinates
    names = {
        "coordinates": tuple("xyz"[:d]) if d <= 3 else tuple(f"x{i}" for i in range(d)),
        "features": channels.feature_names,
        "globals": channels.global_names,
    }
    kept = _varying_axes(training_set, names["coordinates"], data.get("coordinates"))
    lines = doubtful_inputs(training_set, normalizer, normalization_kinds(data), names, kept)
    if training_set["same_inputs"]:
        lines.insert(
            0,
            f"NO INPUT DIFFERS between the {training_set['cases']} training cases, so all get the "
            "same prediction. Name what tells them apart in data.features or data.globals; "
            "`flarepp inspect` lists what is in the files",
        )
    return lines


def _varying_axes(ranges: Mapping[str, Any], axes: Sequence[str], given: Any) -> str | None:
    """Return ``data.coordinates`` without the axes that are constant; None if it cannot be said."""
    low, high = (torch.tensor(ranges["coordinates"][end]).double() for end in ("min", "max"))
    kept = [i for i, constant in enumerate(is_constant(low, high).tolist()) if not constant]
    arrays = [given] if isinstance(given, str) else list(given or axes)
    if len(arrays) == len(low):
        return f"[{','.join(arrays[i] for i in kept)}]"
    if len(arrays) == 1 and kept == list(range(len(kept))):
        return f"'{arrays[0]}[0:{len(kept)}]'"
    return None


def parameter_warning(
    training_set: Mapping[str, Any] | None, names: Sequence[str], values: Tensor | None
) -> str | None:
    """Return which parameters are outside of the range of training, None if none is."""
    known = (training_set or {}).get("globals")
    if known is None or values is None or len(known["min"]) != values.numel():
        return None
    given = zip(names, values.flatten().tolist(), known["min"], known["max"], strict=True)
    outside = [
        f"{name} is {value:.6g} (training {low:.6g} to {high:.6g})"
        for name, value, low, high in given
        if max(low - value, value - high) > _OUTSIDE * (high - low) + 1e-6 * abs(low)
    ]
    if not outside:
        return None
    return (
        f"parameters are outside the range of training: {'; '.join(outside)}. The prediction is an "
        "extrapolation"
    )


def read_training_set(directory: Path) -> dict[str, Any] | None:
    """Return what a run directory keeps of its training set; None if it has lost it."""
    path = directory / FILE_NAME
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_bytes())
        missing = {"coordinates", "extent", "forces", "builtin", "files"} - set(content)
        if missing:
            raise ValueError(f"it lacks {', '.join(sorted(missing))}")
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{path} cannot be used ({type(error).__name__}: {error}); restore it from a copy of "
            "the run, or train again"
        ) from error
    return content


def data_files(loaders: Loaders, *, test: bool = False) -> dict[str, str]:
    """Return the files that training reads with their size and a hash of parts of them.

    Half a megabyte of each is read, so that it stays cheap for large files. Times of change are
    left out: a copy of the data is the same data. Test cases are no part of training, unless the
    weights are chosen by them: `test`.
    """
    used = [loaders.train, loaders.val, loaders.test if test else None]
    readers = [loader.dataset.reader for loader in used if loader is not None]
    sources = dict.fromkeys(source for reader in readers for source in reader.source_files())
    files: dict[Path, None] = {}
    for source in sources:  # a file, or the folder of one, such as a zarr store
        found = sorted(source.rglob("*")) if source.is_dir() else [source]
        files |= dict.fromkeys(
            file.absolute() for file in found if file.is_file() or file == source
        )
    in_memory = {name: digest for r in readers for name, digest in r.source_hashes().items()}
    if not files:
        return in_memory
    base = os.path.commonpath([file.parent for file in files])
    return in_memory | {os.path.relpath(file, base): _partial_hash(file) for file in files}


def _partial_hash(path: Path) -> str:
    """Return the size and a hash of pieces that are spread evenly; small files are read whole."""
    size = path.stat().st_size
    gap = max(_PIECE, (size - _HEADER - _PIECE) // (_PIECES - 1))
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for start in range(_HEADER, size, gap):
            file.seek(start)
            digest.update(file.read(_PIECE))
    return f"{size}:{digest.hexdigest()[:32]}"


def holds_training_files(root: Path, files: Mapping[str, str]) -> bool:
    """Return whether a directory holds files of training, of which three are looked for by name."""
    names = list(files)
    asked = {names[i] for i in (0, len(names) // 2, -1)} if names else set()
    return any(
        path.is_file() and _partial_hash(path) == files[name]
        for name in sorted(asked)
        for path in root.rglob(Path(name).name)
    )


def check_same_data(stored: Mapping[str, str], found: Mapping[str, str], directory: Path) -> None:
    """Raise ValueError if files of the data are not those that the run began with."""
    differences = [
        f"{name} {'changed' if name in found else 'is gone'}"
        for name, value in stored.items()
        if found.get(name) != value
    ] + [f"{name} is new" for name in found if name not in stored]
    if differences:
        more = f" and {len(differences) - 5} more" if len(differences) > 5 else ""
        raise ValueError(
            f"the data is not what {directory} began with: {', '.join(differences[:5])}{more}. "
            "Restore them to resume, choose another run_dir, or set restart=true to begin again"
        )
