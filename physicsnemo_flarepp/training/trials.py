"""Train several models, over several seeds, and tabulate them with their recipes."""

import contextlib
import multiprocessing
import os
import statistics
import string
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

import torch
from omegaconf import DictConfig

from ..files import replace_text
from ..progress import progress_bar
from ..texts import csv_text, format_table
from .config import check_config
from .metrics import read_metrics
from .reporting import SPLIT_NAMES
from .run import train


class TrialStopped(RuntimeError):
    """A signal stopped a trial, and with it the comparison.

    Parameters
    ----------
    message : str
        Which one, and by which signal.
    exit_code : int
        128 + the number of the signal.
    """

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message, exit_code)  # both travel from a worker
        self.message, self.exit_code = message, exit_code


@dataclass(frozen=True)
class Trial:
    """One run of a comparison: a model, a seed and the config that both are in.

    Parameters
    ----------
    model : str
        Name of the model in the table.
    seed : int
        Its seed.
    config : DictConfig
        The whole config.
    """

    model: str
    seed: int
    config: DictConfig


@dataclass(frozen=True)
class TrialResult:
    """What a trial gave.

    Parameters
    ----------
    model : str
        Name of the model.
    seed : int
        Its seed.
    error : float
        Mean relative L2 error over the cases of `split` and fields.
    parameters : int
        Size of the model.
    step_seconds : float
        Median duration of an optimisation step.
    memory_mb : float
        Peak of the memory that training added; see :class:`~.reporting.PeakMemory`.
    directory : str
        The run.
    recipe : str
        How it was optimised; see :func:`recipe_of`.
    split : str, optional
        What the error is of: ``test``, or ``val`` of data without a test split.
    """

    model: str
    seed: int
    error: float
    parameters: int
    step_seconds: float
    memory_mb: float
    directory: str
    recipe: str
    split: str = "test"


def compare(trials: Sequence[Trial], directory: str | Path, jobs: int = 1) -> str:
    """Train all trials and write ``comparison.md`` and ``comparison.csv``; return the table.

    Trials that were trained before are only evaluated, those that were stopped go on.

    Parameters
    ----------
    trials : Sequence[Trial]
        The first model is the one that the others are compared with.
    directory : str or Path
        Where the tables go.
    jobs : int, optional
        Trials at a time, each with its share of the cores. What they print goes to ``log.txt`` in
        their run directories.
    """
    if jobs < 1:
        raise ValueError(f"jobs is {jobs}, expected at least 1")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError(
            f"compare runs under {os.environ['WORLD_SIZE']} ranks; start it as one process, and "
            "train models that need several ranks with flarepp train"
        )
    results = [run_trial(trial) for trial in trials] if jobs == 1 else _run_jobs(trials, jobs)
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    order = list(dict.fromkeys(trial.model for trial in trials))
    results.sort(key=lambda result: (order.index(result.model), result.seed))
    rows = [TrialResult.__dataclass_fields__, *(result.__dict__.values() for result in results)]
    replace_text(directory / "comparison.csv", csv_text(rows))
    report = comparison_table(results)
    replace_text(directory / "comparison.md", report)
    return report


