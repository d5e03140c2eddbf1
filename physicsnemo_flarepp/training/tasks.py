"""What a run learns: its data, its loss and errors, and the table of its results.

The trainer knows none of these. :class:`FieldTask` predicts fields at the tokens of meshes;
:class:`~.sequence_task.SequenceTask` classifies sequences.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxtyping import Float
from omegaconf import DictConfig, OmegaConf
from physicsnemo.core import Module
from tensordict import TensorDict
from torch import Tensor, nn

from ..datapipes import build_dataloaders
from ..datapipes.channels import Channels
from ..datapipes.loaders import Loaders
from ..datapipes.normalization import centres_fields
from ..datapipes.readers.base import NO_WEIGHTS
from ..datapipes.readers.memory import MemoryCases
from ..datapipes.sources import complete_names
from ..models.feeding import InputLayout, build_model, input_adapter, takes_weights
from ..models.layers import start_at_zero
from ..parallel.ranks import Ranks, on_first_rank
from ..runs.training_set import describe_doubts, describe_training_set
from ..texts import format_table
from .baselines import baseline_errors, describe_baselines, verdict
from .losses import predict_mean
from .planning import StreamChoice
from .reporting import SPLIT_NAMES
from .step import FieldLoss, Objective, StreamedLoss

if TYPE_CHECKING:
    from .assembly import Assembly
    from .run import TrainingResult

Measure = Callable[[TensorDict], Float[Tensor, "B F"]]


class Built(NamedTuple):
    """A new model on its device, what its channels are, and what judges it.

    `objective` makes the loss of a module that is called like the model, streamed by a
    :class:`~.planning.StreamChoice` if one is given. `constant` is that of the assembly.
    """

    model: Module
    channels: Channels
    objective: Callable[..., Objective]
    constant: Measure | None


class Task(ABC):
    """What a run learns; :func:`task_of` chooses it by the data."""

    constant_name: str

    def complete(self, cfg: DictConfig, data: MemoryCases | None) -> Sequence[str]:
        """Settle what the config leaves open, in place; return what was guessed, in sentences."""
        return ()

    @abstractmethod
    def load_data(
        self,
        cfg: DictConfig,
        placed: Mapping[str, Any],
        normalizer: Path | None,
        data: MemoryCases | None,
    ) -> Loaders:
        """Return the loaders of a rank that is `placed` among the others."""

    @abstractmethod
    def build(self, cfg: DictConfig, ranks: Ranks, loaders: Loaders) -> Built:
        """Build the model and its objective; torch's seed is set."""

    @abstractmethod
    def describe(
        self, cfg: DictConfig, ranks: Ranks, assembly: "Assembly", chosen_on_test: bool
    ) -> tuple[Mapping[str, Any], Sequence[str]]:
        """Return what the run keeps of its training set, and warnings; all ranks call it."""

    def baselines(self, assembly: "Assembly", split: str) -> Mapping[str, float]:
        """Return the mean errors of simple predictors on a split, by name; all ranks call it."""
        return {}

    @abstractmethod
    def table(
        self, result: "TrainingResult", cfg: DictConfig, ranks: Ranks, assembly: "Assembly"
    ) -> str:
        """Return the result of a run in Markdown; all ranks call it."""


def task_of(cfg: DictConfig) -> Task:
    """Return the task of a config: sequences if its data says so, else fields."""
    if cfg.data is not None and cfg.data.get("sequences") is not None:
        from .sequence_task import SequenceTask

        return SequenceTask()
    return FieldTask()


