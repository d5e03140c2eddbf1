"""Checkpoints of a run: whole or absent, verified before use, the newest few and the best kept."""

import math
import os
import random
import re
import secrets
import shutil
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
import torch.distributed as dist
from physicsnemo.core import Module

from .. import __version__, files
from ..files import Fingerprint, explained, make_folder, sync_folder, write_durably
from .model_files import load_plain, write_module

TRAINING, MODEL, MANIFEST = "training.pt", "model.mdlus", "manifest.json"
_FACTS = {"step": int, "epoch": int, "metric": (int, float, type(None))}
_FOLDER = re.compile(r"step_(\d{8,})")
# Hidden folders: being written, moved aside while its successor takes the name, being deleted.
_SAVING, _ASIDE, _DELETING = ".saving_", ".aside_", ".deleting_"
_PLAIN = (int, float, str, bool, type(None), torch.Tensor, torch.nn.Parameter)


@dataclass(frozen=True)
class Manifest:
    """What the JSON file `path` says of the files beside it, and facts, under its own checksum."""

    path: Path
    files: Mapping[str, Fingerprint] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path, facts: Mapping[str, type | tuple[type, ...]]) -> Self:
        """Read a manifest with facts of these types; anything wrong is a ValueError."""
        try:
            content = files.read_checked_json(path)
            listed = {name: Fingerprint(**entry) for name, entry in content["files"].items()}
            files.check_inside(listed)
            found = {name: content[name] for name in facts}
            for name, kind in facts.items():
                if not isinstance(found[name], kind):
                    raise ValueError(f"its {name} is {found[name]!r}")
        except FileNotFoundError as error:
            raise ValueError(f"{path} is missing") from error
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} cannot be used: {type(error).__name__}: {error}") from error
        return cls(path, listed, found)

    def write(self) -> Self:
        """Bring the manifest to the disk."""
        content = {
            "files": {name: entry._asdict() for name, entry in self.files.items()},
            **self.facts,
            "package_version": __version__,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        files.replace_text(self.path, files.checked_json(content))
        return self

    def rewrite(
        self, add: Mapping[str, Fingerprint] | None = None, drop: Iterable[str] = (), **facts: Any
    ) -> Self:
        """Bring it to the disk without the files `drop`, with those of `add` and with new facts."""
        kept = {name: entry for name, entry in self.files.items() if name not in set(drop)}
        return replace(self, files=kept | dict(add or {}), facts={**self.facts, **facts}).write()

    def verify(self, names: Iterable[str] | None = None) -> None:
        """Raise ValueError if one of these files, by default any, is not as it was written."""
        for name in self.files if names is None else names:
            path = self.path.parent / name
            if name not in self.files:
                raise ValueError(f"{path} is not in {self.path.name}")
            files.verify_file(path, self.files[name])


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint folder, ``step_00000120``, with its validation error if it was evaluated."""

    path: Path
    step: int
    epoch: int
    metric: float | None
    manifest: Manifest

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the manifest of a folder; anything wrong with it is a ValueError."""
        manifest = Manifest.read(path / MANIFEST, _FACTS)
        if set(manifest.files) != {TRAINING, MODEL}:
            raise ValueError(
                f"{manifest.path} lists {sorted(manifest.files)}, expected {MODEL} and {TRAINING}"
            )
        if manifest.facts["step"] != _step(path):
            raise ValueError(f"{manifest.path} is of step {manifest.facts['step']}")
        return cls(path, **manifest.facts, manifest=manifest)


def load_training_state(
    checkpoint: Checkpoint, map_location: str | torch.device | None = "cpu"
) -> dict[str, Any]:
    """Load what was saved as ``state``, after its checksum, without running code from the file.

    Generator states must stay on the CPU, and optimizers and models copy from there: "cpu" is
    the `map_location` that always works.
    """
    checkpoint.manifest.verify([TRAINING])
    path = checkpoint.path / TRAINING
    return load_plain(path, str(path), map_location)


class CheckpointStore:
    """The checkpoints of one run, in a folder that one process writes and any may read.

    A checkpoint is written beside, brought to the disk and renamed, so that a kill, an interrupt
    or a full disk at any moment leaves those before it as they were. The `keep` newest stay, and
    the one with the lowest metric. The folder is made at the first save.
    """

    def __init__(self, directory: str | os.PathLike, keep: int = 3):
        if keep < 1:
            raise ValueError(f"keep is {keep}, expected at least 1")
        self.directory, self.keep = Path(directory), keep
        self._damaged: set[Path] = set()

    def save(
        self,
        step: int,
        state: dict[str, Any],
        model: Module,
        *,
        epoch: int,
        metric: float | None = None,
    ) -> Path:
        """Write a checkpoint, replacing one of the same step, and remove those not kept.

        `state` holds tensors, numbers, strings, None, lists, tuples and dicts; `model` is the bare
        model with the weights to evaluate. The best has the lowest `metric`; one that is not
        finite is stored as none. OSError names the path and the free space.
        """
        _check_plain(state, "state")
        if metric is not None:
            metric = float(metric) if math.isfinite(metric) else None
        target = self.directory / f"step_{step:08d}"
        draft = self.directory / f"{_SAVING}{target.name}_{secrets.token_hex(4)}"
        with explained(target):
            make_folder(self.directory)
            self.clean_up()
            try:
                draft.mkdir()
                written = {
                    TRAINING: write_durably(draft / TRAINING, lambda sink: torch.save(state, sink)),
                    MODEL: write_durably(draft / MODEL, lambda sink: write_module(model, sink)),
                }
                facts = {"step": step, "epoch": epoch, "metric": metric}
                Manifest(draft / MANIFEST, written, facts).write()
                sync_folder(draft)
                self._publish(draft, target)
            except BaseException:
                shutil.rmtree(draft, ignore_errors=True)
                raise
        self._damaged.discard(target)
        self._retain(step)
        return target

    def entries(self, warn: Callable[[str], None] = lambda message: None) -> list[Checkpoint]:
        """List the checkpoints with a readable manifest, newest first, files not yet verified.

        `warn` gets one message per checkpoint that was passed over, here and below.
        """
        found = (self._read(path, warn) for path in self._folders())
        return [checkpoint for checkpoint in found if checkpoint is not None]

    def newest_sound(self, warn: Callable[[str], None]) -> Checkpoint | None:
        """Return the newest checkpoint whose files are as written; None if there is none."""
        found = (self._read(path, warn, whole=True) for path in self._folders())
        return next((checkpoint for checkpoint in found if checkpoint is not None), None)

    def best(self, warn: Callable[[str], None] = lambda message: None) -> Checkpoint | None:
        """Return the checkpoint with the lowest metric, the newest of equals; None without one."""
        return _lowest(self.entries(warn))

    def _read(
        self, path: Path, warn: Callable[[str], None], whole: bool = False
    ) -> Checkpoint | None:
        """Return the checkpoint of a folder, None if its manifest (`whole`: a file) is damaged."""
        try:
            checkpoint = Checkpoint.read(path)
            if whole:
                checkpoint.manifest.verify()
            return checkpoint
        except ValueError as error:
            if whole:
                self._damaged.add(path)
            warn(f"checkpoint {path} is damaged and was skipped: {error}")
            return None

    def _folders(self) -> list[Path]:
        """List the checkpoint folders, newest first."""
        # A folder that was moved aside counts where a kill kept its successor from taking its name.
        found = {}
        for path in self.directory.iterdir() if self.directory.is_dir() else ():
            name = path.name.removeprefix(_ASIDE)
            match = _FOLDER.fullmatch(name)
            if match and (name == path.name or not (self.directory / name).exists()):
                found[int(match[1])] = path
        return [path for _, path in sorted(found.items(), reverse=True)]

    def _publish(self, draft: Path, target: Path) -> None:
        aside = target.with_name(_ASIDE + target.name)
        if target.exists():
            target.rename(aside)
        try:
            draft.rename(target)
            sync_folder(self.directory)
        except BaseException:
            if aside.exists() and not target.exists():
                aside.rename(target)
            raise
        if aside.exists():
            self._delete(aside)

    def clean_up(self) -> None:
        """Remove what killed processes left, and give a folder moved aside its name back."""
        for path in list(self.directory.iterdir()) if self.directory.is_dir() else ():
            if path.name.startswith((_SAVING, _DELETING)):
                _remove(path)
            elif path.name.startswith(_ASIDE):
                target = path.with_name(path.name.removeprefix(_ASIDE))
                if target.exists():
                    self._delete(path)
                else:
                    path.rename(target)

    def clear(self) -> None:
        """Delete all checkpoints; files of others, inside their folders too, stay."""
        self.clean_up()
        for path in self._folders():
            if path.is_symlink():  # what it leads to is not of this run
                path.unlink()
                continue
            # Without its manifest no half of a checkpoint can be taken for a whole one.
            for name in (MANIFEST, TRAINING, MODEL):
                (path / name).unlink(missing_ok=True)
            if not any(path.iterdir()):
                path.rmdir()

    def _retain(self, saved: int) -> None:
        """Keep the newest up to the step just saved, and the best."""
        # Later ones could not be resumed from; they are left until the run passes them. Those
        # found damaged take no place.
        sound = [entry for entry in self.entries() if entry.path not in self._damaged]
        kept = {entry.path for entry in [e for e in sound if e.step <= saved][: self.keep]}
        if (best := _lowest(sound)) is not None:
            kept.add(best.path)
        for path in self._folders():
            if path not in kept and _step(path) <= saved:
                self._delete(path)

    def _delete(self, path: Path) -> None:
        """Delete a checkpoint; it loses its name first, so that no half of one can be found."""
        name = path.name.removeprefix(_ASIDE)
        hidden = self.directory / f"{_DELETING}{name}_{secrets.token_hex(4)}"
        try:
            path.rename(hidden)
        except OSError as error:
            warnings.warn(f"cannot remove the old checkpoint {path}: {error}", stacklevel=2)
        else:
            _remove(hidden)


def _lowest(entries: Iterable[Checkpoint]) -> Checkpoint | None:
    rated = [entry for entry in entries if entry.metric is not None]
    return min(rated, key=lambda entry: entry.metric, default=None)


def _step(path: Path) -> int:
    return int(_FOLDER.search(path.name)[1])


def _remove(path: Path) -> None:
    """Delete a hidden folder; what cannot be deleted now is tried again at the next save."""
    try:
        shutil.rmtree(path)
    except OSError as error:
        warnings.warn(f"cannot remove {path}: {error}; the next save tries again", stacklevel=2)


def _check_plain(value: Any, name: str) -> None:
    """Refuse at once what ``weights_only`` loading would refuse when it is too late."""
    if type(value) in (dict, OrderedDict):
        for key, item in value.items():
            _check_plain(key, f"key {key!r} of {name}")
            _check_plain(item, f"{name}[{key!r}]")
    elif type(value) in (list, tuple):
        for index, item in enumerate(value):
            _check_plain(item, f"{name}[{index}]")
    elif type(value) not in _PLAIN:
        raise TypeError(
            f"{name} is a {type(value).__module__}.{type(value).__qualname__}, which a checkpoint "
            "cannot hold; store tensors, numbers, strings, None, lists, tuples and dicts"
        )


def capture_random_state() -> dict[str, Any]:
    """Return the state of this process's generators: python, numpy, torch, and CUDA if in use."""
    version, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": {"version": version, "words": torch.tensor(words), "gauss": gauss},
        "numpy": {
            "kind": str(kind),
            "keys": torch.from_numpy(keys.astype(np.int64)),
            "position": int(position),
            "has_gauss": int(has_gauss),
            "cached_gaussian": float(cached),
        },
        "torch": torch.get_rng_state(),
        # A CUDA context costs memory, so none is made only to look at its generator.
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],
    }


