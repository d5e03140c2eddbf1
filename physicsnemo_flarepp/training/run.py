"""Train a config: begin a run or resume it, and leave its results in its directory."""

import signal
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from ..datapipes.loaders import Loaders
from ..datapipes.readers.memory import MemoryCases, from_dataset
from ..parallel.ranks import Ranks, on_first_rank
from ..runs.checkpoints import Checkpoint, CheckpointStore, load_training_state
from ..runs.directory import NORMALIZER, RunDirectory
from ..runs.trained_run import load_run
from ..runs.training_set import check_same_data, data_files, read_training_set
from .assembly import Assembly, assemble, fastest_threads, load_data, start_ranks, steps_in_time
from .config import check_config, check_same_config, compose, folder_name, one_budget
from .reporting import Reporter
from .tasks import task_of
from .trainer import Selection, Trainer


@dataclass(frozen=True)
class TrainingResult:
    """What :func:`train` leaves.

    Parameters
    ----------
    directory, is_main
        The run directory, and whether this process is the one that writes.
    fields : tuple[str, ...]
        What has an error of its own.
    errors : torch.Tensor or None
        Relative L2 errors of the cases of `split`, (cases, fields), with the averaged weights; None
        if the run was stopped before its end.
    mean_predictor_error : float or None
        Mean error of predicting the mean of the training set; None if that is not known, too.
    parameters : int
        Size of the model.
    stopped_by : str or None
        Signal that stopped the run before its end.
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
    """Begin or resume, train, and write the results."""
    is_main, task = ranks.is_first, task_of(cfg)
    reporter = Reporter(is_main, constant=task.constant_name)
    for guess in guesses:
        reporter.say(f"data: {guess}")
    store = CheckpointStore(directory.checkpoints, keep=cfg.training.keep_checkpoints)
    state = _find_state(cfg, directory, store, reporter)
    stored = None if state is None else directory.path / NORMALIZER
    loaders = load_data(cfg, ranks, stored, data)
    if state is not None:
        on_first_rank(lambda: _check_data(directory, loaders, cfg), "checking the data")
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
    mean = trainer.mean_predictor_error(split)
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
            f"differ, such as {min(differing)}. Choose its model, inputs and fields, or start "
            "without it"
        )
    state |= {names[plain]: weight for plain, weight in weights.items()}
    assembly.model.load_state_dict(state)
    assembly.average.module.load_state_dict(state)


def _check_data(directory: RunDirectory, loaders: Loaders, cfg: DictConfig) -> None:
    """Refuse to resume with other data than the run began with."""
    stored = read_training_set(directory.path)
    found = data_files(loaders, test=cfg.training.select == "best_on_test")
    check_same_data(stored["files"], found, directory.path)


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
