"""Train a config: assemble all that it needs, begin or resume its run, and leave its results."""

import itertools
import os
import shutil
import signal
import statistics
import sysconfig
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from omegaconf import DictConfig, OmegaConf
from physicsnemo.core import Module
from torch import Tensor
from torch.optim.swa_utils import AveragedModel

from ..datapipes.channels import Channels
from ..datapipes.loaders import Loaders
from ..datapipes.readers.memory import MemoryCases, from_dataset
from ..parallel import enable_context_parallel, initialize, make_mesh
from ..parallel.launch import find_device
from ..parallel.ranks import Ranks, on_first_rank
from ..runs.checkpoints import Checkpoint, CheckpointStore, load_training_state
from ..runs.directory import NORMALIZER, RunDirectory
from ..runs.trained_run import load_run
from ..runs.training_set import check_same_data, data_files, read_training_set
from .config import (
    TrainingConfig,
    check_config,
    check_same_config,
    compose,
    folder_name,
    one_budget,
)
from .optimizers import TrainStep, adapt_blocks, make_average, make_optimizer, make_schedule
from .planning import StreamChoice
from .reporting import Reporter
from .tasks import Measure, Objective, task_of
from .trainer import Selection, Trainer

# Steps that each number of threads is tried for, after one to warm up.
_TRIED_STEPS = 5