class FieldTask(Task):
    """Fields at the tokens of meshes, by their relative L2 errors."""

    constant_name = "the training mean"

    def complete(self, cfg: DictConfig, data: MemoryCases | None) -> Sequence[str]:
        """Name the arrays of own files, and choose the norm."""
        # What is guessed about own files is part of the config, so that it holds wherever the run
        # is opened.
        cfg.data, guesses = complete_names(cfg.data, data=data)
        if cfg.training.norm == "auto":
            weighted = cfg.data.get("weights", NO_WEIGHTS) != NO_WEIGHTS
            cfg.training.norm = "measure" if weighted else "tokens"
        return guesses

    def load_data(
        self,
        cfg: DictConfig,
        placed: Mapping[str, Any],
        normalizer: Path | None,
        data: MemoryCases | None,
    ) -> Loaders:
        """Return the loaders, with the stored normaliser if one is given."""
        settings = {**OmegaConf.to_container(cfg.data, resolve=True), **placed}
        if normalizer is not None:
            settings["normalization"] = {"load": str(normalizer)}
        return build_dataloaders(settings, data=data)

    def build(self, cfg: DictConfig, ranks: Ranks, loaders: Loaders) -> Built:
        """Build the model for the channels of the data."""
        settings, reader = cfg.training, loaders.train.dataset.reader
        channels = Channels.of_reader(reader, joint=settings.field_norms == "joint")
        grid = reader.grid if reader.options.n_points is None else None
        layout = _input_layout(channels, grid)
        model = build_model(cfg.model, layout, settings.precision).to(ranks.device)
        if cfg.data.get("baseline", "none") != "none":
            start_at_zero(model, layout.fields)  # a random residual would be worse than none
        if channels.weights != NO_WEIGHTS and not takes_weights(model):
            warnings.warn(
                f"{type(model).__name__} takes no token weights, so its gathers count tokens; "
                f"data.weights={channels.weights} serves only its loss and its draws",
                stacklevel=2,
            )
        options = {
            "adapter": input_adapter(model),
            "normalizer": loaders.normalizer,
            "widths": tuple(channels.norms.values()),
            "settings": settings,
            "grid": grid,
            "group": ranks.context_group,
        }

        def objective(forward: nn.Module, choice: StreamChoice | None = None) -> FieldLoss:
            if choice is None:
                return FieldLoss(forward, **options)
            return StreamedLoss(forward, choice, forward=forward, **options)

        if not centres_fields(cfg.data):
            return Built(model, channels, objective, None)
        judge, mean = FieldLoss(model, **options), predict_mean(loaders.normalizer)
        return Built(model, channels, objective, lambda b: judge.errors_of(mean(b), b))

    def describe(
        self, cfg: DictConfig, ranks: Ranks, assembly: "Assembly", chosen_on_test: bool
    ) -> tuple[Mapping[str, Any], Sequence[str]]:
        """Return the ranges of the inputs, the files, and doubts about the inputs."""
        loaders, channels = assembly.loaders, assembly.channels
        found = describe_training_set(
            loaders, channels, cfg.data, ranks, chosen_on_test=chosen_on_test
        )
        return found, describe_doubts(found, loaders.normalizer, channels, cfg.data)

    def baselines(self, assembly: "Assembly", split: str) -> Mapping[str, float]:
        """Return the mean errors of simple predictors on a split; the first rank reads."""
        train, test = (getattr(assembly.loaders, name).dataset.reader for name in ("train", split))
        widths, norm = tuple(assembly.fields.values()), assembly.evaluation.norm
        found = on_first_rank(
            lambda: baseline_errors(train, test, assembly.loaders.normalizer, widths, norm),
            "measuring simple predictors",
        )
        return {name: errors.mean().item() for name, errors in found.items()}

    def table(
        self, result: "TrainingResult", cfg: DictConfig, ranks: Ranks, assembly: "Assembly"
    ) -> str:
        """Return the errors of a run in percent, and how they were measured."""
        percent = 100 * result.errors
        rows = [("field", "mean", "median", "worst")]
        columns = [*zip(result.fields, percent.unbind(1), strict=True)]
        if len(columns) > 1:
            columns.append(("all fields", percent.mean(1)))
        for name, values in columns:
            numbers = (values.mean(), values.quantile(0.5), values.max())
            rows.append((name, *(f"{number.item():.2f}" for number in numbers)))
        mean = result.mean_predictor_error
        beside = "" if mean is None else f" (predicting the training mean: {100 * mean:.2f})"
        name = SPLIT_NAMES[result.split].capitalize()
        norm = " as an integral" if cfg.training.norm == "measure" else ""
        drawn = cfg.data.get("n_points_test")
        at = "" if drawn is None else f", at {drawn:,} points of each"
        head = f"{name} error over {len(percent)} cases{at}, relative L2{norm} in percent{beside}"
        chosen = result.selection.describe(assembly.epochs, result.split)
        lost = verdict(result.error, result.baselines, cfg.data.get("baseline", "none"))
        first = [] if lost is None else [lost, ""]
        beside = [describe_baselines(result.baselines)] if result.baselines else []
        table = format_table(rows, markdown=True)
        return "\n".join([*first, head, "", table, "", *beside, chosen, ""])


def _input_layout(channels: Channels, grid: tuple[int, ...] | None) -> InputLayout:
    features, given, fields = (
        sum(columns.values()) for columns in (channels.features, channels.globals, channels.fields)
    )
    return InputLayout(channels.coordinates, features, given, fields, grid)
