"""What a training run can be told, with the paper's values as defaults; checks and differences.

The help of the command is made from the classes here, so nothing that takes long is imported for
them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omegaconf import DictConfig

# Names of torch's dtypes.
PRECISIONS = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
FIELD_NORMS = ("separate", "joint")
NORMS = ("tokens", "measure")
OPTIMIZERS = ("adamw", "muon")
SCHEDULES = ("one_cycle", "cosine", "wsd")
SELECTIONS = ("last", "best", "best_on_test")
SECTIONS = ("model", "data", "training", "parallel", "seed", "threads")
# These change what is written, where or how fast, but no number of the run.
FREE = frozenset(
    {
        "device",
        "data.device",
        "data.num_workers",
        "data.pin_memory",
        "data.prefetch",
        "training.checkpoint_every",
        "training.evaluate_every",
        "training.keep_checkpoints",
        "training.log_every",
        "training.watch_test",
    }
)
_CHOICES = {
    "precision": tuple(PRECISIONS),
    "field_norms": FIELD_NORMS,
    "norm": NORMS,
    "optimizer": OPTIMIZERS,
    "schedule": SCHEDULES,
    "select": SELECTIONS,
}
_ABSENT = object()


@dataclass
class TrainingConfig:
    """Optimisation, evaluation and checkpointing of a run.

    Parameters
    ----------
    epochs : int
        Passes over the training cases.
    optimizer : str
        ``adamw``, or ``muon``: Muon for the matrices of the blocks, AdamW for all else.
    learning_rate : float
        Peak of the schedule of AdamW.
    muon_learning_rate : float
        Peak of the schedule of Muon.
    weight_decay : float
        On the weights of linear and convolution layers only.
    schedule : str
        ``one_cycle``; ``cosine`` after a warm-up; or ``wsd``: warm-up, constant rate, decay at the
        end. A run with ``wsd`` may go on with more epochs: it decays at the new end only.
    pct_start, div_factor, final_div_factor : float
        Shape of the one-cycle schedule, as torch names it.
    warmup_steps : int
        Steps in which ``cosine`` and ``wsd`` rise.
    decay_fraction : float
        Part of the run in which ``wsd`` falls to 0.
    clip_norm : float or None
        Largest norm of the gradient; None does not clip.
    beta2 : float
        AdamW's; its beta_1 is 0.9, and cycled by ``one_cycle`` where AdamW is alone.
    ema_decay : float
        Decay of the moving average of the weights that is evaluated; 0 evaluates the weights.
    precision : str
        ``fp32``, ``bf16`` (autocast) or ``fp16`` (autocast with a gradient scaler).
    tf32 : bool
        Allow TF32 in fp32 matrix products on CUDA.
    compile : str
        ``auto`` compiles the model on CUDA if gcc and Python's headers are there, ``true``
        everywhere, ``false`` nowhere.
    accumulate : int
        Batches per optimisation step.
    stream : int, str or None
        Tokens per chunk of steps that stream the mesh: loss and gradients are those of the plain
        step up to rounding, in the memory of a chunk. ``auto`` streams, in chunks that the planner
        chooses, the batches whose plain step does not fit the device; None streams none.
    derivative_weight : float
        Weight of the relative L2 loss of the fields' finite differences, on grids, for fields that
        are 0 on the boundary.
    field_norms : str
        ``separate``: relative L2 of each field, averaged. ``joint``: one norm over all channels.
    norm : str
        Norms of loss and metric: ``tokens``, sums over tokens as published, or ``measure``,
        integrals with the weights of `data`.
    evaluate_every : int
        Epochs between evaluations of the validation split; the last epoch is always evaluated.
    watch_test : bool
        Evaluate the test set as often, to draw its curve. By default no test case is read before
        the end of training.
    select : str
        Which weights are the result: ``last``, of the last epoch; ``best``, of the evaluated epoch
        with the lowest validation error; ``best_on_test``, with the lowest test error, which is
        too good a figure: only for comparison with results that were chosen so.
    checkpoint_every : int or None
        Steps between checkpoints; None saves after every epoch.
    keep_checkpoints : int
        Newest checkpoints that are kept, besides the best.
    log_every : int
        Steps between reads of the loss, the only moments at which a step waits for the device.
    """

    epochs: int = 500
    optimizer: str = "adamw"
    learning_rate: float = 1e-3
    muon_learning_rate: float = 1e-2
    weight_decay: float = 1e-5
    schedule: str = "one_cycle"
    pct_start: float = 0.1
    div_factor: float = 1e4
    final_div_factor: float = 1e4
    warmup_steps: int = 100
    decay_fraction: float = 0.2
    clip_norm: float | None = 1.0
    beta2: float = 0.999
    ema_decay: float = 0.999
    precision: str = "fp32"
    tf32: bool = False
    compile: Any = "auto"
    accumulate: int = 1
    stream: Any = None
    derivative_weight: float = 0.0
    field_norms: str = "separate"
    norm: str = "tokens"
    evaluate_every: int = 1
    watch_test: bool = False
    select: str = "last"
    checkpoint_every: int | None = None
    keep_checkpoints: int = 3
    log_every: int = 10


@dataclass
class ParallelSettings:
    """How the ranks are used.

    Parameters
    ----------
    context : int
        Ranks that share the tokens of a case; the rest of the ranks share the cases.
    """

    context: int = 1


@dataclass
class RunConfig:
    """The whole config of a run; an unknown key is an error.

    Parameters
    ----------
    model : Any
        ``_target_`` and arguments of the model; see :func:`~.feeding.build_model`.
    data : Any
        See :class:`~physicsnemo_flarepp.datapipes.config.DataConfig`.
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


