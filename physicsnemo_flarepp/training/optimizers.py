"""AdamW, its schedule, and the moving average of the weights."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from ..mixers import Mixer
from .config import TrainingConfig

# The layers whose weights are matrices. Norms, biases, seeds, queries and temperatures are not
# decayed: shrinking them towards 0 would pull them from where they start, not regularise.
_DECAYED_LAYERS = (
    nn.Linear,
    nn.modules.conv._ConvNd,
)


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict]:
    """Return the parameters in two groups, those that decay and those that do not.

    Examples
    --------
    >>> layers = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3))
    >>> [len(group["params"]) for group in parameter_groups(layers, 0.1)]
    [1, 3]
    """
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

    Parameters
    ----------
    groups : list[dict]
        From :func:`parameter_groups`, the decayed first.
    residual : Sequence[torch.Tensor]
        Stored weights, of several times C rows and C columns, each C rows a residual projection.
    **options
        Of AdamW.

    Examples
    --------
    >>> weight = nn.Parameter(3 * torch.eye(2))
    >>> optimizer = ResidualAdamW([{"params": [weight], "weight_decay": 0.5}], [weight], lr=1.0)
    >>> weight.grad = torch.zeros(2, 2)
    >>> optimizer.step()
    >>> weight.diagonal().tolist()
    [2.0, 2.0]
    """

    def __init__(self, groups: list[dict], residual: Sequence[Tensor], **options) -> None:
        super().__init__(groups, **options)
        self._residual = list(residual)

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        """Update the parameters."""
        loss = super().step(closure)
        group = self.param_groups[0]
        amount = group["lr"] * group["weight_decay"]
        diagonals = [_diagonals(weight) for weight in self._residual if weight.grad is not None]
        if diagonals and amount > 0:
            # A gradient scaler leaves the verdict on the device; a skipped step adds nothing.
            found_inf = getattr(self, "found_inf", None)
            if found_inf is not None:
                amount = amount * (1 - found_inf).squeeze()
            torch._foreach_add_(diagonals, amount)
        return loss


def _diagonals(weight: Float[Tensor, "rows C"]) -> Float[Tensor, "projections C"]:
    width = weight.shape[1]
    return weight.detach().view(-1, width, width).diagonal(dim1=1, dim2=2)


def residual_weights(model: nn.Module) -> list[Tensor]:
    """Return the weights in which mixers store residual projections as I + W.

    Examples
    --------
    >>> from physicsnemo_flarepp import FlarePP
    >>> model = FlarePP(2, 1, n_layers=3, n_hidden=16, n_head=2, slice_num=4)
    >>> [tuple(weight.shape) for weight in residual_weights(model)]
    [(64, 16), (64, 16), (64, 16)]
    """
    return [
        mixer.project.weight
        for mixer in model.modules()
        if isinstance(mixer, Mixer) and getattr(mixer, "residual_projections", False)
    ]


def make_optimizer(model: nn.Module, settings: TrainingConfig) -> ResidualAdamW:
    """Return AdamW as the paper sets it; the fused kernel needs no host synchronisation."""
    return ResidualAdamW(
        parameter_groups(model, settings.weight_decay),
        [weight for weight in residual_weights(model) if weight.requires_grad],
        lr=settings.learning_rate,
        betas=(0.9, settings.beta2),
        eps=1e-8,
        fused=True,
    )


def make_schedule(
    optimizer: torch.optim.Optimizer, settings: TrainingConfig, total_steps: int
) -> torch.optim.lr_scheduler.OneCycleLR:
    """Return the one-cycle schedule over `total_steps`, with torch's cycling of beta_1.

    The rise and the fall take at least one step each: torch divides by their lengths.
    """
    if total_steps < 3:
        raise ValueError(
            f"the run has {total_steps} optimisation steps, the one-cycle schedule needs 3: raise "
            "training.epochs, or lower data.batch_size or training.accumulate"
        )
    return torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        max_lr=settings.learning_rate,
        total_steps=total_steps,
        pct_start=max(settings.pct_start, 2 / total_steps),
        div_factor=settings.div_factor,
        final_div_factor=settings.final_div_factor,
    )


class ExponentialAverage(AveragedModel):
    """Exponential moving average of the weights, updated where they are.

    torch's own update moves its counter to the device in every step, a copy that waits for the
    device; an exponential average does not use the counter, so only the first update needs it.
    """

    def update_parameters(self, model: nn.Module) -> None:
        """Average the weights of `model` in; the first call copies them."""
        if self.n_averaged == 0:
            super().update_parameters(model)
            return
        pairs = [[p.detach() for p in module.parameters()] for module in (self.module, model)]
        self.multi_avg_fn(*pairs, None)
        for averaged, current in zip(self.module.buffers(), model.buffers(), strict=True):
            averaged.copy_(current)
        self.n_averaged += 1


def make_average(model: nn.Module, decay: float) -> ExponentialAverage:
    """Return the exponential moving average of `model`; a decay of 0 follows the weights.

    Its counter stays on the host, where it is read at every update.
    """
    return ExponentialAverage(model, multi_avg_fn=get_ema_multi_avg_fn(decay))
