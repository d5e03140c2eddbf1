"""The directory of a run: whose it is, and what it is begun and ended with."""

import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from importlib import metadata
from pathlib import Path
from typing import IO, Any

import torch
from omegaconf import DictConfig, OmegaConf
from physicsnemo.core import Module

from ..datapipes.channels import FILE_NAME as CHANNELS
from ..datapipes.channels import Channels
from ..datapipes.normalization import Normalizer
from ..files import Fingerprint, exclusive, make_folder, replace_text, temporaries
from ..texts import csv_text
from .checkpoints import CheckpointStore
from .manifest import Manifest
from .metrics import BOARD, OWN_EVENTS, MetricsLog, read_metrics
from .metrics import FILE_NAME as METRICS
from .model_files import save_module
from .training_set import FILE_NAME as TRAINING_SET

MANIFEST = "run_manifest.json"
CONFIG, NORMALIZER, MODEL = "config.yaml", "normalizer.safetensors", "model.mdlus"
SELECTED = "selected.json"
# Bounds of the errors of a run, and of an ensemble of which it is the first.
BOUNDS, ENSEMBLE_BOUNDS = "bounds.safetensors", "ensemble_bounds.safetensors"
# What a run that is complete writes again when it is called again.
RESULT = (MODEL, SELECTED, BOUNDS, ENSEMBLE_BOUNDS)
# What a resumed run and predictions depend on, besides the weights.
SETTINGS = (CONFIG, CHANNELS, NORMALIZER, TRAINING_SET)
_TABLES = ("errors.csv", "table.md", "evaluation.csv", "report.html")
_RESULTS = (*RESULT, *_TABLES, "figures", "predictions")
_FILES = (*SETTINGS, METRICS, *RESULT, *_TABLES, "command.txt", "versions.json")
_FOLDERS = ("checkpoints", "figures", "predictions", BOARD)
_PACKAGES = (
    "physicsnemo-flarepp",
    "nvidia-physicsnemo",
    "torch",
    "numpy",
    "scipy",
    "hydra-core",
    "tensordict",
    "pyvista",
    "vtk",
)


def read_run_manifest(directory: Path) -> Manifest | None:
    """Return the manifest of a run; None if there is none, ValueError if it is damaged.

    Its ``files`` are what predictions depend on. The fact ``written`` lists the files of the run,
    of which not all need be there (checkpoints and event files are known by their names), and
    ``saved`` says whether the run has had a checkpoint.
    """
    if not (directory / MANIFEST).exists():
        return None
    try:
        return Manifest.read(directory / MANIFEST, {"written": list, "saved": bool})
    except ValueError as error:
        raise ValueError(
            f"{error}. Restore it from a copy of the run; if you know that the other files are as "
            "training left them, delete it to load them without verification"
        ) from error


def verify_run(manifest: Manifest, names: Iterable[str]) -> None:
    """Raise ValueError, with what to do, if one of these files is not as it was written."""
    try:
        manifest.verify(names)
    except ValueError as error:
        raise ValueError(
            f"{error}. What this run predicts depends on it: restore it from a copy of the run, or "
            "train again (restart=true)"
        ) from error


def record_written(directory: Path, paths: Iterable[Path]) -> None:
    """Note files in a run directory as the run's own, so that ``restart=true`` removes them."""
    manifest = read_run_manifest(directory)
    names = [str(path.relative_to(directory)) for path in paths if path.is_file()]
    if manifest is not None and not set(names) <= set(manifest.facts["written"]):
        written = dict.fromkeys([*manifest.facts["written"], *names])
        manifest.with_facts({"written": list(written)}).write()


def add_result(directory: Path, name: str, write: Callable[[Path], Fingerprint]) -> None:
    """Write a file of ``RESULT`` under the manifest, which names the new file, the old or none."""
    manifest = read_run_manifest(directory)
    if manifest is not None:
        manifest = manifest.with_files({}, without=[name]).write()
    written = write(directory / name)
    if manifest is not None:
        manifest.with_files({name: written}).write()
        record_written(directory, [directory / name])


class RunDirectoryLost(RuntimeError):
    """The directory was removed while a run was writing to it."""


