"""What a run is made of: checksums of what its predictions depend on, its files, its versions."""

import platform
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import torch

from .. import __version__
from ..files import (
    Fingerprint,
    check_inside,
    checked_json,
    read_checked_json,
    replace_text,
    verify_file,
)

FILE_NAME = "run_manifest.json"
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


@dataclass(frozen=True)
class RunManifest:
    """What ``run_manifest.json`` says.

    Parameters
    ----------
    directory : Path
        The run directory.
    files : dict
        Fingerprint of each file that predictions depend on.
    written : tuple[str, ...]
        Files of the run, relative to its directory; not all need be there (yet). Checkpoints
        are not listed: their store knows its own.
    saved : bool
        Whether the run has had a checkpoint.
    """

    directory: Path
    files: dict[str, Fingerprint] = field(default_factory=dict)
    written: tuple[str, ...] = ()
    saved: bool = False

    def write(self) -> "RunManifest":
        """Bring the manifest to the disk."""
        content = {
            "files": {name: entry._asdict() for name, entry in self.files.items()},
            "written": list(self.written),
            "saved": self.saved,
            "package_version": __version__,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        replace_text(self.directory / FILE_NAME, checked_json(content))
        return self

    def with_written(self, names: Iterable[str]) -> "RunManifest":
        """Return the manifest with further files of the run."""
        return replace(self, written=tuple(dict.fromkeys([*self.written, *names])))

    def verify(self, names: Iterable[str]) -> None:
        """Raise ValueError if one of these files is not as it was written."""
        for name in names:
            try:
                if name not in self.files:
                    raise ValueError(f"{self.directory / name} is not in {FILE_NAME}")
                verify_file(self.directory / name, self.files[name])
            except ValueError as error:
                raise ValueError(
                    f"{error}. What this run predicts depends on it: restore it from a copy of "
                    "the run, or train again (restart=true)"
                ) from error

    def own_paths(self) -> list[Path]:
        """Return the files of the run that are there; never one outside of its directory."""
        inside = self.directory.resolve()
        paths = [self.directory / name for name in self.written]
        return [
            path
            for path in paths
            if path.parent.resolve().is_relative_to(inside)
            and (path.is_symlink() or path.is_file())
        ]


def read_run_manifest(directory: Path) -> RunManifest | None:
    """Return the manifest of a run directory; None if there is none, ValueError if it is damaged.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     directory = Path(folder)
    ...     _ = RunManifest(directory, written=("config.yaml",)).write()
    ...     read_run_manifest(directory).written
    ('config.yaml',)
    """
    path = directory / FILE_NAME
    if not path.exists():
        return None
    try:
        content = read_checked_json(path)
        files = {name: Fingerprint(**entry) for name, entry in content["files"].items()}
        check_inside(files)
        return RunManifest(directory, files, tuple(content["written"]), content["saved"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} cannot be used: {error}. Restore it from a copy of the run; if you know that "
            "the other files are as training left them, delete it and they are used unchecked"
        ) from error


def record_written(directory: Path, paths: Iterable[Path]) -> None:
    """Note files in a run directory as the run's own, so that ``restart=true`` removes them."""
    manifest = read_run_manifest(directory)
    names = [str(path.relative_to(directory)) for path in paths if path.is_file()]
    if manifest is not None and not set(names) <= set(manifest.written):
        manifest.with_written(names).write()


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