@dataclass(frozen=True)
class Assembly:
    """What a training loop needs; `evaluation` judges the averaged weights."""

    loaders: Loaders
    channels: Channels
    model: Module
    step: TrainStep
    evaluation: Objective
    constant: Measure | None  # errors of the best guess that ignores the inputs
    steps_per_epoch: int
    total_steps: int

    @property
    def epochs(self) -> int:
        """Passes over the training cases, of which the last may be a part."""
        return -(-self.total_steps // self.steps_per_epoch)

    @property
    def fields(self) -> dict[str, int]:
        """What has an error of its own, and its channels."""
        return self.channels.norms

    @property
    def average(self) -> AveragedModel:
        """The moving average of the weights."""
        return self.step.average

    @property
    def parameters(self) -> int:
        """Size of the model."""
        return sum(p.numel() for p in self.model.parameters())


@dataclass(frozen=True)
class TrainingResult:
    """What :func:`train` leaves.

    Parameters
    ----------
    directory, is_main
        The run directory, and whether this process is the one that writes.
    fields, errors
        What has an error of its own, and the relative L2 errors of the cases of `split`, (cases,
        fields), with the averaged weights; None if the run was stopped before its end.
    mean_predictor_error : float or None
        Mean error of predicting the mean of the training set; None if that is not known, too.
    parameters, stopped_by
        Size of the model, and the signal that stopped the run before its end, if one did.
    split, selection
        What the errors are of, ``test`` or without a test split ``val``; and of which weights.
    baselines : Mapping[str, float]
        Mean errors on the same cases of predictors that need no network; empty if it was stopped.
    """

    directory: Path
    is_main: bool
    fields: tuple[str, ...]
    errors: Float[Tensor, "cases F"] | None
    mean_predictor_error: float | None
    parameters: int
    stopped_by: str | None = None
    split: str = "test"
    selection: Selection | None = None
    baselines: Mapping[str, float] = field(default_factory=dict)

    @property
    def error(self) -> float:
        """Mean error over cases and fields."""
        return self.errors.mean().item()

    def exit_code(self) -> int:
        """Code for ``sys.exit``: 0 after the end, 128 + signal after a stop, as shells have it."""
        if self.stopped_by is None:
            return 0
        return 128 + getattr(signal, self.stopped_by, signal.SIGTERM)


def train(
    cfg: Mapping[str, Any] | DictConfig, data: MemoryCases | Sequence | None = None
) -> TrainingResult:
    """Train to the end of the config, from the last checkpoint in ``run_dir`` if there is one.

    Under torchrun, srun or mpirun all ranks call it: ``parallel.context`` of them share each
    sample, the others read different samples.

    Parameters
    ----------
    cfg : Mapping or DictConfig
        See :class:`~.config.RunConfig`. The model may be a name, ``{"model": "flare"}``. Without
        data, or with your own, what is not given is as on the command line: a small FLARE++.
    data : MemoryCases or data set, optional
        Cases in memory (:func:`~physicsnemo_flarepp.datapipes.from_meshes`, ``from_arrays``), or
        any data set of dicts (:func:`~physicsnemo_flarepp.datapipes.from_dataset`), instead of
        the files of ``cfg.data``.

    Returns
    -------
    TrainingResult
        Directory and errors.
    """
    if data is not None and not isinstance(data, MemoryCases):
        data = from_dataset(data)
    cfg = check_config(with_defaults(cfg, in_memory=data is not None))
    ranks = start_ranks(cfg)
    guesses = task_of(cfg).complete(cfg, data)
    with RunDirectory(cfg.run_dir) as directory:
        return _train_in(directory, cfg, ranks, data, guesses)


def _train_in(
    directory: RunDirectory,
    cfg: DictConfig,
    ranks: Ranks,
    data: MemoryCases | None,
    guesses: Sequence[str],
) -> TrainingResult:
    is_main, task = ranks.is_first, task_of(cfg)
    reporter = Reporter(is_main, constant=task.constant_name)
    for guess in guesses:
        reporter.say(f"data: {guess}")
    store = CheckpointStore(directory.checkpoints, keep=cfg.training.keep_checkpoints)
    state = _find_state(cfg, directory, store, reporter)
    stored = None if state is None else directory.path / NORMALIZER
    loaders = load_data(cfg, ranks, stored, data)
    if state is not None:

        def check_data() -> None:
            found = data_files(loaders, test=cfg.training.select == "best_on_test")
            check_same_data(read_training_set(directory.path)["files"], found, directory.path)

        on_first_rank(check_data, "checking the data")
    if cfg.threads == "auto":
        fastest = fastest_threads(cfg, ranks, loaders)
        cfg.threads = on_first_rank(lambda: fastest, "trying numbers of threads")
    if cfg.threads is not None:
        torch.set_num_threads(cfg.threads)
    if cfg.training.minutes is not None and cfg.training.steps is None:
        found = steps_in_time(cfg, ranks, loaders)
        cfg.training.steps = on_first_rank(lambda: found, "timing the first steps")
    assembly = assemble(cfg, ranks, loaders)
    reporter.total_steps, reporter.epochs = assembly.total_steps, assembly.epochs
    trainer = Trainer(cfg, ranks, assembly, directory, store, reporter)
    if state is not None:
        trainer.resume(state)
        del state  # a copy of all weights and moments
    else:
        if cfg.training.start_from is not None:
            _take_weights(assembly, cfg.training.start_from)
        on_test = trainer.chosen_by == "test"
        training_set, doubts = task.describe(cfg, ranks, assembly, on_test)
        for line in doubts:
            reporter.say(f"WARNING {line}")
        if is_main:
            directory.clear()
            directory.begin(cfg, loaders.normalizer, assembly.channels, training_set)
    _announce(reporter, ranks, assembly, cfg)
    fields, split = tuple(assembly.fields), trainer.result_split
    known = {"parameters": assembly.parameters, "split": split}
    outcome = partial(TrainingResult, directory.path, is_main, fields, **known)
    with reporter:
        if stopped_by := trainer.run():
            reporter.say(
                f"stopped by {stopped_by} at step {trainer.step} of {reporter.total_steps}; saved "
                f"in {directory.checkpoints}. The same command resumes from there"
            )
            return outcome(None, None, stopped_by=stopped_by)
        selection, errors = trainer.finish()
    baselines = task.baselines(assembly, split)
    mean = trainer.mean_errors[split]
    result = outcome(errors, mean, selection=selection, baselines=baselines)
    table = task.table(result, cfg, ranks, assembly)
    if is_main:
        cases = getattr(loaders, split).dataset.reader.case_ids
        rows = ([case, *row] for case, row in zip(cases, errors.tolist(), strict=True))
        chosen = {**asdict(selection), "measured_on": split, "epochs": assembly.epochs}
        average = assembly.average.module
        directory.write_results(average, [["case", *fields], *rows], table, chosen)
        reporter.say(table)
        reporter.say(f"results in {directory.path}")
    return result


def _find_state(
    cfg: DictConfig, directory: RunDirectory, store: CheckpointStore, reporter: Reporter
) -> dict | None:
    """Return the state to resume from, the same on all ranks; None begins a run."""
    # The first rank looks, so that all agree even while a file system is slow to show the same
    # folder everywhere. A checkpoint of another config is refused before any data is read.

    def find() -> Checkpoint | None:
        directory.lock()
        store.clean_up()
        checkpoint = None if cfg.restart else store.newest_sound(reporter.say)
        if checkpoint is None:
            directory.check_free(cfg.restart)
        else:
            directory.check_sound()
        return checkpoint

    checkpoint = on_first_rank(find, "looking for a checkpoint")
    if checkpoint is None:
        return None
    state = load_training_state(checkpoint)
    saved = state["config"]["training"]
    if cfg.training.steps is None and cfg.training.minutes == saved.get("minutes") is not None:
        cfg.training.steps = saved["steps"]
    if cfg.threads == "auto":  # what it was found to be when the run began
        cfg.threads = state["config"].get("threads")
    check_same_config(state["config"], OmegaConf.to_container(cfg))
    reporter.say(f"resuming from {checkpoint.path}")
    return state


def _take_weights(assembly: Assembly, directory: str) -> None:
    """Begin with the final weights of another run, which must be of the same model."""
    weights = load_run(directory, device="cpu").model.state_dict()
    state = assembly.model.state_dict()
    # Layers with an adapter keep theirs in `base_layer`.
    names = {n.replace(".base_layer.", "."): n for n in state if ".lora_" not in n}
    own = {plain: state[name] for plain, name in names.items()}
    differing = [name for name in weights.keys() | own.keys()
                 if name not in own or name not in weights
                 or own[name].shape != weights[name].shape]  # fmt: skip
    if differing:
        raise ValueError(
            f"training.start_from is {directory}, whose model is another: {len(differing)} weights "
            f"differ, such as {min(differing)}. Take its model, inputs and fields, or leave it out"
        )
    state |= {names[plain]: weight for plain, weight in weights.items()}
    assembly.model.load_state_dict(state)
    assembly.average.module.load_state_dict(state)


def _announce(reporter: Reporter, ranks: Ranks, assembly: Assembly, cfg: DictConfig) -> None:
    """Say in a few lines what is about to happen, and what of the data goes unused."""
    loaders = assembly.loaders
    named = {"training": loaders.train, "validation": loaders.val, "test": loaders.test}
    sizes = [f"{len(split.dataset.reader)} {name}" for name, split in named.items() if split]
    mesh, kind = ranks.mesh, type(assembly.model).__name__
    reporter.say(
        f"{kind} with {assembly.parameters:,} parameters on {ranks.device}, "
        f"{mesh['data'].size()} data x {mesh['context'].size()} context ranks, "
        f"{torch.get_num_threads()} threads; {', '.join(sizes)} cases; "
        f"fields {', '.join(assembly.fields)}"
    )
    for line in assembly.loaders.train.dataset.reader.describe_names():
        reporter.say(line)
    reporter.say(
        f"{assembly.total_steps} steps, {assembly.epochs} epochs of {assembly.steps_per_epoch}, in "
        f"{cfg.run_dir}"
    )


def start_ranks(cfg: DictConfig) -> Ranks:
    """Start the process group, of one process or of many; choose device, threads and TF32."""
    manager = initialize(device=None if cfg.device == "auto" else cfg.device)
    mesh, own = make_mesh(cfg.parallel.context), manager.device
    device = own if cfg.device in ("auto", own.type) else find_device(cfg.device)
    if device != own and manager.world_size > 1:
        raise ValueError(
            f"device is {cfg.device!r}, but this rank of {manager.world_size} owns {own}; use "
            "'auto' (and CUDA_VISIBLE_DEVICES to choose among GPUs, empty for the CPU)"
        )
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if isinstance(cfg.threads, int):
        torch.set_num_threads(cfg.threads)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = cfg.training.tf32
    return Ranks(manager.rank, manager.world_size, mesh, device)


def load_data(
    cfg: DictConfig, ranks: Ranks, normalizer: Path | None = None, data: MemoryCases | None = None
) -> Loaders:
    """Return the loaders of this rank, with the stored normaliser if one is given."""
    on_gpu, mesh = ranks.device.type == "cuda", ranks.mesh
    place = {f"{axis}_rank": mesh[axis].get_local_rank() for axis in ("data", "context")}
    place |= {f"{axis}_size": mesh[axis].size() for axis in ("data", "context")}
    device = str(ranks.device) if on_gpu else None
    placed = {"seed": cfg.seed, "device": device, "pin_memory": on_gpu, "parallel": place}
    return task_of(cfg).load_data(cfg, placed, normalizer, data)


def assemble(cfg: DictConfig, ranks: Ranks, loaders: Loaders) -> Assembly:
    """Build model, optimiser and steps; the weights depend on the seed, not on the rank."""
    settings: TrainingConfig = cfg.training
    torch.manual_seed(cfg.seed)
    model, channels, objective, constant = task_of(cfg).build(cfg, ranks, loaders)
    if settings.lora_rank is not None:
        adapt_blocks(model, settings.lora_rank)
    if ranks.context_group is not None:
        enable_context_parallel(model, ranks.context_group)
    # Once the weights are drawn, every rank has noise of its own (dropout, Gumbel).
    torch.manual_seed(int(np.random.SeedSequence([cfg.seed, ranks.rank]).generate_state(1)[0]))

    steps_per_epoch = -(-len(loaders.train) // settings.accumulate)
    total_steps = settings.steps or settings.epochs * steps_per_epoch
    optimizer = make_optimizer(model, settings)
    average = make_average(model, settings.ema_decay)
    if settings.stream is None:
        compiled = compile_model(model, cfg, ranks.device)
        loss, evaluation = objective(compiled), objective(average.module)
    else:
        choice = StreamChoice(settings.stream, model, settings.precision, ranks.context_group)
        loss, evaluation = objective(model, choice), objective(average.module, choice)
    schedule = make_schedule(optimizer, settings, total_steps)
    scaler = torch.amp.GradScaler(ranks.device.type, enabled=settings.precision == "fp16")
    clip, mesh = settings.clip_norm, ranks.mesh
    step = TrainStep(loss, model, optimizer, schedule, scaler, average, clip, mesh)
    parts = (loaders, channels, model, step, evaluation, constant)
    return Assembly(*parts, steps_per_epoch, total_steps)


def _assemble_trial(cfg: DictConfig, ranks: Ranks, loaders: Loaders) -> Assembly:
    return assemble(OmegaConf.merge(cfg, {"training": {"steps": 1000}}), ranks, loaders)


def steps_in_time(cfg: DictConfig, ranks: Ranks, loaders: Loaders) -> int:
    """Return how many steps ``training.minutes`` allow; the first compiles and is not counted."""
    budget = 60 * cfg.training.minutes
    step = _assemble_trial(cfg, ranks, loaders).step
    start, done = 0.0, -1
    for epoch in itertools.count():
        loaders.train.set_epoch(epoch)
        for batch in loaders.train:
            step((batch,) * cfg.training.accumulate).item()
            done += 1
            now = time.perf_counter()
            start = start or now
            if done >= 3 and now - start > min(5.0, 0.05 * budget) or done >= 200:
                return max(3, int(budget * done / (now - start)))


def fastest_threads(cfg: DictConfig, ranks: Ranks, loaders: Loaders) -> int | None:
    """Return how many CPU threads train fastest now; None on a GPU, where it is left to torch."""
    if ranks.device.type != "cpu":
        return None
    cores = torch.get_num_threads()
    choices = sorted({1, min(8, cores), cores})
    if len(choices) == 1:
        return choices[0]
    step = _assemble_trial(cfg, ranks, loaders).step
    loaders.train.set_epoch(0)
    batches = (next(iter(loaders.train)),) * cfg.training.accumulate
    seconds: dict[int, list[float]] = {threads: [] for threads in choices}
    # Ranks take their steps together, so it is their number that is fixed, not their time. In
    # turns, because other programs come and go.
    for threads in choices * (1 + _TRIED_STEPS):
        torch.set_num_threads(threads)
        start = time.perf_counter()
        step(batches).item()
        seconds[threads].append(time.perf_counter() - start)
    return min(choices, key=lambda threads: statistics.median(seconds[threads][1:]))


def compile_model(model: Module, cfg: DictConfig, device: torch.device) -> torch.nn.Module:
    """Return a model as ``training.compile`` wants it."""
    settings: TrainingConfig = cfg.training
    if not is_compiled(settings, device):
        return model
    # Cases of different sizes share one graph from the first step on, instead of a second
    # compilation at the second size; drawn points and grids have one size, and static code.
    ragged = cfg.data.get("n_points") is None and cfg.model.get("structured_shape") is None
    if settings.compile != "graphs":
        return torch.compile(model, dynamic=ragged or None)
    # Gradients of a replayed graph are in its memory, so a second batch cannot add to them.
    for reason, hinders in {
        f"the device is {device.type}": device.type != "cuda",
        "data.n_points is null, so steps differ in size": ragged,
        f"training.accumulate is {settings.accumulate}": settings.accumulate > 1,
        f"parallel.context is {cfg.parallel.context}": cfg.parallel.context > 1,
    }.items():
        if hinders:
            raise ValueError(f"training.compile is 'graphs', but {reason}; set compile to true")
    return torch.compile(model, mode="reduce-overhead")


def is_compiled(settings: TrainingConfig, device: torch.device) -> bool:
    """Return whether to compile; ``auto`` warns and does without where Triton cannot build."""
    automatic, on_gpu = settings.compile == "auto", device.type == "cuda"
    if automatic and (not on_gpu or settings.stream is not None):
        return False
    compilers = [os.environ["CC"]] if "CC" in os.environ else ["gcc", "clang"]
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    tools = {
        "C compiler (gcc)": any(map(shutil.which, compilers)),
        "header Python.h (python3-dev)": headers.is_file(),
    }
    missing = [name for name, there in tools.items() if not there]
    if not (settings.compile and on_gpu and missing):
        return bool(settings.compile)
    problem = (
        f"training.compile is {str(settings.compile).lower()}, but this machine has no "
        f"{' and no '.join(missing)}, with which Triton builds its launchers"
    )
    advice = "install both, such as with `apt install gcc python3-dev`, or name a compiler in CC"
    if not automatic:
        raise ValueError(f"{problem}; {advice}, or set training.compile to false")
    warnings.warn(
        f"{problem}: training continues uncompiled, slower. To compile, {advice}", stacklevel=2
    )
    return False


def with_defaults(cfg: Mapping[str, Any] | DictConfig, *, in_memory: bool) -> DictConfig:
    """Return a config with a model, data, a length and a run directory.

    Without data it is completed as ``flarepp train`` completes it, with own data as ``flarepp train
    data=own``; a built-in set or a published benchmark keeps the defaults of the code.
    """
    given = OmegaConf.create(OmegaConf.to_container(OmegaConf.create(cfg)))
    given.training = one_budget(given.get("training") or {}) | dict(given.get("training") or {})
    model, data = given.get("model"), given.get("data")
    named = isinstance(model, str) or model is None
    name = model if isinstance(model, str) else "flarepp"
    # Own data is in memory, or a folder and nothing says what is in it.
    said = data is not None and (data.get("benchmark") or data.get("sequences"))
    said = said or "_target_" in (OmegaConf.select(given, "data.reader") or {})
    own = in_memory or not said and OmegaConf.select(given, "data.root") is not None
    if not own and data is not None:
        if named:
            given.model = _compose_unnamed(["experiment=none", f"model={name}"]).model
        return given
    base = _compose_unnamed([f"model={name}", *(["data=own", "experiment=own"] if own else [])])
    if in_memory:
        base.data.root, base.data.reader = None, {}
    root = OmegaConf.select(given, "data.root")
    label = "cars" if not own else "memory" if root is None else f"own-{folder_name(root)}"
    base.label = given.get("label") or label
    base.run_dir = f"outputs/{base.label}-{name}-seed{given.get('seed', 0)}"
    OmegaConf.set_struct(base, False)
    if named:
        given.pop("model", None)
    elif "_target_" in model:
        base.model = {}
    return OmegaConf.merge(base, given)


def _compose_unnamed(overrides: Sequence[str]) -> DictConfig:
    return compose("train", [*overrides, "label=none", "run_dir=none"])