class RunDirectory:
    """Writes what a run leaves behind; one process of a run has one."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.metrics = MetricsLog(self.path)
        self._manifest = self._new_manifest()
        self._held = ExitStack()
        self._lock: IO[bytes] | None = None

    def __enter__(self) -> "RunDirectory":
        return self

    def __exit__(self, *_: object) -> None:
        """Let other processes in."""
        self.metrics.close()
        held = self._lock is not None and self.path.is_dir()
        if held and [path.name for path in self.path.iterdir()] == [".lock"]:
            (self.path / ".lock").unlink()  # a run that was refused leaves nothing
            self.path.rmdir()
        self._held.close()

    @property
    def checkpoints(self) -> Path:
        """Where the checkpoints are."""
        return self.path / "checkpoints"

    def _new_manifest(self, *, saved: bool = False) -> Manifest:
        return Manifest(self.path / MANIFEST, facts={"written": list(_FILES), "saved": saved})

    # Whose directory it is -------------------------------------------------------------------

    def lock(self) -> None:
        """Keep other processes out until this one ends; FileExistsError if one is in already."""
        make_folder(self.path)
        lock = self.path / ".lock"
        if lock.is_symlink():
            raise FileExistsError(f"{lock} is a link, which no run makes; remove it")

        def refuse() -> None:
            raise FileExistsError(
                f"another process trains in {self.path}; wait for it, or choose another run_dir"
            )

        self._lock = self._held.enter_context(exclusive(lock, refuse))
        for name in (MANIFEST, *_FILES):  # of processes that were killed while writing
            for path in temporaries(self.path / name):
                path.unlink()

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

    def _found_run(self) -> Manifest | None:
        """Return the manifest of the run that was begun here; a damaged one is taken for all."""
        try:
            return read_run_manifest(self.path)
        except ValueError:
            return self._new_manifest(saved=True)

    def check_free(self, restart: bool) -> None:
        """Raise FileExistsError unless a run can begin here without a loss.

        A run that was killed before its first checkpoint has nothing of value. Files of anybody
        else are never touched, whatever `restart` says.
        """
        run = self._found_run()
        if run is None:
            foreign = [name for name in (*_FILES, *_FOLDERS) if (self.path / name).exists()]
            if foreign:
                raise FileExistsError(
                    f"{self.path} holds {', '.join(foreign)}, but no {MANIFEST} that says they are "
                    "of a run; choose another run_dir"
                )
            return
        if restart:
            return
        results = [name for name in _RESULTS if _holds_something(self.path / name)]
        results += [path.name for path in self.checkpoints.glob("step_*")]
        if results:
            found = f"{', '.join(results)} of a run, but no checkpoint that can be used"
        elif run.facts["saved"]:
            found = "the settings and metrics of a run whose checkpoints were removed"
        else:
            return
        raise FileExistsError(
            f"{self.path} holds {found}; choose another run_dir, or set restart=true to delete "
            "that run"
        )

    def check_sound(self) -> None:
        """Raise ValueError if what a resumed run depends on is not as it was written."""
        manifest = read_run_manifest(self.path)
        if manifest is None:
            raise ValueError(
                f"{self.path} holds checkpoints, but no {MANIFEST}: restore it from a copy of the "
                "run, or choose another run_dir"
            )
        verify_run(manifest, SETTINGS)
        self._manifest = manifest

    def clear(self) -> None:
        """Delete the files of an earlier run, and only those: nothing where no run was begun.

        The manifest stays until :meth:`begin` replaces it, so that after a kill in here the
        directory is still known as that of a run.
        """
        run = self._found_run()
        if run is None:
            return
        # First: a run without checkpoints is begun again, one without settings cannot be resumed.
        CheckpointStore(self.checkpoints).clear()
        for path in self._own_files(run):
            path.unlink()
        for name in _FOLDERS:
            with suppress(OSError):  # not there, or it holds files of somebody else
                (self.path / name).rmdir()

    def _own_files(self, run: Manifest) -> list[Path]:
        """Return the files of the run that are there; never one outside of its directory."""
        paths = [self.path / str(name) for name in run.facts["written"]]
        paths += (self.path / BOARD).glob(OWN_EVENTS)
        inside = self.path.resolve()
        return [
            path
            for path in paths
            if path.parent.resolve().is_relative_to(inside)
            and (path.is_symlink() or path.is_file())
        ]

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
        self._manifest = self._new_manifest().write()
        replace_text(self.path / "versions.json", _json(_package_versions()))
        replace_text(self.path / "command.txt", shlex.join(sys.argv) + "\n")
        files = {
            CONFIG: replace_text(self.path / CONFIG, OmegaConf.to_yaml(cfg)),
            CHANNELS: channels.save(self.path),
            NORMALIZER: normalizer.save(self.path / NORMALIZER),
            TRAINING_SET: replace_text(self.path / TRAINING_SET, _json(training_set)),
        }
        self._manifest = self._manifest.with_files(files).write()

    def mark_saved(self) -> None:
        """Note that the run has a checkpoint: from now on it is of value."""
        if not self._manifest.facts["saved"]:
            self._manifest = self._manifest.with_facts({"saved": True}).write()

    def forget_after(self, step: int, *, result: bool = False) -> None:
        """Drop metrics of steps that a resumed run repeats, and lines that are not metrics.

        With `result` the row of the result, too: a run that is prolonged will have another.
        """
        if self.metrics.path.exists():
            kept = [row for row in read_metrics(self.path) if row["step"] <= step]
            if result:
                kept = [row for row in kept if row["kind"] != "result"]
            self.metrics.replace(kept, step + 1)

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
        self._manifest = self._manifest.with_files({}, without=RESULT).write()
        written = save_module(model, self.path / MODEL)
        rows = ([case, *row] for case, row in zip(case_ids, errors, strict=True))
        replace_text(self.path / "errors.csv", csv_text([["case", *fields], *rows]))
        replace_text(self.path / "table.md", table)
        chosen = replace_text(self.path / SELECTED, _json(selection))
        self._manifest = self._manifest.with_files({MODEL: written, SELECTED: chosen}).write()


def _json(content: Mapping[str, Any]) -> str:
    return json.dumps(dict(content), indent=2) + "\n"


def _holds_something(path: Path) -> bool:
    return any(path.iterdir()) if path.is_dir() else path.exists()


def _package_versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    versions["commit"] = _commit()
    versions["cuda"] = torch.version.cuda
    versions["device"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    versions["platform"] = platform.platform()
    return versions


def _commit() -> str | None:
    """Return the commit of the checkout that this package runs from; None if it is installed."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists() or shutil.which("git") is None:
        return None
    asked = ["git", "-C", str(root), "rev-parse", "HEAD"]
    return subprocess.run(asked, capture_output=True, text=True).stdout.strip() or None
