"""From a run directory to a model that predicts, with or without the data it was trained on."""

import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from omegaconf import DictConfig, OmegaConf
from physicsnemo import Module
from tensordict import TensorDict
from torch import Tensor

from ..datapipes import Normalizer
from ..datapipes.channels import Channels
from ..datapipes.config import load_yaml
from ..datapipes.loaders import build_test_loader, evaluated_split
from ..datapipes.normalization import PLACES
from ..datapipes.readers import CaseReader, MemoryCases
from ..datapipes.readers.base import NO_WEIGHTS
from ..datapipes.readers.names import Names
from ..datapipes.sources import data_elsewhere, make_transform, open_source
from ..files import pretrained_runs, reading
from ..inference import LatentState, predict
from ..inference.prediction import unwrap
from ..models.feeding import input_adapter
from ..parallel.launch import find_device
from . import directory as run_files
from .checkpoints import CheckpointStore
from .model_files import load_model
from .samples import sample_of
from .training_set import holds_training_files, parameter_warning, read_training_set

CHECKPOINTS = ("final", "best", "latest")
# What changes of a data config where whole test cases are read, one by one.
_LOADING = dict(num_workers=0, device=None, pin_memory=False, collate_metadata=False)
_WHOLE_CASES = {"n_points_test": None, "batch_size_test": 1, **_LOADING}


