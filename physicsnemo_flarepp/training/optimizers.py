"""The optimisation step: AdamW, Muon, schedules of their rates, and the average of the weights."""

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from physicsnemo.optim import CombinedOptimizer
from tensordict import TensorDict
from torch import Tensor, nn
from torch.distributed import DeviceMesh
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from ..mixers import Mixer
from ..parallel import sync_gradients
from .config import TrainingConfig

if TYPE_CHECKING:
    from .tasks import Objective

# The layers whose weights are matrices. Norms, biases, seeds, queries and temperatures are not
# decayed: shrinking them towards 0 would pull them from where they start, not regularise.
_DECAYED_LAYERS = (nn.Linear, nn.modules.conv._ConvNd)


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict]:
    """Return the parameters in two groups, those that decay and those that do not."""
    decayed = {id(layer.weight) for layer in model.modules() if isinstance(layer, _DECAYED_LAYERS)}
    parameters = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in parameters if id(p) in decayed], "weight_decay": weight_decay},
        {"params": [p for p in parameters if id(p) not in decayed], "weight_decay": 0.0},
    ]


class ResidualAdamW(torch.optim.AdamW):
    r"""AdamW whose decay leaves the identity in residual projections.

    A projection :math:`x + W x` is stored as one weight :math:`I + W`. Decay belongs to W:
    :math:`(I + W) - \eta\lambda W` is what AdamW gives plus :math:`\eta\lambda I`, so that much is
    added to the diagonals after its step. State and checkpoints are those of AdamW.
    """

    def __init__(self, groups: list[dict], residual: Sequence[Tensor], **options) -> None:
        super().__init__(groups, **options)
        self._residual = list(residual)

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        """Update the parameters."""
        loss = super().step(closure)
        group = self.param_groups[0]
        # A gradient scaler leaves the verdict on the device; a skipped step adds nothing.
        skipped = getattr(self, "found_inf", None)
        _return_identity(self._residual, group["lr"] * group["weight_decay"], skipped)
        return loss


def _return_identity(
    residual: Iterable[Tensor], amount: float, found_inf: Tensor | None = None
) -> None:
    """Add to the diagonals what decay took from the identity; nothing if the step was skipped."""
    if amount <= 0:
        return
    scale = amount if found_inf is None else amount * (1 - found_inf).squeeze()
    # One by one: `_foreach_add_` would read a tensor on the host, and is no faster on views.
    for weight in residual:
        if weight.grad is not None:
            width = weight.shape[1]
            weight.detach().view(-1, width, width).diagonal(dim1=1, dim2=2).add_(scale)


def _residual_weights(model: nn.Module) -> list[Tensor]:
    """Return the weights in which mixers store residual projections as I + W."""
    return [
        mixer.project.weight
        for mixer in model.modules()
        if isinstance(mixer, Mixer)
        and getattr(mixer, "residual_projections", False)
        and isinstance(mixer.project, nn.Linear)  # an adapter keeps it frozen
    ]


# Of matrices that are iterated together on a CPU: half of a common second-level cache.
CACHED_BYTES = 2**19


class ResidualMuon(torch.optim.Muon):
    r"""Muon for matrices, some of which stack several maps, whose decay leaves the identity.

    The update of every map is the orthogonal factor of its momentum, at the size of AdamW's
    updates (``match_rms_adamw``). A weight that stacks projections is taken apart: of k maps in
    one matrix, none would be orthogonal on its own. Maps of one shape go through one batched
    product. torch computes the factor in bfloat16, where rounding differences between meshes of
    ranks grow to percents; here it has the precision of the weights.
    """

    def __init__(
        self,
        weights: Sequence[Tensor],
        stacked: Iterable[Tensor],
        residual: Iterable[Tensor],
        **options,
    ) -> None:
        super().__init__(weights, adjust_lr_fn="match_rms_adamw", **options)
        self._stacked = {id(weight) for weight in stacked}
        self._residual = list(residual)

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        """Update the parameters; leave them and the momentum where a scaler found an overflow."""
        if closure is not None:
            raise ValueError("ResidualMuon takes no closure: compute the gradients before the step")
        found_inf = getattr(self, "found_inf", None)
        for group in self.param_groups:
            weights, gradients, momenta = [], [], []
            self._init_group(group, weights, gradients, momenta)
            if not weights:
                continue
            changed = [] if found_inf is None else [*weights, *momenta]
            kept = [tensor.clone() for tensor in changed]
            torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
            directions = torch._foreach_lerp(gradients, momenta, group["momentum"])
            decay = group["lr"] * group["weight_decay"]
            torch._foreach_mul_(weights, 1 - decay)
            self._move(weights, directions, group)
            _return_identity(self._residual, decay)
            for tensor, before in zip(changed, kept, strict=True):
                tensor.copy_(torch.where(found_inf > 0, before, tensor))
        return None

    def _move(self, weights: list[Tensor], directions: list[Tensor], group: dict[str, Any]) -> None:
        """Step along the orthogonal factor of every map, those of one shape together."""
        alike: dict[tuple, list[tuple[Tensor, Tensor]]] = {}
        for weight, direction in zip(weights, directions, strict=True):
            rows = weight.shape[1] if id(weight) in self._stacked else len(weight)
            for pair in zip(weight.split(rows), direction.split(rows), strict=True):
                alike.setdefault((tuple(pair[0].shape), weight.dtype), []).append(pair)
        for (shape, _), pairs in alike.items():
            maps, moves = zip(*pairs, strict=True)
            factors = orthogonal_factors(
                torch.stack(moves), group["ns_coefficients"], group["ns_steps"], group["eps"]
            )
            size = 0.2 * math.sqrt(max(shape))
            torch._foreach_add_(list(maps), list(factors.unbind()), alpha=-group["lr"] * size)


