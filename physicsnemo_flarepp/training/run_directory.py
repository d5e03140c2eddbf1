"""The directory of a run: whose it is, and what it is begun and ended with."""

import fcntl
import json
import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from omegaconf import DictConfig, OmegaConf
from physicsnemo.core import Module

from ..datapipes.channels import FILE_NAME as CHANNELS
from ..datapipes.channels import Channels
from ..datapipes.normalization import Normalizer
from ..files import fingerprint, make_folder, replace_text, temporaries
from ..texts import csv_text
from .checkpoints.model_files import save_module
from .checkpoints.store import CheckpointStore
from .config import RunConfig
from .metrics import FILE_NAME as METRICS
from .metrics import MetricsLog, read_metrics
from .run_manifest import FILE_NAME as MANIFEST
from .run_manifest import RunManifest, package_versions, read_run_manifest
from .training_set import FILE_NAME as TRAINING_SET

CONFIG, NORMALIZER, MODEL = "config.yaml", "normalizer.safetensors", "model.mdlus"
SELECTED = "selected.json"
# What a run that is complete writes again when it is called again.
RESULT = (MODEL, SELECTED)
# What a resumed run and predictions depend on, besides the weights.
SETTINGS = (CONFIG, CHANNELS, NORMALIZER)
_FILES = (
    CHANNELS,
    "command.txt",
    CONFIG,
    "errors.csv",
    "evaluation.csv",
    METRICS,
    MODEL,
    NORMALIZER,
    SELECTED,
    "table.md",
    TRAINING_SET,
    "versions.json",
)
_FOLDERS = ("checkpoints", "figures", "predictions", "tensorboard")
_RESULTS = (MODEL, SELECTED, "errors.csv", "table.md", "evaluation.csv", "figures", "predictions")


class RunDirectoryLost(RuntimeError):
    """The directory was removed while a run was writing to it."""


