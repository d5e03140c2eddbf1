"""The directory of a run: config, versions, metrics, TensorBoard, normaliser, table."""

import csv
import fcntl
import json
import platform
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TextIO

import torch
from omegaconf import DictConfig, OmegaConf
from torch.utils.tensorboard import SummaryWriter

from ..datapipes.normalization import Normalizer
from .channels import FILE_NAME as CHANNELS_FILE
from .channels import Channels

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
_FOLDERS = ("checkpoints", "figures", "predictions", "tensorboard")
_FILES = (
    CHANNELS_FILE,
    "command.txt",
    "config.yaml",
    "errors.csv",
    "evaluation.csv",
    "log.txt",
    "metrics.jsonl",
    "model.mdlus",
    "normalizer.safetensors",
    "table.md",
    "versions.json",
)


def package_versions() -> dict[str, str | None]:
    """Return what the run depends on, for its record."""
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    versions["cuda"] = torch.version.cuda
    versions["device"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    versions["platform"] = platform.platform()
    return versions


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
        self._board: SummaryWriter | None = None
        self._lock: TextIO | None = None
        self._purge_after: int | None = None
        self._unwritten: list[Mapping[str, object]] = []

    def __enter__(self) -> "RunDirectory":
        return self

    def __exit__(self, *_: object) -> None:
        """Close TensorBoard's file and let other processes in."""
        if self._board is not None:
            self._board.close()
        if self._lock is not None:
            self._lock.close()

    @property
    def checkpoints(self) -> Path:
        """Where the checkpoints are."""
        return self.path / "checkpoints"

    def clear(self) -> None:
        """Delete the files of an earlier run, and only those: nothing where no run was begun."""
        if not self._holds_run():
            return
        for name in _FOLDERS:
            shutil.rmtree(self.path / name, ignore_errors=True)
        for name in _FILES:
            (self.path / name).unlink(missing_ok=True)

    def _holds_run(self) -> bool:
        config = self.path / "config.yaml"
        return config.is_file() and {"run_dir", "training"} <= set(OmegaConf.load(config))

    def obstacle(self, restart: bool) -> str | None:
        """Say why no run can begin here; None if nothing of value would be lost.

        A run that was killed before its first checkpoint has nothing of value. Files of anybody
        else are never touched, whatever `restart` says.
        """
        if not self._holds_run():
            present = [name for name in (*_FILES, *_FOLDERS) if (self.path / name).exists()]
            # A comparison opens log.txt before its runs begin.
            foreign = [name for name in present if name != "log.txt"]
            if foreign:
                return (
                    f"{self.path} holds {', '.join(foreign)}, but they are not of a run; choose "
                    "another run_dir"
                )
            return None
        results = [*self.path.glob("model.mdlus"), *self.checkpoints.glob("step_*")]
        if results and not restart:
            return (
                f"{self.path} holds {', '.join(path.name for path in results)} of a run, but no "
                "checkpoint that can be used; choose another run_dir, or set restart=true to "
                "delete that run"
            )
        return None

    def lock(self) -> str | None:
        """Keep other processes out until this one ends; say so if one is in already."""
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = open(self.path / ".lock", "w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return f"another process trains in {self.path}; wait for it, or choose another run_dir"
        return None

    def begin(self, cfg: DictConfig, normalizer: Normalizer, channels: Channels) -> None:
        """Record the config, the command, the versions, the channels and the normaliser."""
        self.path.mkdir(parents=True, exist_ok=True)
        OmegaConf.save(cfg, self.path / "config.yaml")
        versions = json.dumps(package_versions(), indent=2)
        (self.path / "versions.json").write_text(versions + "\n")
        (self.path / "command.txt").write_text(shlex.join(sys.argv) + "\n")
        channels.save(self.path)
        normalizer.save(self.path / "normalizer.safetensors")

    def forget_after(self, step: int) -> None:
        """Drop metrics of steps that a resumed run does again."""
        metrics = self.path / "metrics.jsonl"
        if not metrics.exists():
            return
        self._purge_after = step
        kept = [row for row in read_metrics(self.path) if row["step"] <= step]
        draft = metrics.with_suffix(".partial")
        draft.write_text("".join(json.dumps(row) + "\n" for row in kept))
        draft.replace(metrics)

    def log(self, rows: Sequence[Mapping[str, object]]) -> None:
        """Append `rows` to the metrics and their numbers to TensorBoard.

        Raises OSError where the disk is full; the rows are then written with the next ones.
        """
        self._unwritten += rows
        text = "".join(json.dumps(row) + "\n" for row in self._unwritten)
        append_whole(self.path / "metrics.jsonl", text)
        rows, self._unwritten = self._unwritten, []
        if self._board is None:
            purge = None if self._purge_after is None else self._purge_after + 1
            self._board = SummaryWriter(self.path / "tensorboard", purge_step=purge)
        for row in rows:
            for name, value in row.items():
                if isinstance(value, float):
                    self._board.add_scalar(f"{row['kind']}/{name}", value, row["step"])
        self._board.flush()

    def write_errors(
        self, case_ids: Sequence[str], fields: Sequence[str], errors: Iterable[Sequence[float]]
    ) -> None:
        """Write the relative L2 error of every test case and field."""
        with open(self.path / "errors.csv", "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["case", *fields])
            writer.writerows([case, *row] for case, row in zip(case_ids, errors, strict=True))


def append_whole(path: Path, text: str) -> None:
    """Append `text`, or nothing of it if the disk is full."""
    size = path.stat().st_size if path.exists() else 0
    try:
        with open(path, "a") as file:
            file.write(text)
    except OSError:
        with open(path, "a") as file:
            file.truncate(size)
        raise


def read_metrics(directory: str | Path) -> list[dict]:
    """Return the rows of a run's ``metrics.jsonl``; a last line cut by a kill is left out."""
    path = Path(directory) / "metrics.jsonl"
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; give the directory of a training run")
    lines = path.read_text().splitlines()
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number < len(lines):
                raise ValueError(f"{path}, line {number} is not JSON: {error}") from error
    return rows
