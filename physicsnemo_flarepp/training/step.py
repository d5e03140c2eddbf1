"""One optimisation step, plain or streamed; the plain one without a host synchronisation."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from tensordict import TensorDict
from torch import Tensor, nn
from torch.distributed import DeviceMesh
from torch.nn.utils import clip_grad_norm_
from torch.optim.swa_utils import AveragedModel

from ..datapipes.normalization import Normalizer
from ..inference import predict
from ..inference.prediction import unwrap
from ..inference.streams import Range
from ..parallel import sync_gradients
from .config import PRECISIONS, TrainingConfig
from .losses import RelativeL2, batch_errors, derivative_loss
from .planning import StreamChoice
from .streamed import streamed_step

Adapter = Callable[[TensorDict], dict[str, Tensor]]


class Objective(ABC):
    """What a model is trained for: the loss of a batch, and the errors that judge its cases.

    Models run in `precision`, by autocast.
    """

    def __init__(self, precision: str) -> None:
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

    def backward(self, batch: TensorDict, weigh: Callable[[Tensor], Tensor]) -> Float[Tensor, ""]:
        """Add the gradients of the weighed loss to those of the model; return the loss."""
        loss = self(batch)
        weigh(loss).backward()
        return loss.detach()


class FieldLoss(Objective):
    r"""Loss of a model on a batch: mean relative L2 of the fields in physical units.

    `forward` is the model, compiled or not, and `adapter` makes its keyword arguments of a batch.
    `widths` are the channels of the fields that have a norm of their own, `grid` is the shape
    of the tokens' grid for the derivatives, `group` the context group that shares the samples.
    """

    def __init__(
        self,
        forward: Callable[..., Tensor],
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
                f"need whole samples on a 2-D grid, got the grid {grid} "
                f"{'split over a context group' if group is not None else ''}; set it to 0, or "
                "parallel.context to 1 and data.n_points to null"
            )
        super().__init__(settings.precision)
        self.forward = forward
        self.adapter = adapter
        self.normalizer = normalizer
        self.widths = widths
        self.norm = settings.norm
        self.derivative_weight = settings.derivative_weight
        self.grid = grid
        self.group = group

    def predict(self, batch: TensorDict) -> Float[Tensor, "B N O"]:
        """Return the fields in physical units."""
        with self.autocast(batch):
            normalised = self.forward(**self.adapter(batch))
        return self.physical(normalised.float(), batch)

    def physical(self, normalised: Float[Tensor, "B N O"], batch: TensorDict) -> Tensor:
        """Return what the model gives for a batch in physical units."""
        given = batch.get("globals", None)
        return self.normalizer.inverse(normalised, batch["tokens"], given=given)

    def errors_of(
        self, prediction: Float[Tensor, "B N O"], batch: TensorDict
    ) -> Float[Tensor, "B F"]:
        """Return the relative L2 of each field of each case, for any prediction."""
        return batch_errors(prediction, batch, self.widths, self.norm, self.group)

    def errors(self, batch: TensorDict) -> Float[Tensor, "B F"]:
        """Return the relative L2 of each field of each case."""
        return self.errors_of(self.predict(batch), batch)

    def __call__(self, batch: TensorDict) -> Float[Tensor, ""]:
        """Return the loss, differentiable."""
        prediction = self.predict(batch)
        loss = self.errors_of(prediction, batch).mean()
        if self.derivative_weight > 0:
            smooth = derivative_loss(prediction, batch["fields"], self.grid, self.widths)
            loss = loss + self.derivative_weight * smooth
        return loss


class StreamedLoss(FieldLoss):
    """The same loss, of batches whose tokens are worked on in chunks that `choice` gives."""

    def __init__(self, model: nn.Module, choice: StreamChoice, **options) -> None:
        super().__init__(**options)
        self.model = unwrap(model)
        self.choice = choice

    def predict(self, batch: TensorDict) -> Float[Tensor, "B N O"]:
        """Return the fields in physical units; those of streamed batches have no gradient."""
        chunk = self.choice(*batch["tokens"].shape)
        if chunk is None:
            return super().predict(batch)
        with self.autocast(batch):
            normalised = predict(
                self.model, **self.adapter(batch), chunk_size=chunk, progress=False
            )
        normalised = normalised.float().to(batch["tokens"].device).flatten(1, -2)
        return self.physical(normalised, batch)

    def backward(self, batch: TensorDict, weigh: Callable[[Tensor], Tensor]) -> Float[Tensor, ""]:
        """Add the gradients of the weighed loss to those of the model; return the loss."""
        chunk = self.choice(*batch["tokens"].shape)
        if chunk is None:
            return super().backward(batch, weigh)
        inputs = {"embedding": None, **self.adapter(batch)}
        with self.autocast(batch):
            return streamed_step(
                self.model,
                **inputs,
                target=batch["fields"],
                loss=BatchSquares(batch, self.normalizer, self.widths, self.norm),
                chunk_size=chunk,
                factor=weigh(torch.ones((), device=batch["tokens"].device)),
            )


class BatchSquares(RelativeL2):
    """The relative L2 of the fields of a batch in physical units, over sums."""

    def __init__(
        self, batch: TensorDict, normalizer: Normalizer, widths: tuple[int, ...], norm: str
    ) -> None:
        weights = batch["weights"] if norm == "measure" else None
        super().__init__(batch.get("token_mask", None), weights, widths)
        self.tokens = batch["tokens"]
        self.given = batch.get("globals", None)
        self.normalizer = normalizer

    def sums(
        self, prediction: Float[Tensor, "B n O"], target: Float[Tensor, "B n O"], rows: Range
    ) -> Float[Tensor, "2 B F"]:
        """Return the squares of errors and of fields, added up over these tokens."""
        tokens = self.tokens[:, slice(*rows)]
        physical = self.normalizer.inverse(prediction.float(), tokens, given=self.given)
        return super().sums(physical, target, rows)


class TrainStep:
    """Forward, backward, synchronisation, clipping, update, schedule and moving average.

    `scaler` is torch's gradient scaler, disabled but for fp16; `mesh` has the axes "data" and
    "context".
    """

    def __init__(
        self,
        loss: Objective,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        schedule: torch.optim.lr_scheduler.LRScheduler,
        scaler: torch.amp.GradScaler,
        average: AveragedModel,
        clip_norm: float | None,
        mesh: DeviceMesh,
    ) -> None:
        self.loss = loss
        self.model = model
        # Walking over the modules takes as long as computing the norm.
        self._parameters = list(model.parameters())
        self.optimizer = optimizer
        self.schedule = schedule
        self.scaler = scaler
        self.average = average
        self.clip_norm = clip_norm
        self.mesh = mesh

    def __call__(self, batches: Sequence[TensorDict]) -> Float[Tensor, ""]:
        """Update the model with the mean gradient of `batches`; return their mean loss."""

        def weigh(loss: Tensor) -> Tensor:
            return self.scaler.scale(loss / len(batches))

        total = 0.0
        for batch in batches:
            total = total + self.loss.backward(batch, weigh) / len(batches)
        sync_gradients(self.model, self.mesh)
        self.scaler.unscale_(self.optimizer)
        if self.clip_norm is not None:
            clip_grad_norm_(self._parameters, self.clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        with warnings.catch_warnings():
            # The scaler may skip the very first update, which the schedule takes for a mistake.
            warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
            self.schedule.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.average.update_parameters(self.model)
        return total
