"""What a run learns: its data, its loss and errors, and the table of its results.

The trainer knows none of these. :class:`FieldTask` predicts fields at the tokens of meshes;
:class:`~.sequence_task.SequenceTask` classifies sequences.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from omegaconf import DictConfig, OmegaConf
from physicsnemo.core import Module
from tensordict import TensorDict
from torch import Tensor, nn

from ..datapipes import build_dataloaders
from ..datapipes.channels import Channels
from ..datapipes.loaders import Loaders
from ..datapipes.normalization import Normalizer, centres_fields
from ..datapipes.readers.base import NO_WEIGHTS
from ..datapipes.readers.memory import MemoryCases
from ..datapipes.sources import complete_names
from ..inference import predict
from ..inference.streams import Range
from ..models.feeding import InputLayout, build_model, input_adapter, takes_weights
from ..models.layers import start_at_zero
from ..ops.errors import field_errors
from ..parallel.ranks import Ranks, on_first_rank
from ..runs.training_set import describe_doubts, describe_training_set
from ..texts import format_table
from .baselines import baseline_errors, describe_baselines, verdict
from .config import PRECISIONS, TrainingConfig
from .losses import RelativeL2, derivative_loss
from .planning import StreamChoice
from .reporting import SPLIT_NAMES
from .streamed import streamed_step

if TYPE_CHECKING:
    from .run import Assembly, TrainingResult

Adapter = Callable[[TensorDict], dict[str, Tensor]]
Measure = Callable[[TensorDict], Float[Tensor, "B F"]]
Weigh = Callable[[Tensor], Tensor]


class Objective(ABC):
    """What a model is trained for: the loss of a batch, and the errors that judge its cases.

    Models run in `precision`, by autocast; `adapter` makes their keyword arguments of a batch.
    """

    def __init__(self, forward: Callable[..., Tensor], adapter: Adapter, precision: str) -> None:
        self.forward, self.adapter = forward, adapter
        self.dtype = getattr(torch, PRECISIONS[precision])

    @abstractmethod
    def __call__(self, batch: TensorDict) -> Float[Tensor, ""]:
        """Return the loss, differentiable."""

    @abstractmethod
    def errors(self, batch: TensorDict) -> Float[Tensor, "B F"]:
        """Return the errors of each case of a batch, for people: the less, the better."""

    def autocast(self, batch: TensorDict) -> torch.autocast:
        """Return the context in which the model runs."""
        device = batch["tokens"].device.type
        return torch.autocast(device, self.dtype, enabled=self.dtype != torch.float32)

    def backward(self, batch: TensorDict, weigh: Weigh) -> Float[Tensor, ""]:
        """Add the gradients of the weighed loss to those of the model; return the loss."""
        loss = self(batch)
        weigh(loss).backward()
        return loss.detach()


class FieldLoss(Objective):
    """Mean relative L2 of the fields in physical units.

    `forward` is the model, compiled or not; with a `choice` its tokens are worked on in the chunks
    that it gives. `widths` are the channels of the fields that have a norm of their own, `grid` is
    the shape of the tokens' grid for the derivatives, `group` the context group that shares the
    samples.
    """

    def __init__(
        self,
        forward: nn.Module,
        choice: StreamChoice | None = None,
        *,
        adapter: Adapter,
        normalizer: Normalizer,
        widths: tuple[int, ...],
        settings: TrainingConfig,
        grid: tuple[int, ...] | None = None,
        group: torch.distributed.ProcessGroup | None = None,
    ) -> None:
        if settings.derivative_weight > 0 and (grid is None or len(grid) != 2 or group is not None):
            raise ValueError(
                f"training.derivative_weight is {settings.derivative_weight}: finite differences "
                f"need whole samples on a 2-D grid, got the grid {grid}; set it to 0, or "
                "parallel.context to 1 and data.n_points to null"
            )
        super().__init__(forward, adapter, settings.precision)
        self.choice, self.normalizer, self.widths = choice, normalizer, widths
        self.norm, self.derivative_weight = settings.norm, settings.derivative_weight
        self.grid, self.group = grid, group

    def _chunk(self, batch: TensorDict) -> int | None:
        return None if self.choice is None else self.choice(*batch["tokens"].shape)

    def predict(self, batch: TensorDict) -> Float[Tensor, "B N O"]:
        """Return the fields in physical units; those of streamed batches have no gradient."""
        chunk, inputs, tokens = self._chunk(batch), self.adapter(batch), batch["tokens"]
        with self.autocast(batch):
            if chunk is None:
                fields = self.forward(**inputs).float()
            else:
                fields = predict(self.forward, **inputs, chunk_size=chunk, progress=False)
                fields = fields.float().to(tokens.device).flatten(1, -2)
        return self.physical(fields, batch)

    def physical(self, normalised: Float[Tensor, "B N O"], batch: TensorDict) -> Tensor:
        """Return what a model gives for a batch in physical units."""
        given = batch.get("globals", None)
        return self.normalizer.inverse(normalised, batch["tokens"], given=given)

    def errors_of(
        self, prediction: Float[Tensor, "B N O"], batch: TensorDict
    ) -> Float[Tensor, "B F"]:
        """Return the relative L2 of each field of each case, for any prediction."""
        weights = batch["weights"] if self.norm == "measure" else None
        counted = {"token_mask": batch.get("token_mask", None), "token_weights": weights}
        return field_errors(prediction, batch["fields"], self.widths, **counted, group=self.group)

    def errors(self, batch: TensorDict) -> Float[Tensor, "B F"]:
        """Return the relative L2 of each field of each case."""
        return self.errors_of(self.predict(batch), batch)

    def errors_of_mean(self, batch: TensorDict) -> Float[Tensor, "B F"]:
        """Return the errors of predicting the fields that normalise to 0."""
        return self.errors_of(self.physical(torch.zeros_like(batch["fields"]), batch), batch)

    def __call__(self, batch: TensorDict) -> Float[Tensor, ""]:
        """Return the loss, differentiable."""
        prediction = self.predict(batch)
        loss = self.errors_of(prediction, batch).mean()
        if self.derivative_weight > 0:
            smooth = derivative_loss(prediction, batch["fields"], self.grid, self.widths)
            loss = loss + self.derivative_weight * smooth
        return loss

    def backward(self, batch: TensorDict, weigh: Weigh) -> Float[Tensor, ""]:
        """Add the gradients of the weighed loss to those of the model; return the loss."""
        chunk = self._chunk(batch)
        if chunk is None:
            return super().backward(batch, weigh)
        with self.autocast(batch):
            return streamed_step(
                self.forward,
                **{"embedding": None, **self.adapter(batch)},
                target=batch["fields"],
                loss=_BatchSquares(batch, self.normalizer, self.widths, self.norm),
                chunk_size=chunk,
                factor=weigh(torch.ones((), device=batch["tokens"].device)),
            )


class _BatchSquares(RelativeL2):
    """The relative L2 of the fields of a batch in physical units, over sums."""

    def __init__(
        self, batch: TensorDict, normalizer: Normalizer, widths: tuple[int, ...], norm: str
    ) -> None:
        weights = batch["weights"] if norm == "measure" else None
        super().__init__(batch.get("token_mask", None), weights, widths)
        self.tokens, self.given = batch["tokens"], batch.get("globals", None)
        self.normalizer = normalizer

    def sums(self, prediction: Tensor, target: Tensor, rows: Range) -> Float[Tensor, "2 B F"]:
        tokens = self.tokens[:, slice(*rows)]
        physical = self.normalizer.inverse(prediction.float(), tokens, given=self.given)
        return super().sums(physical, target, rows)


# A new model, its channels, what makes its objective, and the measure of a constant guess.
Built = tuple[Module, Channels, Callable[..., Objective], Measure | None]


def task_of(cfg: DictConfig) -> "FieldTask":
    """Return the task of a config: sequences if its data says so, else fields."""
    if cfg.data is not None and cfg.data.get("sequences") is not None:
        from .sequence_task import SequenceTask

        return SequenceTask()
    return FieldTask()


class FieldTask:
    """Fields at the tokens of meshes, by their relative L2 errors; all ranks call its methods."""

    constant_name = "the training mean"

    def complete(self, cfg: DictConfig, data: MemoryCases | None) -> Sequence[str]:
        """Settle what the config leaves open, in place; return what was guessed, in sentences."""
        # Guesses are part of the config, so that they hold wherever the run is opened.
        cfg.data, guesses = complete_names(cfg.data, data=data)
        if cfg.training.norm == "auto":
            weighted = cfg.data.get("weights", NO_WEIGHTS) != NO_WEIGHTS
            cfg.training.norm = "measure" if weighted else "tokens"
        return guesses

    def load_data(
        self, cfg: DictConfig, placed: Mapping, normalizer: Path | None, data: MemoryCases | None
    ) -> Loaders:
        """Return the loaders of a rank that is `placed` among the others."""
        settings = {**OmegaConf.to_container(cfg.data, resolve=True), **placed}
        if normalizer is not None:
            settings["normalization"] = {"load": str(normalizer)}
        return build_dataloaders(settings, data=data)

    def build(self, cfg: DictConfig, ranks: Ranks, loaders: Loaders) -> Built:
        """Build the model for the channels of the data; torch's seed is set."""
        settings, reader = cfg.training, loaders.train.dataset.reader
        channels = Channels.of_reader(reader, joint=settings.field_norms == "joint")
        grid = reader.grid if reader.options.n_points is None else None
        parts = (channels.features, channels.globals, channels.fields)
        widths = (sum(columns.values()) for columns in parts)
        layout = InputLayout(channels.coordinates, *widths, grid)
        model = build_model(cfg.model, layout, settings.precision).to(ranks.device)
        if cfg.data.get("baseline", "none") != "none":
            start_at_zero(model, layout.fields)  # a random residual would be worse than none
        if channels.weights != NO_WEIGHTS and not takes_weights(model):
            warnings.warn(
                f"{type(model).__name__} takes no token weights, so its gathers count tokens; "
                f"data.weights={channels.weights} serves only its loss and its draws",
                stacklevel=2,
            )
        objective = partial(
            FieldLoss,
            adapter=input_adapter(model),
            normalizer=loaders.normalizer,
            widths=tuple(channels.norms.values()),
            settings=settings,
            grid=grid,
            group=ranks.context_group,
        )
        constant = objective(model).errors_of_mean if centres_fields(cfg.data) else None
        return model, channels, objective, constant

    def describe(
        self, cfg: DictConfig, ranks: Ranks, assembly: "Assembly", chosen_on_test: bool
    ) -> tuple[Mapping[str, Any], Sequence[str]]:
        """Return what the run keeps of its training set, and doubts about the inputs."""
        loaders, channels = assembly.loaders, assembly.channels
        found = describe_training_set(loaders, channels, cfg.data, ranks, chosen_on_test)
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
        """Return the errors of a run in percent, and how they were measured, in Markdown."""
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
