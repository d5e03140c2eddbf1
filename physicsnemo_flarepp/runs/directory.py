"""The directory of a run: whose it is, what it begins and ends with, and its metrics."""

import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from importlib import metadata
from pathlib import Path
from typing import IO, Any

import torch
from omegaconf import DictConfig, OmegaConf
from physicsnemo.core import Module
from torch.utils.tensorboard import SummaryWriter

from .. import files
from ..datapipes.channels import FILE_NAME as CHANNELS
from ..datapipes.channels import Channels
from ..datapipes.normalization import Normalizer
from ..files import Fingerprint, append_whole, exclusive, make_folder, replace_text
from ..texts import csv_text
from .checkpoints import CheckpointStore, Manifest
from .model_files import save_module
from .training_set import FILE_NAME as TRAINING_SET

MANIFEST, METRICS, BOARD = "run_manifest.json", "metrics.jsonl", "tensorboard"
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
# By its end a restart knows which of TensorBoard's files are the run's.
_EVENTS_END = ".flarepp"
_ALL = 0  # the step before which TensorBoard keeps nothing: all rows are shown anew
_PACKAGES = (
    "physicsnemo-flarepp nvidia-physicsnemo torch numpy scipy hydra-core tensordict pyvista vtk"
)
Row = Mapping[str, object]


def read_metrics(directory: str | Path) -> list[dict]:
    """Return the rows of the ``metrics.jsonl`` of a run directory in the order of steps.

    A step that was repeated after a kill counts once, as it was done last. A last line cut by a
    kill is left out; so are other lines that are not rows, with a warning.
    """
    path = Path(directory) / METRICS
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; give the directory of a training run")
    rows: dict[tuple[int, str, str], dict] = {}
    strange = []
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            is_row = type(row["step"]) is int and type(row["kind"]) is str
        except (ValueError, TypeError, KeyError, RecursionError):
            is_row = False
        if is_row:
            rows[row["step"], row["kind"], str(row.get("split"))] = row
        elif number < len(lines):
            strange.append(str(number))
    if strange:
        warnings.warn(
            f"{path}: line {', '.join(strange[:5])}{' ...' if len(strange) > 5 else ''} of "
            f"{len(lines) - 1} is not a row of metrics and is left out",
            stacklevel=2,
        )
    return sorted(rows.values(), key=lambda row: row["step"])


class MetricsLog:
    """Appends rows to the files of a run; rows that a full disk refuses wait for the next call."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / METRICS
        self.waiting: list[Row] = []
        self._board: SummaryWriter | None = None
        self._next_step: int | None = None

    def append(self, rows: Sequence[Row]) -> None:
        """Append `rows` to the metrics, then to TensorBoard; OSError where the disk is full."""
        self.waiting += rows
        if self.waiting:
            append_whole(self.path, _lines(self.waiting).encode())
        written, self.waiting = self.waiting, []
        if written or self._next_step == _ALL:
            self._show(written)

    def _show(self, rows: Sequence[Row]) -> None:
        """Hand TensorBoard the numbers of rows that are written."""
        # The first failed write ends the thread of a SummaryWriter for good, and which of the rows
        # before it are in its file is not known: its successor gets all rows anew.
        try:
            if self._board is None:
                folder, first = self.path.parent / BOARD, self._next_step
                make_folder(folder)
                self._board = SummaryWriter(
                    str(folder), purge_step=first, filename_suffix=_EVENTS_END
                )
                rows = read_metrics(self.path.parent) if first == _ALL else rows
                self._next_step = None
            for row in rows:
                place = "/".join(str(row[key]) for key in ("kind", "split") if key in row)
                for tag, value in _numbers_of(place, row):
                    self._board.add_scalar(tag, value, row["step"])
            self._board.flush()
        except Exception as error:  # tensorflow, where it is installed, has classes of its own
            self._end_board()
            self._next_step = _ALL
            raise OSError(f"TensorBoard's file cannot be written: {error}") from error

    def replace(self, rows: Sequence[Row], next_step: int) -> None:
        """Put `rows` in the place of all rows, before a resumed run does `next_step`."""
        self._end_board()
        self._next_step = next_step  # TensorBoard forgets what other files have from there on
        replace_text(self.path, _lines(rows))

    def sync(self) -> None:
        """Wait until the disk has the rows; a checkpoint counts only then."""
        if self.path.exists():
            files.sync_file(self.path)

    def close(self) -> None:
        """End TensorBoard's writer; if it has died unnoticed, show all rows once more."""
        self._end_board()
        if self._next_step == _ALL:
            with suppress(OSError):  # the metrics have the rows all the same
                self._show([])
            self._end_board()

    def _end_board(self) -> None:
        board, self._board = self._board, None
        if board is not None:
            try:
                board.close()
            except Exception:  # what ended its thread
                self._next_step = _ALL


