"""What a checkpoint folder holds, by its manifest, and whether the files are still that."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from ... import __version__
from ...files import Fingerprint, checked_json, read_checked_json, verify_file

TRAINING, MODEL, MANIFEST = "training.pt", "model.mdlus", "manifest.json"


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint folder and what its manifest says.

    Parameters
    ----------
    path : Path
        The folder, ``step_00000120``.
    step, epoch : int
        Where the run was.
    metric : float or None
        Test error at this step, lower is better.
    files : dict
        Fingerprint of each file.
    """

    path: Path
    step: int
    epoch: int
    metric: float | None
    files: dict[str, Fingerprint]

    @property
    def training_path(self) -> Path:
        """File of the training state, for :func:`load_training_state`."""
        return self.path / TRAINING

    @property
    def model_path(self) -> Path:
        """File of the model, for :func:`load_model` or ``Module.from_checkpoint``."""
        return self.path / MODEL

    def verify(self) -> None:
        """Compare every file with the manifest; a difference raises ValueError."""
        for name in self.files:
            self.verify_file(name)

    def verify_file(self, name: str) -> None:
        """Compare one file with the manifest."""
        verify_file(self.path / name, self.files[name])


def manifest_text(
    step: int, epoch: int, metric: float | None, files: dict[str, Fingerprint]
) -> str:
    """Return the text of a manifest, with the time, the version and a checksum of itself."""
    content = {
        "step": step,
        "epoch": epoch,
        "metric": metric,
        "files": {name: written._asdict() for name, written in files.items()},
        "package_version": __version__,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    return checked_json(content)


def read_manifest(path: Path, step: int) -> Checkpoint:
    """Read the manifest of a folder that should hold ``step``; anything wrong is a ValueError."""
    manifest = path / MANIFEST
    try:
        content = read_checked_json(manifest)
        files = {name: Fingerprint(**entry) for name, entry in content["files"].items()}
        if set(files) != {TRAINING, MODEL}:
            raise ValueError(f"it lists {sorted(files)}, expected {MODEL} and {TRAINING}")
        if content["step"] != step:
            raise ValueError(f"it is of step {content['step']}")
        return Checkpoint(path, step, content["epoch"], content["metric"], files)
    except FileNotFoundError as error:
        raise ValueError(f"{manifest} is missing") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{manifest} cannot be used: {type(error).__name__}: {error}") from error