def check_config(cfg: "DictConfig") -> "DictConfig":
    """Return `cfg` resolved and completed with defaults, or say what is wrong with it.

    Examples
    --------
    >>> from omegaconf import OmegaConf
    >>> cfg = {"model": {}, "data": {"builtin": "darcy"}, "run_dir": "out"}
    >>> check_config(OmegaConf.create({**cfg, "training": {"epochs": 3}})).training.ema_decay
    0.999
    >>> check_config(OmegaConf.create({**cfg, "training": {"precision": "fp8"}}))
    Traceback (most recent call last):
    ValueError: training.precision is 'fp8'; choose one of fp32, bf16, fp16
    """
    from omegaconf import OmegaConf

    cfg = OmegaConf.merge(OmegaConf.structured(RunConfig), cfg)
    OmegaConf.resolve(cfg)
    training = cfg.training
    for name, choices in _CHOICES.items():
        if training[name] not in choices:
            raise ValueError(
                f"training.{name} is {training[name]!r}; choose one of {', '.join(choices)}"
            )
    _check_weights(training.norm, cfg.data)
    if training.compile not in ("auto", True, False):
        raise ValueError(f"training.compile is {training.compile!r}; choose 'auto', true or false")
    for name in ("epochs", "accumulate", "evaluate_every", "keep_checkpoints", "log_every"):
        _check_at_least("training." + name, training[name], 1)
    if training.checkpoint_every is not None:
        _check_at_least("training.checkpoint_every", training.checkpoint_every, 1)
    _check_stream(training)
    if cfg.threads is not None:
        _check_at_least("threads", cfg.threads, 1)
    _check_at_least("parallel.context", cfg.parallel.context, 1)
    for name in ("weight_decay", "derivative_weight", "warmup_steps"):
        _check_at_least("training." + name, training[name], 0)
    for name in ("learning_rate", "muon_learning_rate"):
        if not training[name] > 0:
            raise ValueError(f"training.{name} is {training[name]}, expected a positive rate")
    if training.clip_norm is not None and not training.clip_norm > 0:
        raise ValueError(
            f"training.clip_norm is {training.clip_norm}, expected a positive norm, or null to "
            "clip nothing"
        )
    if not 0 <= training.ema_decay < 1:
        raise ValueError(
            f"training.ema_decay is {training.ema_decay}, expected at least 0 and below 1"
        )
    if not 0 < training.decay_fraction <= 1:
        raise ValueError(
            f"training.decay_fraction is {training.decay_fraction}, expected above 0, at most 1"
        )
    if not 0 <= training.beta2 < 1:
        raise ValueError(f"training.beta2 is {training.beta2}, expected at least 0 and below 1")
    return cfg


def _check_stream(training: "DictConfig") -> None:
    stream = training.stream
    if stream is None:
        return
    if stream != "auto" and (isinstance(stream, bool) or not isinstance(stream, int) or stream < 1):
        raise ValueError(
            f"training.stream is {stream!r}; choose a number of tokens per chunk, 'auto' or null"
        )
    if training.derivative_weight > 0:
        raise ValueError(
            f"training.stream is {stream!r} and training.derivative_weight "
            f"{training.derivative_weight}: finite differences couple tokens of different chunks. "
            "Set one of them to null or 0"
        )
    if training.compile is True:
        raise ValueError(
            f"training.compile is true, but training.stream is {stream!r}: streamed steps run the "
            "model in stages, which are not compiled. Set training.compile to false"
        )


