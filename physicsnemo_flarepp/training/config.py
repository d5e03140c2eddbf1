"""Settings of a training run, with the paper's values as defaults; checks and differences.

The help of the command is made from the classes here, so nothing slow is imported for them.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..datapipes.config import setting

if TYPE_CHECKING:
    from omegaconf import DictConfig

CONFIGS = "physicsnemo_flarepp.conf"
# Names of torch's dtypes.
PRECISIONS = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
# Of which a run has one; minutes become steps when it begins.
BUDGETS = ("epochs", "steps", "minutes")
# How tables describe each, filled in from the settings; optimizers.make_optimizer builds them.
OPTIMIZERS = {
    "adamw": "AdamW lr {learning_rate:.3g}",
    "muon": "Muon lr {muon_learning_rate:.3g}, AdamW lr {learning_rate:.3g}",
}
SECTIONS = ("model", "data", "training", "parallel", "seed", "threads")
# These change what is written, where or how fast, but no number of the run.
FREE = frozenset(
    "device data.device data.num_workers data.memory data.pin_memory data.prefetch "
    "training.checkpoint_every training.evaluate_every training.keep_checkpoints "
    "training.log_every training.watch_test".split()
)
_CHOICES = {
    "precision": tuple(PRECISIONS),
    "field_norms": ("separate", "joint"),
    "norm": ("tokens", "measure", "auto"),
    "optimizer": tuple(OPTIMIZERS),
    "schedule": ("one_cycle", "cosine", "wsd"),
    "select": ("last", "best", "best_on_test"),
    "compile": ("auto", True, False, "graphs"),
}
# Ranges of numbers, each with what it expects; null is left to other checks.
_RANGES = (
    ("at least 1", lambda x: x >= 1, "training.epochs training.steps training.accumulate "
     "training.evaluate_every training.checkpoint_every training.keep_checkpoints "
     "training.log_every training.lora_rank parallel.context"),
    ("at least 0", lambda x: x >= 0,
     "training.weight_decay training.derivative_weight training.warmup_steps"),
    ("a positive rate", lambda x: x > 0, "training.learning_rate training.muon_learning_rate"),
    ("a positive norm, or null to clip nothing", lambda x: x > 0, "training.clip_norm"),
    ("a positive time", lambda x: x > 0, "training.minutes"),
    ("at least 0 and below 1", lambda x: 0 <= x < 1, "training.ema_decay training.beta2"),
    ("above 0, at most 1", lambda x: 0 < x <= 1, "training.decay_fraction"),
)  # fmt: skip
_ABSENT = object()


@dataclass
class TrainingConfig:
    """Optimisation, evaluation and checkpointing of a run. See ``flarepp train --help``."""

    epochs: int | None = setting(
        500, "Passes over the training cases. Set one of epochs, steps and minutes."
    )
    steps: int | None = setting(None, "Optimisation steps of the run, instead of epochs.")
    minutes: float | None = setting(
        None,
        "Time for the steps of the run, instead of epochs. It becomes training.steps when the run "
        "begins, from the time of its first steps; a resumed run keeps that number.",
    )
    start_from: str | None = setting(
        None, "Run directory whose final weights start this run; null: random weights."
    )
    optimizer: str = setting(
        "adamw", "adamw, or muon: Muon for the matrices of the blocks, AdamW for all else."
    )
    learning_rate: float = setting(1e-3, "Peak learning rate of AdamW.")
    muon_learning_rate: float = setting(1e-2, "Peak learning rate of Muon.")
    lora_rank: int | None = setting(
        None,
        "With start_from: train only matrices of this rank beside the blocks' own (LoRA, by "
        "AdamW), and merge them into the weights that are saved for use. null: train all weights.",
    )
    weight_decay: float = setting(
        1e-5, "Applied to the weights of linear and convolution layers only."
    )
    schedule: str = setting(
        "one_cycle",
        "one_cycle; cosine after a warm-up; or wsd: warm-up, constant rate, decay at the end. A "
        "run with wsd may be resumed with more epochs: it decays at the new end only.",
    )
    pct_start: float = setting(0.1, "Part of the one-cycle schedule in which the rate rises.")
    div_factor: float = setting(1e4, "One-cycle: peak rate over first rate.")
    final_div_factor: float = setting(1e4, "One-cycle: first rate over last rate.")
    warmup_steps: int = setting(
        100,
        "Steps in which cosine and wsd rise; in a run of fewer than twice as many, a tenth of it.",
    )
    decay_fraction: float = setting(0.2, "Part of the run in which wsd falls to 0.")
    clip_norm: float | None = setting(1.0, "Largest norm of the gradient; null does not clip.")
    beta2: float = setting(
        0.999, "AdamW's; its beta_1 is 0.9, and cycled by one_cycle where AdamW is alone."
    )
    ema_decay: float = setting(
        0.999,
        "Decay of the moving average of the weights that is evaluated; 0 evaluates the weights.",
    )
    precision: str = setting(
        "fp32", "fp32, bf16 (autocast) or fp16 (autocast with a gradient scaler)."
    )
    tf32: bool = setting(False, "Allow TF32 in fp32 matrix products on CUDA.")
    compile: Any = setting(
        "auto",
        "auto compiles the model on CUDA if gcc and Python's headers are there, true everywhere, "
        "false nowhere. graphs also replays the model as CUDA graphs, one for each size of a step.",
    )
    accumulate: int = setting(1, "Batches per optimisation step.")
    stream: Any = setting(
        None,
        "Tokens per chunk of steps that stream the mesh: loss and gradients equal the plain step's "
        "up to rounding, in the memory of a chunk. auto streams, in chunks that the planner "
        "chooses, the batches whose plain step does not fit the device; null streams none.",
    )
    derivative_weight: float = setting(
        0.0,
        "Weight of the relative L2 loss of the fields' finite differences, on grids, for fields "
        "that are 0 on the boundary.",
    )
    field_norms: str = setting(
        "separate",
        "separate: relative L2 of each field, averaged. joint: one norm over all channels.",
    )
    norm: str = setting(
        "tokens",
        "Norms of loss and metric: tokens, sums over tokens as published, or measure, integrals "
        "with the weights of data. auto: measure if data has weights.",
    )
    evaluate_every: int | None = setting(
        1,
        "Epochs between evaluations of the validation split; the end of the run is always "
        "evaluated. null: 20 times in a run.",
    )
    watch_test: bool = setting(
        False,
        "Evaluate the test set as often as the validation split, to draw its curve. By default "
        "no test case is read before the end of training.",
    )
    select: str = setting(
        "last",
        "Which weights are the result: last, of the last epoch; best, of the evaluated epoch with "
        "the lowest validation error; best_on_test, with the lowest test error, which is then "
        "optimistic: only for comparison with results selected the same way.",
    )
    checkpoint_every: int | None = setting(
        None, "Steps between checkpoints; null saves after every epoch."
    )
    keep_checkpoints: int = setting(3, "Number of newest checkpoints to keep, besides the best.")
    log_every: int = setting(
        10,
        "Steps between reads of the loss, the only moments at which a step waits for the device.",
    )


@dataclass
class ParallelSettings:
    """How the ranks are used."""

    context: int = setting(
        1, "Ranks that share the tokens of a case; the rest of the ranks share the cases."
    )


@dataclass
class RunConfig:
    """The whole config of a run; an unknown key is an error. See ``flarepp train --help``."""

    model: Any
    data: Any
    run_dir: str
    training: TrainingConfig = field(default_factory=TrainingConfig)
    parallel: ParallelSettings = field(default_factory=ParallelSettings)
    seed: int = setting(0, "Seed of the weights, the order of the cases and the tokens drawn.")
    device: str = setting("auto", "auto, cpu, cuda or cuda:<i>.")
    threads: Any = setting(
        None,
        "CPU threads of a process; null leaves it to torch. auto tries 1, 8 and all cores on the "
        "first steps and keeps the fastest. Where other programs use the cores, a small model is "
        "fastest with 1: threads that wait for each other wait for those programs.",
    )
    label: str = setting("", "Name of the run in tables and figures.")
    restart: bool = setting(False, "Delete this run's files and start over.")


def compose(entry: str, overrides: Sequence[str]) -> "DictConfig":
    """Return the config of this name as Hydra composes it of overrides."""
    import hydra

    with hydra.initialize_config_module(CONFIGS, version_base="1.3"):
        return hydra.compose(entry, list(overrides))


def check_config(cfg: "DictConfig") -> "DictConfig":
    """Return `cfg` resolved and completed with defaults, or say what is wrong with it."""
    from omegaconf import OmegaConf

    cfg = OmegaConf.merge(OmegaConf.structured(RunConfig), cfg)
    OmegaConf.resolve(cfg)
    training = cfg.training
    for name, choices in _CHOICES.items():
        if training[name] not in choices:
            listed = ", ".join(str(choice).lower() for choice in choices)
            raise ValueError(f"training.{name} is {training[name]!r}; choose one of {listed}")
    _check_weights(training.norm, cfg.data)
    for expected, fits, names in _RANGES:
        for name in names.split():
            value = OmegaConf.select(cfg, name)
            if value is not None and not fits(value):
                raise ValueError(f"{name} is {value}, expected {expected}")
    threads = cfg.threads
    if threads not in (None, "auto") and (type(threads) is not int or threads < 1):
        raise ValueError(f"threads is {threads!r}, expected at least 1, 'auto' or null")
    given = {name: training[name] for name in BUDGETS if training[name] is not None}
    if not given or "epochs" in given and len(given) > 1:
        raise ValueError(
            f"the length of the run is {given or 'not given'}; give one of training.epochs, "
            "training.steps and training.minutes, and null for the others"
        )
    if training.lora_rank is not None and training.start_from is None:
        raise ValueError(
            f"training.lora_rank is {training.lora_rank}, but adapters need weights to adapt; give "
            "training.start_from=RUN"
        )
    _check_stream(training)
    return cfg


def folder_name(path: str) -> str:
    """Return the name of a folder or of a file of data, for the names of run directories."""
    return re.sub(r"[^\w.+=-]+", "_", Path(path).resolve().stem)


def one_budget(given: "Mapping[str, Any]") -> dict[str, None]:
    """Return which lengths a run does not have, because `given` settings name another."""
    named = [name for name in BUDGETS if given.get(name) is not None]
    return {name: None for name in BUDGETS if named and name not in given}


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
            f"training.stream is {stream!r}, but the differences of training.derivative_weight "
            "couple tokens of different chunks. Set one of them to null or 0"
        )
    if training.compile in (True, "graphs"):
        raise ValueError(
            f"training.compile is {str(training.compile).lower()}, but training.stream is "
            f"{stream!r}: streamed steps run the model in stages, which are not compiled. Set "
            "training.compile to false"
        )


def _check_weights(norm: str, data: "DictConfig") -> None:
    if norm == "measure" and data.get("weights", "none") == "none":
        raise ValueError(
            "training.norm is 'measure', but data.weights is 'none': integrals need the weights of "
            "the tokens. Set data.weights to 'measure'"
        )
    if norm == "tokens" and data.get("sampling_density", "cells") == "area":
        raise ValueError(
            "data.sampling_density is 'area', but training.norm is 'tokens': such tokens give "
            "integrals. Set training.norm to 'measure', or data.sampling_density to 'cells'"
        )


def config_difference(
    saved: "Mapping[str, Any] | DictConfig", current: "Mapping[str, Any] | DictConfig"
) -> list[str]:
    """List the values that would make a resumed run another run, one line each."""
    from omegaconf import DictConfig, OmegaConf

    def leaves(config: Any) -> dict[str, Any]:
        if isinstance(config, DictConfig):
            config = OmegaConf.to_container(config, resolve=True)
        return _leaves({name: config[name] for name in SECTIONS if name in config})

    before, now = leaves(saved), leaves(current)
    # With the schedule ``wsd`` the length may differ: the run is prolonged, or cut.
    lengths = {f"training.{name}" for name in BUDGETS}
    free = FREE | lengths if now.get("training.schedule") == "wsd" else FREE
    if now.get("training.select", "last") != "last":  # among the epochs that are evaluated
        free = free - {"training.evaluate_every"}
    lines = []
    for name in sorted((before.keys() | now.keys()) - free):
        if not _same(before.get(name, _ABSENT), now.get(name, _ABSENT)):
            was, is_now = (repr(v[name]) if name in v else "absent" for v in (before, now))
            lines.append(f"{name}: {was} in the checkpoint, {is_now} now")
    return lines


def check_same_config(
    saved: "Mapping[str, Any] | DictConfig", current: "Mapping[str, Any] | DictConfig"
) -> None:
    """Raise ValueError with the differences, and what to do, if a run cannot be resumed."""
    lines = config_difference(saved, current)
    if lines:
        further = ""
        if all(line.startswith("training.") for line in lines):
            run = current.get("run_dir", "RUN")
            further = (
                f" To train further from its weights, start a new run: training.start_from={run} "
                "run_dir=NEW. Only runs with training.schedule=wsd can be made longer in place"
            )
        raise ValueError(
            "the run directory holds checkpoints of another config:\n"
            + "\n".join(f"  - {line}" for line in lines)
            + "\nRestore these values to resume, choose another run_dir for a new run, or set "
            f"restart=true to start this one again from the beginning.{further}"
        )


def _leaves(config: "Mapping[str, Any] | DictConfig", prefix: str = "") -> dict[str, Any]:
    """Flatten a config to {"model.n_hidden": 128}; lists are leaves, empty mappings none."""
    leaves: dict[str, Any] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        leaves |= _leaves(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
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