@dataclass(frozen=True)
class Run:
    """A trained model with what it needs to predict.

    Parameters
    ----------
    name, directory, config
        Name and path of the run directory, and its resolved config.
    model, device
        The model in evaluation mode, and where it computes.
    normalizer
        The statistics of training, on the CPU.
    data, memory
        What the test set is made from, at full resolution; the cases, if they are in memory.
    checkpoint, trust
        Whose weights these are, and whether readers that are not registered may be imported.
    data_root, moved
        Directory of the data, if it is not that of training, and whether it holds the same files.
    """

    name: str
    directory: Path
    config: DictConfig
    model: Module
    normalizer: Normalizer
    device: torch.device
    data: DictConfig
    checkpoint: str = "final"
    data_root: Path | None = None
    moved: bool = False
    trust: bool = False
    memory: MemoryCases | None = None

    @cached_property
    def split(self) -> str:
        """What the cases are for: ``test``, or ``val`` where the data has no test split."""
        return evaluated_split(self.data, trust=self.trust, data=self.memory)

    @property
    def selected(self) -> dict[str, Any] | None:
        """How the final weights were chosen; None for other weights."""
        if self.checkpoint != "final" or not (self.directory / run_files.SELECTED).is_file():
            return None
        with reading(self.directory / run_files.SELECTED):
            return json.loads((self.directory / run_files.SELECTED).read_bytes())

    @cached_property
    def test_set(self) -> CaseReader:
        """The test cases with all their tokens, in physical units; opened when first used."""
        try:
            loader = build_test_loader(
                self.data, self.normalizer, split=self.split, trust=self.trust, data=self.memory
            )
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"the data of run {self.directory} cannot be opened: {error}. If the files are "
                "elsewhere now, give their directory as data_root (--data-root)"
            ) from error
        except ValueError as error:
            source = self.data_root or self.directory / run_files.CONFIG
            raise ValueError(f"the data of {source} cannot be opened: {error}") from error
        return loader.dataset.reader

    def training_cases(self) -> CaseReader:
        """Return the cases the run was trained on, in physical units, if they are there."""
        return open_source(self._own_data, self.trust, self.memory).reader("train")

    def cases(self, split: str, *, n_points: int | None = None) -> CaseReader | None:
        """Return the cases of a split of the run's data, None if it has no such split.

        They are in physical units, with all their tokens or at most `n_points` of each.
        """
        whole = OmegaConf.merge(self._own_data, {"n_points": n_points, "n_points_test": n_points})
        return open_source(whole, self.trust, self.memory).find_reader(split)

    @property
    def _own_data(self) -> DictConfig:
        return self.data if self.data_root is None or self.moved else self.config.data

    @property
    def case_ids(self) -> list[str]:
        """Ids of the test cases."""
        return self.test_set.case_ids

    @cached_property
    def training_set(self) -> dict[str, Any] | None:
        """What the run keeps of its training set, ranges of inputs first; None if it is lost."""
        return read_training_set(self.directory)

    @cached_property
    def channels(self) -> Channels:
        """Names and widths of the channels."""
        return Channels.load(self.directory)

    @cached_property
    def names(self) -> Names | None:
        """What arrays of files are taken for, for a run on own files or on data in memory."""
        keys = ("coordinates", "features", "fields", "globals", "association")
        given = OmegaConf.to_container(self.data, resolve=True)
        if given.get("fields") is None:
            return None
        grid = (given.get("reader") or {}).get("grid")
        weights = self.channels.weights
        return Names.parse(**{key: given.get(key) for key in keys}, weights=weights, grid=grid)

    def transform(self, sample: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return a sample of a file as ``data.transforms`` of training change it."""
        given = OmegaConf.to_container(self.data, resolve=True).get("transforms") or ()
        changed = TensorDict(dict(sample))
        for entry in given:
            changed = make_transform(entry, self.trust)(changed)
        if len(changed["coordinates"]) != len(sample["coordinates"]):
            raise ValueError(
                f"data.transforms of run {self.name} leave {len(changed['coordinates'])} of "
                f"{len(sample['coordinates'])} tokens; a file is predicted with all of them"
            )
        return dict(changed.items())

    def inputs(self, sample: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return what the model is called with: a batch of one sample in physical units."""
        if self.channels.weights != NO_WEIGHTS and "weights" not in sample.keys():
            raise ValueError(
                f"run {self.name} weighs tokens by {self.channels.weights!r}, but the sample has "
                "no entry 'weights'; give the area that each token stands for"
            )
        return input_adapter(self.model)(self._normalised(sample).unsqueeze(0))

    def _normalised(self, sample: Mapping[str, Tensor]) -> TensorDict:
        return self.normalizer(TensorDict(dict(sample)))

    @torch.no_grad()
    def predict(
        self, given: Any, *, progress: bool = True, **global_values: float | Sequence[float]
    ) -> Float[np.ndarray, "N O"]:
        """Return the fields at the tokens of a mesh, of points or of a sample, in physical units.

        Models that stream (see :func:`physicsnemo_flarepp.inference.predict`) take the tokens
        chunk by chunk, with the same result; others take them at once.

        Parameters
        ----------
        given : mesh, array or Mapping
            A mesh of pyvista or PhysicsNeMo, of which features and weights are computed as in
            training; points (N, d); or a sample in physical units, ``coordinates`` (N, d) and, as
            in training, ``features`` (N, f) and ``globals`` (g,). A baseline and per-point
            statistics need ``tokens`` (N,), the rows of the points in the mesh of training, unless
            these are all of them. ``weights`` (N,) that cannot be computed are needed, too.
        progress : bool, optional
            Show a bar while a large case is streamed, if stderr is a terminal.
        **global_values : float or sequence of float
            Values of the run's globals by name, such as ``mu=0.3``.

        Examples
        --------
        >>> run.predict(points, mu=0.3)  # doctest: +SKIP
        """
        sample = sample_of(self, given, global_values)
        if warning := self.parameter_warning(sample):
            warnings.warn(warning, stacklevel=3)
        return self.predict_sample(sample, progress=progress)

    def parameter_warning(self, sample: Mapping[str, Tensor]) -> str | None:
        """Return which parameters of a sample training did not cover, None if it covered all."""
        given = sample.get("globals", None)
        return parameter_warning(self.training_set, self.channels.global_names, given)

    @torch.no_grad()
    def predict_sample(
        self, sample: Mapping[str, Tensor], *, progress: bool = True
    ) -> Float[np.ndarray, "N O"]:
        """Return the fields of a complete sample in physical units, as :meth:`predict`."""
        return self.predict_with_state(sample, progress=progress)[0]

    @torch.no_grad()
    def predict_with_state(
        self, sample: Mapping[str, Tensor], *, progress: bool = True
    ) -> tuple[Float[np.ndarray, "N O"], LatentState | None]:
        """Return the fields of a sample and its latent state, None of a model without one."""
        self._check_places(sample)
        arguments = self.inputs(sample)
        state = None
        if can_stream(self.model):
            result, state = predict(self.model, **arguments, progress=progress, return_state=True)
        else:
            placed = {name: value.to(self.device) for name, value in arguments.items()}
            result = self.model(**placed)
        result = result.reshape(len(sample["coordinates"]), -1).float().cpu()
        given = self._normalised(sample).get("globals", None)
        result = self.normalizer.inverse(result, sample.get("tokens", None), given=given)
        return result.numpy(), state

    def _check_places(self, sample: Mapping[str, Tensor]) -> None:
        """Raise if rows are not where a baseline, which was fitted row by row, has them."""
        places = self.normalizer.affine.get(PLACES)
        if places is None:
            return
        points = self._normalised(sample)["coordinates"]
        middle, reach = places.rows(sample.get("tokens", None), points)
        far = ((points - middle).abs() > reach).any(-1)
        if far.any():
            raise ValueError(
                f"row {int(far.nonzero()[0])} is not where that row of the training meshes is, but "
                f"data.baseline={self.config.data.get('baseline')} of run {self.name} was fitted "
                "by row. Give the points of the training mesh in order, or use data.baseline=none"
            )


def can_stream(model: torch.nn.Module) -> bool:
    """Return whether exact streaming serves `model`."""
    try:
        unwrap(model)
    except (TypeError, ValueError):
        return False
    return True


def load_run(
    directory: str | Path,
    *,
    checkpoint: str = "final",
    device: torch.device | str | None = None,
    data_root: str | Path | None = None,
    trust: bool = False,
    data: MemoryCases | None = None,
) -> Run:
    """Return the trained model of a run directory, ready to predict.

    The data is opened when ``run.test_set`` is first used, so that a model predicts on machines
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
        Directory of other data in the layout of the run's, instead of its own. Its test cases are
        those that it names itself, see :func:`~physicsnemo_flarepp.datapipes.data_elsewhere`; no
        other is opened.
    trust : bool, optional
        Import classes that the run names and this package does not know: a reader of
        ``config.yaml``, the class of the model. Whoever wrote the run may then run code here;
        without it, opening a run runs none.
    data : MemoryCases, optional
        The cases of a run that was trained on data in memory, which no file holds.
    """
    directory = Path(directory)
    for name in (run_files.CONFIG, run_files.NORMALIZER):
        _check_there(directory, name)
    weights = _weights_file(directory, checkpoint)
    _check_manifest(directory, checkpoint)
    config = _read_config(directory / run_files.CONFIG)
    evaluated, moved = OmegaConf.to_container(config.data, resolve=True), None
    if data_root is not None:
        data_root = Path(data_root)
        if known := read_training_set(directory):
            moved = holds_training_files(data_root, known["files"])
        evaluated = data_elsewhere(evaluated, data_root, moved=moved)
    device = find_device(device)
    return Run(
        name=directory.resolve().name,
        directory=directory,
        config=config,
        model=load_model(weights, trust=trust).to(device).eval(),
        normalizer=Normalizer.load(directory / run_files.NORMALIZER),
        device=device,
        data=OmegaConf.create({**evaluated, **_WHOLE_CASES}),
        checkpoint=checkpoint,
        data_root=data_root,
        moved=bool(moved),
        trust=trust,
        memory=data,
    )


def pretrained_run(name: str) -> Path:
    """Return the directory of a run that comes with the package; its model card is in it."""
    if name not in (known := pretrained_runs()):
        raise ValueError(f"there is no pretrained {name!r}; choose one of {', '.join(known)}")
    return known[name]


def _check_manifest(directory: Path, checkpoint: str) -> None:
    """Compare what predictions depend on with the run's manifest, before any of it is used."""
    manifest = run_files.read_run_manifest(directory)
    if manifest is None:
        warnings.warn(
            f"{directory} has no {run_files.MANIFEST}: its files are loaded without verification",
            stacklevel=3,
        )
        return
    if checkpoint == "final" and run_files.MODEL not in manifest.files:
        raise ValueError(
            f"{directory / run_files.MODEL} is not in {run_files.MANIFEST}: training was stopped "
            "while it wrote its results. Start it again with the same command and it finishes them"
        )
    names = dict.fromkeys((*run_files.SETTINGS, *manifest.files))
    if checkpoint != "final":
        for name in run_files.RESULT:
            names.pop(name, None)  # the checkpoint's own manifest vouches for its weights
    run_files.verify_run(manifest, names)


def _read_config(path: Path) -> DictConfig:
    """Return the config of a run: values only, since references could read the environment."""
    with reading(path):
        config = load_yaml(path)
        if not isinstance(config, DictConfig) or not isinstance(config.get("data"), DictConfig):
            raise TypeError("it has no section `data`")
    if found := next(_references(OmegaConf.to_container(config)), None):
        raise ValueError(
            f"{path} holds the reference {found!r}; training writes values only. Replace it by "
            "its value"
        )
    return config


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, str) and "${" in value:
        yield value
    elif isinstance(value, Mapping | list):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _references(inner)