def _run_jobs(trials: Sequence[Trial], jobs: int) -> list[TrialResult]:
    """Run `jobs` trials at a time; the first failure or interrupt starts no further one."""
    threads = max(1, (os.cpu_count() or 1) // jobs)
    results = []
    waiting = list(trials)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([train.__module__])  # PhysicsNeMo is imported once
    with (
        ProcessPoolExecutor(
            jobs,
            context,
            initializer=torch.set_num_threads,
            initargs=(threads,),
            max_tasks_per_child=1,  # a peak of memory is then that of one trial
        ) as pool,
        progress_bar("training", len(trials), wanted=True) as advance,
    ):
        running = set()
        while waiting or running:
            while waiting and len(running) < jobs:
                running.add(pool.submit(_run_quietly, waiting.pop(0)))
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                results.append(future.result())
                advance()
    return results


def run_trial(trial: Trial) -> TrialResult:
    """Train one trial, or take up its run directory; TrialStopped if a signal stopped it."""
    run = train(trial.config)
    if run.stopped_by is not None:
        message = f"{run.directory} was stopped by {run.stopped_by}"
        raise TrialStopped(f"{message}; the same command goes on from there", run.exit_code())
    rows = read_metrics(run.directory)
    seconds = [row["seconds_per_step"] for row in rows if "seconds_per_step" in row]
    return TrialResult(
        trial.model,
        trial.seed,
        run.error,
        run.parameters,
        statistics.median(seconds),
        max(row["memory_mb"] for row in rows if "memory_mb" in row),
        str(run.directory),
        recipe_of(trial.config),
        run.split,
    )


def recipe_of(cfg: DictConfig) -> str:
    """Return what the optimisation of a run has that models may differ in.

    Examples
    --------
    >>> from omegaconf import OmegaConf
    >>> cfg = {"model": {}, "data": {"batch_size": 4}, "run_dir": "", "training": {"beta2": 0.99}}
    >>> recipe_of(OmegaConf.create(cfg)).split(", ")[1::5]
    ['AdamW lr 0.001', 'beta2 0.99']
    """
    cfg = check_config(cfg)
    training = cfg.training
    clip = "none" if training.clip_norm is None else f"{training.clip_norm:g}"
    muon = f"Muon lr {training.muon_learning_rate:.3g}, " if training.optimizer == "muon" else ""
    schedule = {
        "one_cycle": f"pct_start {training.pct_start:.3g}, div_factor {training.div_factor:.3g}",
        "cosine": f"cosine after {training.warmup_steps} steps",
        "wsd": f"constant, then down over {training.decay_fraction:.0%}",
    }
    init = cfg.model.get("init") or "own"
    return (
        f"batch {cfg.data.get('batch_size', 1) * training.accumulate}, "
        f"{muon}AdamW lr {training.learning_rate:.3g}, decay {training.weight_decay:.3g}, "
        f"{schedule[training.schedule]}, "
        f"clip {clip}, beta2 {training.beta2:g}, {training.precision}, "
        f"weights {training.select.replace('_', ' ')}, init {init}"
    )


def _run_quietly(trial: Trial) -> TrialResult:
    directory = Path(trial.config.run_dir)
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / "log.txt", "a") as log, contextlib.redirect_stdout(log):
        return run_trial(trial)


def comparison_table(results: Sequence[TrialResult]) -> str:
    """Return the models as a Markdown table: errors, size, step time, memory, recipe.

    Examples
    --------
    >>> results = [
    ...     TrialResult("lno", seed, error, 1000, 0.1, 80, "", "batch 2")
    ...     for seed, error in ((0, 0.2), (1, 0.22))
    ... ]
    >>> other = TrialResult("gnot", 0, 0.1, 1500, 0.13, 60, "", "batch 4")
    >>> print(comparison_table([*results, other]))
    | model | test error, % | by seed | / lno | parameters | step, ms | / lno | peak, MB | recipe |
    |---|---|---|---|---|---|---|---|---|
    | lno | 21.00 ± 1.41 | 20.00, 22.00 | 1.00 | 1,000 | 100 | 1.00 | 80 | A |
    | gnot | 10.00 | 10.00 | 0.48 | 1,500 | 130 | 1.30 | 60 | B |
    <BLANKLINE>
    Mean and standard deviation over seeds (0, 1) of the relative L2 error on the test set.
    Peak: of the memory that training added.
    <BLANKLINE>
    - Recipe A: batch 2
    - Recipe B: batch 4
    <BLANKLINE>
    """
    models = {result.model: [] for result in results}
    for result in results:
        models[result.model].append(result)
    first = next(iter(models))
    kind = SPLIT_NAMES[results[0].split]  # of all: they have the same data
    recipes = dict.fromkeys(result.recipe for result in results)
    letters = dict(zip(recipes, string.ascii_uppercase, strict=False))
    means = {name: statistics.mean(o.error for o in runs) for name, runs in models.items()}
    steps = {name: statistics.median(o.step_seconds for o in runs) for name, runs in models.items()}
    error, ratio = f"{kind} error, %", f"/ {first}"
    rows = [("model", error, "by seed", ratio, "parameters", "step, ms", ratio, "peak, MB",
             "recipe")]  # fmt: skip
    for name, runs in models.items():
        percent = [100 * result.error for result in runs]
        spread = f" ± {statistics.stdev(percent):.2f}" if len(percent) > 1 else ""
        rows.append(
            (
                name,
                f"{100 * means[name]:.2f}{spread}",
                ", ".join(f"{value:.2f}" for value in percent),
                f"{means[name] / means[first]:.2f}",
                f"{runs[0].parameters:,}",
                f"{1e3 * steps[name]:.0f}",
                f"{steps[name] / steps[first]:.2f}",
                f"{max(result.memory_mb for result in runs):.0f}",
                letters[runs[0].recipe],
            )
        )
    seeds = ", ".join(str(seed) for seed in sorted({result.seed for result in results}))
    lines = [
        format_table(rows, markdown=True),
        "",
        f"Mean and standard deviation over seeds ({seeds}) of the relative L2 error on the {kind} "
        "set.",
        "Peak: of the memory that training added.",
        "",
        *(f"- Recipe {letter}: {recipe}" for recipe, letter in letters.items()),
        "",
    ]
    return "\n".join(lines)
