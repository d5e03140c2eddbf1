"""From a run directory to a model that predicts, with or without the data it was trained on."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from physicsnemo import Module

from ..datapipes import BENCHMARKS, Loaders, Normalizer, build_dataloaders
from ..training.channels import FILE_NAME as CHANNELS_FILE
from ..training.channels import Channels
from ..training.checkpoints import CheckpointStore, load_model
from ..training.feeding import input_adapter

CHECKPOINTS = ("final", "best", "latest")


@dataclass(frozen=True)
class Run:
    """A trained model with what it needs to predict.

    Parameters
    ----------
    name : str
        Name of the run directory.
    directory : Path
        The run directory.
    config : DictConfig
        The resolved config of the run.
    model : physicsnemo.Module
        In evaluation mode, on `device`.
    normalizer : Normalizer
        The statistics of training, on the CPU.
    device : torch.device
        Where the model computes.
    data : DictConfig
        What the loaders are built from: the run's data at full resolution, never refitted.
    """

    name: str
    directory: Path
    config: DictConfig
    model: Module
    normalizer: Normalizer
    device: torch.device
    data: DictConfig

    @cached_property
    def adapter(self):
        """Give the keyword arguments of ``model.forward`` from a batch."""
        return input_adapter(self.model)

    @cached_property
    def loaders(self) -> Loaders:
        """Loaders of the run's data, test cases with all their tokens; made when first used."""
        try:
            return build_dataloaders(self.data)
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"the data of run {self.directory} cannot be opened: {error}. If the files are "
                "elsewhere now, give their directory as data_root (--data-root)"
            ) from error

    @cached_property
    def channels(self) -> Channels:
        """Names and widths of the channels, from the run directory or else from the data."""
        if (self.directory / CHANNELS_FILE).is_file():
            return Channels.load(self.directory)
        joint = OmegaConf.select(self.config, "training.field_norms") == "joint"
        return Channels.of_reader(self.loaders.test.dataset.reader, joint=joint)

    def normalization_kind(self, key: str) -> str | None:
        """Return how training normalised a sample key (``gaussian``, ...), None if not told."""
        data = self.config.data
        kinds = data.get("normalization", "fit")
        if kinds in ("fit", "paper"):
            spec = BENCHMARKS.get(data.get("benchmark") or data.get("builtin"))
            kinds = {} if spec is None else spec.normalization
        return kinds.get(key) if isinstance(kinds, Mapping) else None


def load_run(
    directory: str | Path,
    *,
    checkpoint: str = "final",
    device: torch.device | str | None = None,
    data_root: str | Path | None = None,
) -> Run:
    """Return the trained model of a run directory, ready to predict.

    The data is opened when ``run.loaders`` is first used, so that a model predicts on machines
    that do not have it. Statistics come from the run, they are never fitted again.

    Parameters
    ----------
    directory : str or Path
        What ``flarepp train`` wrote.
    checkpoint : str, optional
        ``final``, or ``best`` or ``latest`` of the checkpoints of an unfinished run.
    device : torch.device or str, optional
        By default the GPU if there is one.
    data_root : str or Path, optional
        Directory of other data in the layout of the run's, instead of its own.
    """
    directory = Path(directory)
    config = OmegaConf.load(_run_file(directory, "config.yaml"))
    normalizer_file = _run_file(directory, "normalizer.safetensors")
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    model = load_model(_weights_file(directory, checkpoint)).to(device).eval()
    return Run(
        name=directory.resolve().name,
        directory=directory,
        config=config,
        model=model,
        normalizer=Normalizer.load(normalizer_file),
        device=device,
        data=_evaluation_data(config, normalizer_file, data_root),
    )


def _run_file(directory: Path, name: str) -> Path:
    if not directory.is_dir():
        raise FileNotFoundError(
            f"run directory {directory} does not exist; give one that flarepp train wrote, such as "
            "outputs/cars-flarepp-seed0"
        )
    if not (directory / name).is_file():
        present = ", ".join(sorted(path.name for path in directory.iterdir())) or "nothing"
        raise FileNotFoundError(
            f"{directory / name} is missing; {directory} holds {present}. Give the directory of a "
            "run that flarepp train finished; one that was stopped goes on with the command that "
            "started it"
        )
    return directory / name


def _weights_file(directory: Path, checkpoint: str) -> Path:
    if checkpoint not in CHECKPOINTS:
        raise ValueError(f"checkpoint is {checkpoint!r}, expected one of {CHECKPOINTS}")
    if checkpoint == "final":
        return _run_file(directory, "model.mdlus")
    store = CheckpointStore(directory / "checkpoints")
    found = store.best() if checkpoint == "best" else store.newest_sound(_warn)
    if found is None:
        raise FileNotFoundError(
            f"{store.directory} holds no {checkpoint} checkpoint that can be used; train further, "
            "or choose another of " + ", ".join(CHECKPOINTS)
        )
    found.verify()
    return found.model_path


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=4)


def _evaluation_data(
    config: DictConfig, normalizer_file: Path, data_root: str | Path | None
) -> DictConfig:
    """Return the data config of a run with whole test cases and the stored statistics."""
    changes: dict[str, Any] = {
        "normalization": {"load": str(normalizer_file)},
        "n_points_test": None,
        "batch_size_test": 1,
        "num_workers": 0,
        "device": None,
        "pin_memory": False,
        "collate_metadata": False,
    }
    data = OmegaConf.to_container(config.data, resolve=True)
    if data_root is not None:
        changes["benchmark"] = data.get("benchmark") or data.get("builtin")
        changes |= {"root": str(data_root), "builtin": None}
    return OmegaConf.create({**data, **changes})