def restore_random_state(state: dict[str, Any]) -> None:
    """Set this process's generators to a captured state, those of CUDA on the devices here."""
    python, legacy = state["python"], dict(state["numpy"])
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    legacy["keys"] = legacy["keys"].cpu().numpy().astype(np.uint32)
    names = ("kind", "keys", "position", "has_gauss", "cached_gaussian")
    np.random.set_state(tuple(legacy[name] for name in names))
    torch.set_rng_state(state["torch"].cpu())
    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if state["cuda"] and devices != len(state["cuda"]):
        warnings.warn(
            f"the random state is of {len(state['cuda'])} CUDA devices, {devices} are here: draws "
            "on other devices will not be those of the run that saved it",
            stacklevel=2,
        )
    for device, cuda_state in enumerate(state["cuda"][:devices]):
        torch.cuda.set_rng_state(cuda_state.cpu(), device)


def gather_random_states() -> list[dict[str, Any]]:
    """Return the states of all ranks in rank order, on every rank; one rank writes them."""
    states = [capture_random_state()]
    if _size() > 1:
        own, states = states[0], [{}] * _size()
        dist.all_gather_object(states, own)
    return states


def restore_own_random_state(states: list[dict[str, Any]]) -> None:
    """Set this rank's generators to its entry; ValueError if the number of ranks differs."""
    if len(states) != _size():
        raise ValueError(
            f"the checkpoint holds the random states of {len(states)} ranks, but {_size()} are "
            f"running; start {len(states)} ranks, or a new run in another run_dir"
        )
    restore_random_state(states[dist.get_rank() if _size() > 1 else 0])


def _size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