class RunDirectory:
    """Writes what a run leaves behind; one process of a run has one.

    Parameters
    ----------
    path : str or Path
        The directory.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = RunDirectory(folder)
    ...     run.log([{"kind": "step", "step": step} for step in (1, 2, 3)])
    ...     run.forget_after(step=2)
    ...     [row["step"] for row in read_metrics(folder)]
    [1, 2]
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._manifest = RunManifest(self.path)
        self.metrics = MetricsLog(self.path)
        self._lock: TextIO | None = None

    def __enter__(self) -> "RunDirectory":
        return self

    def __exit__(self, *_: object) -> None:
        """Let other processes in."""
        if self._lock is not None:
            self._lock.close()

    @property
    def checkpoints(self) -> Path:
        """Where the checkpoints are."""
        return self.path / "checkpoints"

    # Whose directory it is -------------------------------------------------------------------

    def lock(self) -> str | None:
        """Keep other processes out until this one ends; say so if one is in already."""
        make_folder(self.path)
        if (self.path / ".lock").is_symlink():  # opening it would empty a file elsewhere
            return f"{self.path / '.lock'} is a link, which no run makes; remove it"
        self._lock = open(self.path / ".lock", "w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return f"another process trains in {self.path}; wait for it, or choose another run_dir"
        for name in (MANIFEST, *_FILES):  # of processes that were killed while writing
            for path in temporaries(self.path / name):
                path.unlink()
        return None

    def check_present(self) -> None:
        """Raise RunDirectoryLost if the directory that was locked is not there any more."""
        try:
            found = os.stat(self.path / ".lock")
        except FileNotFoundError:
            found = None
        if found is None or not os.path.samestat(found, os.fstat(self._lock.fileno())):
            raise RunDirectoryLost(
                f"{self.path} was removed or replaced while the run was training in it; what it "
                "held is lost. Start again, and keep the directory until the run ends"
            )

    def _found_run(self) -> RunManifest | None:
        """Return the manifest of the run that was begun here, None if none was.

        A run of an older version has none, and that of another may be damaged: such a run is
        known by its config, and taken for one with results.
        """
        try:
            manifest = read_run_manifest(self.path)
        except ValueError:
            return RunManifest(self.path, written=_FILES, saved=True)
        if manifest is None and _is_run_config(self.path / CONFIG):
            return RunManifest(self.path, written=_FILES)
        return manifest

    def obstacle(self, restart: bool) -> str | None:
        """Say why no run can begin here; None if nothing of value would be lost.

        A run that was killed before its first checkpoint has nothing of value. Files of anybody
        else are never touched, whatever `restart` says.
        """
        run = self._found_run()
        if run is None:
            foreign = [name for name in (*_FILES, *_FOLDERS) if (self.path / name).exists()]
            if foreign:
                return (
                    f"{self.path} holds {', '.join(foreign)}, but they are not of a run; choose "
                    "another run_dir"
                )
            return None
        if restart:
            return None
        results = [name for name in _RESULTS if _holds_something(self.path / name)]
        results += [path.name for path in self.checkpoints.glob("step_*")]
        if results:
            return (
                f"{self.path} holds {', '.join(results)} of a run, but no checkpoint that can be "
                "used; choose another run_dir, or set restart=true to delete that run"
            )
        if run.saved:
            return (
                f"{self.path} holds the settings and metrics of a run whose checkpoints were "
                "removed; choose another run_dir, or set restart=true to delete that run"
            )
        return None

    def check_sound(self) -> None:
        """Raise ValueError if what a resumed run depends on is not as it was written.

        A run that has no manifest, as those of older versions, gets one of its files as they are.
        """
        manifest = read_run_manifest(self.path)
        if manifest is None:
            present = [name for name in SETTINGS if (self.path / name).is_file()]
            files = {name: fingerprint(self.path / name) for name in present}
            manifest = RunManifest(self.path, files, _FILES, saved=True).write()
        extra = [name for name in manifest.files if name not in (*SETTINGS, *RESULT)]
        manifest.verify([*SETTINGS, *extra])
        self._manifest = manifest

    def clear(self) -> None:
        """Delete the files of an earlier run, and only those: nothing where no run was begun.

        The manifest stays until :meth:`begin` replaces it, so that after a kill in here the
        directory is still known as that of a run.
        """
        run = self._found_run()
        if run is None:
            return
        if not (self.path / MANIFEST).exists():
            run.write()
        # First: a run without checkpoints is begun again, one without settings cannot go on.
        CheckpointStore(self.checkpoints).clear()
        for path in run.own_paths():
            path.unlink()
        for name in _FOLDERS:
            with suppress(OSError):  # not there, or it holds files of somebody else
                (self.path / name).rmdir()

    # Writing ---------------------------------------------------------------------------------

    def begin(
        self,
        cfg: DictConfig,
        normalizer: Normalizer,
        channels: Channels,
        training_set: Mapping[str, Any],
    ) -> None:
        """Record the settings of a run; the disk has all of them when this returns.

        The manifest comes first, with the names of what follows: a run that is killed here can
        be told from files of somebody else.
        """
        make_folder(self.path)
        self._manifest = RunManifest(self.path, written=_FILES).write()
        versions = json.dumps(package_versions(), indent=2)
        replace_text(self.path / "versions.json", versions + "\n")
        replace_text(self.path / "command.txt", shlex.join(sys.argv) + "\n")
        training_text = json.dumps(training_set, indent=2) + "\n"
        files = {
            CONFIG: replace_text(self.path / CONFIG, OmegaConf.to_yaml(cfg)),
            CHANNELS: channels.save(self.path),
            NORMALIZER: normalizer.save(self.path / NORMALIZER),
            TRAINING_SET: replace_text(self.path / TRAINING_SET, training_text),
        }
        self._manifest = replace(self._manifest, files=files).write()

    def mark_saved(self) -> None:
        """Note that the run has a checkpoint: from now on it is of value."""
        if not self._manifest.saved:
            self._manifest = replace(self._manifest, saved=True).write()

    def forget_after(self, step: int, *, result: bool = False) -> None:
        """Drop metrics of steps that a resumed run does again, and lines that are no metrics.

        With `result` the row of the result, too: a run that is prolonged will have another.
        """
        if self.metrics.path.exists():
            kept = [row for row in read_metrics(self.path) if row["step"] <= step]
            if result:
                kept = [row for row in kept if row["kind"] != "result"]
            self.metrics.replace(kept, step + 1)

    def log(self, rows: Sequence[Mapping[str, object]]) -> None:
        """Append `rows` to the metrics and their numbers to TensorBoard.

        Raises OSError where the disk is full; the rows are then written with the next ones.
        """
        self.metrics.append(rows)
        if self.metrics.unshown:
            board = str(self.metrics.board.path.relative_to(self.path))
            if board not in self._manifest.written:  # or a restart would leave it
                self._manifest = self._manifest.with_written([board]).write()
            self.metrics.show()

    def write_results(
        self,
        model: Module,
        case_ids: Sequence[str],
        fields: Sequence[str],
        errors: Iterable[Sequence[float]],
        table: str,
        selection: Mapping[str, Any],
    ) -> None:
        """Write the model, how it was chosen, the errors of every case and field, and their table.

        The manifest loses the model before it is replaced: what is there is the model of the
        manifest, or none.
        """
        self.check_present()
        files = {n: entry for n, entry in self._manifest.files.items() if n not in RESULT}
        self._manifest = replace(self._manifest, files=files).write()
        written = save_module(model, self.path / MODEL)
        rows = ([case, *row] for case, row in zip(case_ids, errors, strict=True))
        replace_text(self.path / "errors.csv", csv_text([["case", *fields], *rows]))
        replace_text(self.path / "table.md", table)
        chosen = json.dumps(dict(selection), indent=2) + "\n"
        result = {MODEL: written, SELECTED: replace_text(self.path / SELECTED, chosen)}
        self._manifest = replace(self._manifest, files={**files, **result}).write()


def _holds_something(path: Path) -> bool:
    return any(path.iterdir()) if path.is_dir() else path.exists()


def _is_run_config(path: Path) -> bool:
    """Tell whether a run wrote this config, even if a kill or a full disk has cut it."""
    if not path.is_file():
        return False
    text = path.read_text(errors="replace")
    keys = set(re.findall(r"^(\w+):", text, re.MULTILINE))
    if {"run_dir", "training"} <= keys:
        return True
    return not text.endswith("\n") and keys <= set(RunConfig.__dataclass_fields__)
