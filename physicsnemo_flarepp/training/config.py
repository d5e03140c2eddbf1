"""What a training run can be told, with the paper's values as defaults, and checks of it."""

from dataclasses import dataclass, field
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
FIELD_NORMS = ("separate", "joint")


@dataclass
class TrainingConfig:
    """Optimisation, evaluation and checkpointing of a run.

    Parameters
    ----------
    epochs : int
        Passes over the training cases.
    learning_rate : float
        Peak of the one-cycle schedule.
    weight_decay : float
        AdamW's, on the weights of linear and convolution layers only.
    pct_start, div_factor, final_div_factor : float
        Shape of the one-cycle schedule, as torch names it.
    clip_norm : float or None
        Largest norm of the gradient; None does not clip.
    beta2 : float
        AdamW's; its beta_1 is cycled by the schedule.
    ema_decay : float
        Decay of the moving average of the weights that is evaluated; 0 evaluates the weights.
    precision : str
        ``fp32``, ``bf16`` (autocast) or ``fp16`` (autocast with a gradient scaler).
    tf32 : bool
        Allow TF32 in fp32 matrix products on CUDA.
    compile : str
        ``auto`` compiles the model on CUDA, ``true`` everywhere, ``false`` nowhere.
    accumulate : int
        Batches per optimisation step.
    derivative_weight : float
        Weight of the relative L2 loss of the fields' finite differences, on grids, for fields that
        are 0 on the boundary.
    field_norms : str
        ``separate``: relative L2 of each field, averaged. ``joint``: one norm over all channels.
    evaluate_every : int
        Epochs between evaluations of the test set; the last epoch is always evaluated.
    checkpoint_every : int or None
        Steps between checkpoints; None saves after every epoch.
    keep_checkpoints : int
        Newest checkpoints that are kept, besides the best.
    log_every : int
        Steps between reads of the loss, the only moments at which a step waits for the device.
    """

    epochs: int = 500
    learning_rate: float = 1e-3
    weight_decay: float = 1e-5
    pct_start: float = 0.1
    div_factor: float = 1e4
    final_div_factor: float = 1e4
    clip_norm: float | None = 1.0
    beta2: float = 0.999
    ema_decay: float = 0.999
    precision: str = "fp32"
    tf32: bool = False
    compile: Any = "auto"
    accumulate: int = 1
    derivative_weight: float = 0.0
    field_norms: str = "separate"
    evaluate_every: int = 1
    checkpoint_every: int | None = None
    keep_checkpoints: int = 3
    log_every: int = 10


@dataclass
class ParallelSettings:
    """How the ranks are used: `context` of them share each sample, the rest is data parallel."""

    context: int = 1


@dataclass
class RunConfig:
    """The whole config of a run; an unknown key is an error.

    Parameters
    ----------
    model : Any
        ``_target_`` and arguments of the model; see :func:`~.feeding.build_model`.
    data : Any
        See :class:`~physicsnemo_flarepp.datapipes.loaders.DataConfig`.
    run_dir : str
        Where the run lives. A run that was stopped goes on from there.
    training : TrainingConfig
        Optimisation, evaluation and checkpointing.
    parallel : ParallelSettings
        How the ranks are used.
    seed : int
        Of the weights, the order of the cases and the tokens drawn.
    device : str
        ``auto``, ``cpu``, ``cuda`` or ``cuda:<i>``.
    threads : int or None
        CPU threads of a process; None leaves it to torch. Where other programs use the cores, a
        small model is fastest with 1: threads that wait for each other wait for those programs.
    label : str
        Name of the run in tables and figures.
    restart : bool
        Delete what is in `run_dir` and begin anew.
    """

    model: Any
    data: Any
    run_dir: str
    training: TrainingConfig = field(default_factory=TrainingConfig)
    parallel: ParallelSettings = field(default_factory=ParallelSettings)
    seed: int = 0
    device: str = "auto"
    threads: int | None = None
    label: str = ""
    restart: bool = False


def check_config(cfg: DictConfig) -> DictConfig:
    """Return `cfg` resolved and completed with defaults, or say what is wrong with it.

    Examples
    --------
    >>> cfg = {"model": {}, "data": {"builtin": "darcy"}, "run_dir": "out"}
    >>> check_config(OmegaConf.create({**cfg, "training": {"epochs": 3}})).training.ema_decay
    0.999
    >>> check_config(OmegaConf.create({**cfg, "training": {"precision": "fp8"}}))
    Traceback (most recent call last):
    ValueError: training.precision is 'fp8'; choose one of fp32, bf16, fp16
    """
    cfg = OmegaConf.merge(OmegaConf.structured(RunConfig), cfg)
    OmegaConf.resolve(cfg)
    training = cfg.training
    if training.precision not in PRECISIONS:
        raise ValueError(
            f"training.precision is {training.precision!r}; choose one of {', '.join(PRECISIONS)}"
        )
    if training.field_norms not in FIELD_NORMS:
        raise ValueError(
            f"training.field_norms is {training.field_norms!r}; choose one of "
            f"{', '.join(FIELD_NORMS)}"
        )
    if training.compile not in ("auto", True, False):
        raise ValueError(f"training.compile is {training.compile!r}; choose 'auto', true or false")
    for name in ("epochs", "accumulate", "evaluate_every", "keep_checkpoints", "log_every"):
        _check_at_least("training." + name, training[name], 1)
    if training.checkpoint_every is not None:
        _check_at_least("training.checkpoint_every", training.checkpoint_every, 1)
    if cfg.threads is not None:
        _check_at_least("threads", cfg.threads, 1)
    _check_at_least("parallel.context", cfg.parallel.context, 1)
    for name in ("weight_decay", "derivative_weight"):
        _check_at_least("training." + name, training[name], 0)
    if training.learning_rate <= 0 or not 0 <= training.ema_decay < 1:
        raise ValueError(
            f"training.learning_rate is {training.learning_rate} and training.ema_decay "
            f"{training.ema_decay}; expected a positive rate and a decay of at least 0, below 1"
        )
    if not 0 <= training.beta2 < 1:
        raise ValueError(f"training.beta2 is {training.beta2}, expected at least 0 and below 1")
    return cfg


def _check_at_least(name: str, value: float, least: float) -> None:
    if value < least:
        raise ValueError(f"{name} is {value}, expected at least {least}")