def _check_there(directory: Path, name: str) -> None:
    if not directory.is_dir():
        raise FileNotFoundError(
            f"run directory {directory} does not exist; give one that flarepp train wrote, such as "
            "outputs/cars-flarepp-seed0"
        )
    if not (directory / name).is_file():
        present = ", ".join(sorted(path.name for path in directory.iterdir())) or "nothing"
        raise FileNotFoundError(
            f"{directory / name} is missing; {directory} holds {present}. Give the directory of a "
            "run that flarepp train finished; the command that started a stopped run resumes it"
        )


def _weights_file(directory: Path, checkpoint: str) -> Path:
    if checkpoint not in CHECKPOINTS:
        raise ValueError(f"checkpoint is {checkpoint!r}, expected one of {CHECKPOINTS}")
    if checkpoint == "final":
        _check_there(directory, run_files.MODEL)
        return directory / run_files.MODEL
    store, warn = CheckpointStore(directory / "checkpoints"), partial(warnings.warn, stacklevel=4)
    found = store.best(warn) if checkpoint == "best" else store.newest_sound(warn)
    if found is None:
        raise FileNotFoundError(
            f"{store.directory} holds no {checkpoint} checkpoint that can be used; train further, "
            "or choose another of " + ", ".join(CHECKPOINTS)
        )
    found.manifest.verify()
    return found.path / run_files.MODEL


def distinct_names(
    directories: Sequence[str | os.PathLike], labels: Sequence[str] | None = None
) -> list[str]:
    """Return a name of its own for each run directory, such as first/flare and second/flare."""
    if not directories:
        raise ValueError("runs is empty; give at least one run")
    found = [Path(directory).resolve() for directory in directories]
    names = list(labels) if labels is not None else [path.name for path in found]
    if labels is None and len(set(names)) < len(names):
        common = os.path.commonpath([path.parent for path in found])
        names = [path.relative_to(common).as_posix() for path in found]
    if len(names) != len(found) or len(set(names)) < len(names):
        raise ValueError(
            f"{len(found)} runs have the names {names}; give each run once, with a label of its own"
        )
    return names