def _check_weights(norm: str, data: "DictConfig") -> None:
    if norm == "measure" and data.get("weights", "none") == "none":
        raise ValueError(
            "training.norm is 'measure', but data.weights is 'none': integrals need the weights of "
            "the tokens. Set data.weights to 'measure'"
        )
    if norm == "tokens" and data.get("sampling_density", "cells") == "area":
        raise ValueError(
            "data.sampling_density is 'area', but training.norm is 'tokens': tokens drawn by area "
            "give integrals, not sums over the tokens of a case. Set training.norm to 'measure', "
            "or data.sampling_density to 'cells'"
        )


def config_difference(
    saved: "Mapping[str, Any] | DictConfig", current: "Mapping[str, Any] | DictConfig"
) -> list[str]:
    """List the values that would make a resumed run another run, one line each.

    With the schedule ``wsd`` the number of epochs may differ: the run is prolonged, or cut. Where
    the weights are chosen by their errors, ``evaluate_every`` may not: it says which can be chosen.

    Parameters
    ----------
    saved, current : Mapping or DictConfig
        Whole configs; interpolations are resolved first. Compared are the ``SECTIONS``, and within
        them the names in ``FREE`` may differ.

    Returns
    -------
    list of str
        Empty if the run can go on.

    Examples
    --------
    >>> saved = {"model": {"n_hidden": 128, "n_head": 8}, "training": {"log_every": 10}}
    >>> current = {"model": {"n_hidden": 64}, "training": {"log_every": 50}}
    >>> for line in config_difference(saved, current):
    ...     print(line)
    model.n_head: 8 in the checkpoint, absent now
    model.n_hidden: 128 in the checkpoint, 64 now
    """
    before, now = (_leaves(_plain(config)) for config in (saved, current))
    free = FREE | {"training.epochs"} if now.get("training.schedule") == "wsd" else FREE
    if now.get("training.select", "last") != "last":  # among the epochs that are evaluated
        free = free - {"training.evaluate_every"}
    return [
        f"{name}: {_shown(before, name)} in the checkpoint, {_shown(now, name)} now"
        for name in sorted((before.keys() | now.keys()) - free)
        if not _same(before.get(name, _ABSENT), now.get(name, _ABSENT))
    ]


def check_same_config(
    saved: "Mapping[str, Any] | DictConfig", current: "Mapping[str, Any] | DictConfig"
) -> None:
    """Raise ValueError with the differences, and what to do, if a run cannot go on as it was.

    Parameters
    ----------
    saved, current
        As in :func:`config_difference`.
    """
    lines = config_difference(saved, current)
    if lines:
        raise ValueError(
            "the run directory holds checkpoints of another config:\n  "
            + "\n  ".join(lines)
            + "\nGive back these values to resume, choose another run_dir for a new run, or set "
            "restart=true to start this one again from the beginning"
        )


def _plain(config: "Mapping[str, Any] | DictConfig") -> Mapping[str, Any]:
    from omegaconf import DictConfig, OmegaConf

    if isinstance(config, DictConfig):
        return OmegaConf.to_container(config, resolve=True)
    return config


def _leaves(config: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten the sections to {"model.n_hidden": 128}; lists are leaves, empty mappings none."""
    leaves: dict[str, Any] = {}

    def visit(name: str, value: Any) -> None:
        if isinstance(value, Mapping):
            for key, item in value.items():
                visit(f"{name}.{key}", item)
        else:
            leaves[name] = value

    for section in SECTIONS:
        if section in config:
            visit(section, config[section])
    return leaves


def _same(a: Any, b: Any) -> bool:
    """Compare values of YAML; a tuple equals a list, 2 equals 2.0, but 1 is not True."""
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_same(value, b[key]) for key, value in a.items())
    if isinstance(a, bool) != isinstance(b, bool):
        return False
    both_nan = a != a and b != b
    return both_nan or a == b


def _shown(leaves: dict[str, Any], name: str) -> str:
    return repr(leaves[name]) if name in leaves else "absent"


def _check_at_least(name: str, value: float, least: float) -> None:
    if value < least:
        raise ValueError(f"{name} is {value}, expected at least {least}")
