"""Learning rates over the steps of a run: one-cycle, cosine, and constant with a decay."""

import math
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR

from .config import TrainingConfig


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
        if settings.schedule == "cosine":
            return rise * _cosine(step, total_steps, warmup)
        return rise * _stable_decay(step, total_steps, settings.decay_fraction)

    return ShapedRate(optimizer, shape)


def _cosine(step: int, total_steps: int, warmup: int) -> float:
    """Fall from 1 after the warm-up to 0 at the end, in half a cosine."""
    passed = (step - warmup) / (total_steps - warmup)
    return 0.5 * (1 + math.cos(math.pi * max(0.0, passed)))


def _stable_decay(step: int, total_steps: int, fraction: float) -> float:
    """Stay at 1, then fall along a line to 0 over the last part of the run."""
    return min(1.0, (total_steps - step) / max(1.0, fraction * total_steps))