def orthogonal_factors(
    matrices: Float[Tensor, "G rows columns"],
    coefficients: tuple[float, float, float],
    steps: int,
    eps: float,
) -> Float[Tensor, "G rows columns"]:
    """Return about the factor U V^T of each matrix U S V^T, by Newton and Schulz's iteration."""
    a, b, c = coefficients
    wide = matrices.mT if matrices.shape[1] > matrices.shape[2] else matrices
    at_once = len(wide)
    if wide.device.type == "cpu":  # in groups that stay in the cache during the iteration
        at_once = max(1, CACHED_BYTES // (wide[0].numel() * wide.element_size()))
    factors = []
    for x in wide.split(at_once):
        x = x / torch.linalg.matrix_norm(x, keepdim=True).clamp(min=eps)
        for _ in range(steps):
            gram = torch.bmm(x, x.mT)
            x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
        factors.append(x)
    x = torch.cat(factors)
    return x.mT if matrices.shape[1] > matrices.shape[2] else x


class MuonWithAdamW(CombinedOptimizer):
    """Muon on the matrices of the blocks and AdamW on the rest, which a scaler steps unasked."""

    # The verdict on overflows stays on the device, as with fused AdamW.
    _step_supports_amp_scaling = True

    def __init__(self, adamw: ResidualAdamW, muon: ResidualMuon) -> None:
        super().__init__([adamw, muon])

    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        """Update the parameters."""
        for optimizer in self.optimizers:
            optimizer.grad_scale = getattr(self, "grad_scale", None)
            optimizer.found_inf = getattr(self, "found_inf", None)
        return super().step(closure)


def block_matrices(model: nn.Module) -> list[Tensor]:
    """Return the weights of the Linears in the blocks of a model, which Muon optimises.

    Seeds and queries are not maps between channels, and in- and out-projections do not see
    activations on both sides: these are left to AdamW.
    """
    blocks = getattr(model, "blocks", None)
    if not isinstance(blocks, nn.Module):
        raise ValueError(
            f"training.optimizer is 'muon', but {type(model).__name__} has no `blocks` whose "
            "matrices it could optimise; set it to 'adamw'"
        )
    layers = [layer for layer in blocks.modules() if isinstance(layer, nn.Linear)]
    return list(dict.fromkeys(layer.weight for layer in layers if layer.weight.requires_grad))


def make_optimizer(model: nn.Module, settings: TrainingConfig) -> torch.optim.Optimizer:
    """Return AdamW as the paper sets it, or Muon beside it; neither waits for the device."""
    residual = [weight for weight in _residual_weights(model) if weight.requires_grad]
    groups = parameter_groups(model, settings.weight_decay)
    matrices = block_matrices(model) if settings.optimizer == "muon" else []
    taken = {id(weight) for weight in matrices}
    for group in groups:
        group["params"] = [p for p in group["params"] if id(p) not in taken]
    own = [weight for weight in residual if id(weight) not in taken]
    betas = (0.9, settings.beta2)
    adamw = ResidualAdamW(groups, own, lr=settings.learning_rate, betas=betas, eps=1e-8, fused=True)
    if not matrices:
        return adamw
    mixers = [module for module in model.modules() if isinstance(module, Mixer)]
    projections = [getattr(mixer, "project", None) for mixer in mixers]
    stacked = [layer.weight for layer in projections if isinstance(layer, nn.Linear)]
    rates = {"lr": settings.muon_learning_rate, "weight_decay": settings.weight_decay}
    return MuonWithAdamW(adamw, ResidualMuon(matrices, stacked, residual, **rates))


def adapt_blocks(model: nn.Module, rank: int) -> None:
    """Freeze a model but for PhysicsNeMo's LoRA beside the matrices of its blocks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is experimental
        from physicsnemo.experimental.peft import LoRAConfig, apply_lora

    def is_matrix(name: str, layer: nn.Module) -> bool:
        return ".blocks." in f".{name}" and isinstance(layer, nn.Linear)

    apply_lora(model, LoRAConfig(rank, target_filter=is_matrix), compute_fingerprint=False)


class ExponentialAverage(AveragedModel):
    """Exponential moving average of the weights, updated where they are.

    torch's own update moves its counter to the device in every step, a copy that waits for the
    device. An exponential average does not use the counter, which says here whether it has begun.
    """

    # The model averaged in, the parameters of both, and where their buffers are: walking over the
    # modules to find them takes longer than averaging. A model may replace its buffers.
    _found: tuple[nn.Module, list, list, list[tuple[nn.Module, nn.Module, str]]] | None = None

    def update_parameters(self, model: nn.Module) -> None:
        """Average the weights of `model` in; the first call copies them."""
        if self._found is None or self._found[0] is not model:
            if self.n_averaged == 0:
                super().update_parameters(model)
                return
            pairs = zip(self.module.modules(), model.modules(), strict=True)
            buffers = [
                (ours, theirs, name)
                for ours, theirs in pairs
                for name, _ in theirs.named_buffers(recurse=False)
            ]
            parameters = list(self.module.parameters()), list(model.parameters())
            self._found = (model, *parameters, buffers)
        _, averages, current, buffers = self._found
        self.multi_avg_fn(averages, current, None)
        for ours, theirs, name in buffers:
            getattr(ours, name).copy_(getattr(theirs, name))

    def load_state_dict(self, *arguments: Any, **options: Any) -> Any:
        """Load a state, and find parameters and buffers again in the next update."""
        self._found = None
        return super().load_state_dict(*arguments, **options)


def make_average(model: nn.Module, decay: float) -> ExponentialAverage:
    """Return the exponential moving average of `model`; a decay of 0 follows the weights."""
    return ExponentialAverage(model, multi_avg_fn=get_ema_multi_avg_fn(decay))


def clip_gradients(parameters: Iterable[Tensor], largest: float) -> None:
    """Shorten the gradient to a norm; torch's `clip_grad_norm_` does the same in twice the time."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        return
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    torch._foreach_mul_(gradients, (largest / (norm + 1e-6)).clamp(max=1.0))


class ShapedRate(LambdaLR):
    """Learning rates of all groups times a function of the step, also after its length changed."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue at the step of a state, with the rate that this schedule has there."""
        super().load_state_dict(state_dict)
        shapes = zip(self.base_lrs, self.lr_lambdas, strict=True)
        self._last_lr = [rate * shape(self.last_epoch) for rate, shape in shapes]
        for group, rate in zip(self.optimizer.param_groups, self._last_lr, strict=True):
            group["lr"] = rate


def make_schedule(
    optimizer: torch.optim.Optimizer, settings: TrainingConfig, total_steps: int
) -> LRScheduler:
    """Return the schedule of a run of `total_steps`.

    One-cycle is torch's, with its cycling of AdamW's beta_1. Its rise and fall take at least one
    step each: torch divides by their lengths.
    """
    if settings.schedule == "one_cycle":
        if total_steps < 3:
            raise ValueError(
                f"the run has {total_steps} optimisation steps, the one-cycle schedule needs 3: "
                "train longer, or lower data.batch_size or training.accumulate"
            )
        return OneCycleLR(
            optimizer,
            max_lr=[group["lr"] for group in optimizer.param_groups],
            total_steps=total_steps,
            pct_start=max(settings.pct_start, 2 / total_steps),
            div_factor=settings.div_factor,
            final_div_factor=settings.final_div_factor,
            cycle_momentum="betas" in optimizer.defaults,  # AdamW alone
        )
    short = total_steps < 2 * settings.warmup_steps
    warmup = total_steps // 10 if short else settings.warmup_steps

    def shape(step: int) -> float:
        rise = min(1.0, (step + 1) / (warmup + 1))
        if settings.schedule == "cosine":  # half of one, from 1 after the warm-up to 0 at the end
            passed = (step - warmup) / (total_steps - warmup)
            return rise * 0.5 * (1 + math.cos(math.pi * max(0.0, passed)))
        # Constant, then along a line to 0 over the last part of the run.
        fall = (total_steps - step) / max(1.0, settings.decay_fraction * total_steps)
        return rise * min(1.0, fall)

    return ShapedRate(optimizer, shape)


@dataclass
class TrainStep:
    """Forward, backward, synchronisation, clipping, update, schedule and moving average.

    `scaler` is torch's gradient scaler, disabled but for fp16; `mesh` has the axes "data" and
    "context".
    """

    loss: "Objective"
    model: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    scaler: torch.amp.GradScaler
    average: AveragedModel
    clip_norm: float | None
    mesh: DeviceMesh

    def __post_init__(self) -> None:
        # Walking over the modules takes as long as computing the norm.
        self._parameters = list(self.model.parameters())

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
            clip_gradients(self._parameters, self.clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        with warnings.catch_warnings():
            # The scaler may skip the very first update, which the schedule takes for a mistake.
            warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
            self.schedule.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.average.update_parameters(self.model)
        return total