def _lines(rows: Iterable[Row]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def _numbers_of(name: str, value: object) -> Iterable[tuple[str, float]]:
    """Return the floats in a row by their paths, such as ``evaluation/errors/pMeanTrim``."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _numbers_of(f"{name}/{key}", inner)
    elif isinstance(value, float):
        yield name, value


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
        manifest.rewrite(written=list(dict.fromkeys([*manifest.facts["written"], *names])))


def add_result(directory: Path, name: str, write: Callable[[Path], Fingerprint]) -> None:
    """Write a file of ``RESULT`` under the manifest, which names the new file, the old or none."""
    manifest = read_run_manifest(directory)
    if manifest is not None:
        manifest = manifest.rewrite(drop=[name])
    written = write(directory / name)
    if manifest is not None:
        manifest.rewrite({name: written})
        record_written(directory, [directory / name])


class RunDirectoryLost(RuntimeError):
    """The directory was removed while a run was writing to it."""


class RunDirectory:
    """Writes what a run leaves behind; one process of a run has one."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.checkpoints = self.path / "checkpoints"
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
            for path in files.temporaries(self.path / name):
                path.unlink()

    def check_present(self) -> None:
        """Raise RunDirectoryLost if the directory that was locked is not there any more."""
        try:
            held = os.path.samestat(os.stat(self.path / ".lock"), os.fstat(self._lock.fileno()))
        except FileNotFoundError:
            held = False
        if not held:
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
        """Raise FileExistsError unless a run can begin here without a loss."""
        # A run that was killed before its first checkpoint has nothing of value. Files of anybody
        # else are never touched, whatever `restart` says.
        run = self._found_run()
        if run is None:
            foreign = [name for name in (*_FILES, *_FOLDERS) if (self.path / name).exists()]
            if foreign:
                raise FileExistsError(
                    f"{self.path} holds {', '.join(foreign)}, but no {MANIFEST} that says they are "
                    "of a run; choose another run_dir"
                )
            return
        results = [name for name in _RESULTS if _holds_something(self.path / name)]
        results += [path.name for path in self.checkpoints.glob("step_*")]
        if restart or not (results or run.facts["saved"]):
            return
        found = "the settings and metrics of a run whose checkpoints were removed"
        if results:
            found = f"{', '.join(results)} of a run, but no checkpoint that can be used"
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
        """Delete the files of an earlier run, and only those: nothing where no run was begun."""
        # The manifest stays until `begin` replaces it: after a kill in here it is still a run's.
        run = self._found_run()
        if run is None:
            return
        # First: a run without checkpoints is begun again, one without settings cannot be resumed.
        CheckpointStore(self.checkpoints).clear()
        own = [self.path / str(name) for name in run.facts["written"]]
        own += (self.path / BOARD).glob(f"events.out.tfevents.*{_EVENTS_END}")
        for path in own:
            inside = path.parent.resolve().is_relative_to(self.path.resolve())
            if inside and (path.is_symlink() or path.is_file()):
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
        """Record the settings of a run; the disk has all of them when this returns."""
        # The manifest comes first, with the names of what follows: a run that is killed here can
        # be told from files of somebody else.
        make_folder(self.path)
        self._manifest = self._new_manifest().write()
        replace_text(self.path / "versions.json", _json(_package_versions()))
        replace_text(self.path / "command.txt", shlex.join(sys.argv) + "\n")
        settings = {
            CONFIG: replace_text(self.path / CONFIG, OmegaConf.to_yaml(cfg)),
            CHANNELS: channels.save(self.path),
            NORMALIZER: normalizer.save(self.path / NORMALIZER),
            TRAINING_SET: replace_text(self.path / TRAINING_SET, _json(training_set)),
        }
        self._manifest = self._manifest.rewrite(settings)

    def mark_saved(self) -> None:
        """Note that the run has a checkpoint: from now on it is of value."""
        if not self._manifest.facts["saved"]:
            self._manifest = self._manifest.rewrite(saved=True)

    def forget_after(self, step: int, *, result: bool = False) -> None:
        """Drop metrics that a resumed run repeats, and its `result` if it is prolonged."""
        if self.metrics.path.exists():
            kept = [row for row in read_metrics(self.path) if row["step"] <= step]
            kept = [row for row in kept if not (result and row["kind"] == "result")]
            self.metrics.replace(kept, step + 1)

    def write_results(
        self, model: Module, errors: Iterable[Sequence], table: str, selection: Mapping[str, Any]
    ) -> None:
        """Write the model, how it was chosen, the rows of its errors, and their table."""
        # The manifest loses the model first: what is there is the model of the manifest, or none.
        self.check_present()
        self._manifest = self._manifest.rewrite(drop=RESULT)
        written = save_module(model, self.path / MODEL)
        replace_text(self.path / "errors.csv", csv_text(errors))
        replace_text(self.path / "table.md", table)
        chosen = replace_text(self.path / SELECTED, _json(selection))
        self._manifest = self._manifest.rewrite({MODEL: written, SELECTED: chosen})


def _json(content: Mapping[str, Any]) -> str:
    return json.dumps(dict(content), indent=2) + "\n"


def _holds_something(path: Path) -> bool:
    return any(path.iterdir()) if path.is_dir() else path.exists()


def _package_versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for name in _PACKAGES.split():
        versions[name] = None
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    root, versions["commit"] = Path(__file__).parents[2], None
    if (root / ".git").exists() and shutil.which("git"):  # it runs from a checkout
        asked = ["git", "-C", str(root), "rev-parse", "HEAD"]
        found = subprocess.run(asked, capture_output=True, text=True).stdout.strip()
        versions["commit"] = found or None
    versions["cuda"] = torch.version.cuda
    versions["device"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    versions["platform"] = platform.platform()
    return versions
