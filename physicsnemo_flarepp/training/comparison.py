"""Train several models, over several seeds, and tabulate them with their recipes."""

import contextlib
import multiprocessing
import os
import statistics
import string
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from omegaconf import DictConfig, OmegaConf

from ..files import replace_text
from ..progress import progress_bar
from ..runs import read_metrics
from ..texts import csv_text, format_table
from .config import OPTIMIZERS, check_config
from .reporting import SPLIT_NAMES
from .run import train


class ComparisonStopped(RuntimeError):
    """A signal stopped a trial, and with it the comparison; the exit code is 128 + its number."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message, exit_code)  # both travel from a worker
        self.message, self.exit_code = message, exit_code


@dataclass(frozen=True)
class ComparedRun:
    """One run of a comparison: a model by its name in the table, a seed, and the config of both."""

    model: str
    seed: int
    config: DictConfig


@dataclass(frozen=True)
class ComparedResult:
    """A row of the table: mean error on `split`, median step time, peak of added memory."""

    model: str
    seed: int
    error: float
    parameters: int
    step_seconds: float
    memory_mb: float
    directory: str
    recipe: str
    split: str = "test"


def compare(trials: Sequence[ComparedRun], directory: str | Path, jobs: int = 1) -> str:
    """Train or resume all trials, write ``comparison.md`` and ``.csv``; return the table."""
    if jobs < 1:
        raise ValueError(f"jobs is {jobs}, expected at least 1")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError(
            f"compare runs under {os.environ['WORLD_SIZE']} ranks; start it as one process, and "
            "train models that need several ranks with flarepp train"
        )
    results = [train_compared(trial) for trial in trials] if jobs == 1 else _run_jobs(trials, jobs)
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    order = list(dict.fromkeys(trial.model for trial in trials))
    results.sort(key=lambda result: (order.index(result.model), result.seed))
    rows = [ComparedResult.__dataclass_fields__, *(result.__dict__.values() for result in results)]
    replace_text(directory / "comparison.csv", csv_text(rows))
    report = comparison_table(results)
    replace_text(directory / "comparison.md", report)
    return report


def _run_jobs(trials: Sequence[ComparedRun], jobs: int) -> list[ComparedResult]:
    """Run `jobs` trials at a time; the first failure or interrupt starts no further one."""
    threads = max(1, (os.cpu_count() or 1) // jobs)
    results = []
    waiting = list(trials)
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    # PhysicsNeMo is imported once, and forked. Its import starts the driver of a GPU, which does
    # not survive a fork.
    context = multiprocessing.get_context("spawn" if gpus else "forkserver")
    if not gpus:
        context.set_forkserver_preload([train.__module__])
    # One trial per process, whose peak of memory is then that of the trial.
    limits = {"initargs": (threads,), "max_tasks_per_child": 1}
    pool = ProcessPoolExecutor(jobs, context, initializer=torch.set_num_threads, **limits)
    with pool, progress_bar("training", len(trials), wanted=True) as advance:
        running: dict[Future, int | None] = {}
        while waiting or running:
            while waiting and len(running) < jobs:
                gpu = idlest_gpu(gpus, running.values())
                running[pool.submit(_run_quietly, on_gpu(waiting.pop(0), gpu))] = gpu
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                del running[future]
                results.append(future.result())
                advance()
    return results


def idlest_gpu(gpus: int, taken: Iterable[int | None]) -> int | None:
    """Return the GPU with the fewest trials, None without GPUs."""
    loads = Counter(taken)
    return min(range(gpus), key=lambda gpu: loads[gpu], default=None)


def on_gpu(trial: ComparedRun, gpu: int | None) -> ComparedRun:
    """Return the trial on this GPU, if its config leaves the choice."""
    if gpu is None or trial.config.get("device", "auto") not in ("auto", "cuda"):
        return trial
    return replace(trial, config=OmegaConf.merge(trial.config, {"device": f"cuda:{gpu}"}))


def train_compared(trial: ComparedRun) -> ComparedResult:
    """Train one trial, or take up its run directory; ComparisonStopped if a signal stopped it."""
    run = train(trial.config)
    if run.stopped_by is not None:
        message = f"{run.directory} was stopped by {run.stopped_by}"
        raise ComparisonStopped(f"{message}; the same command resumes it", run.exit_code())
    rows = read_metrics(run.directory)
    seconds = [row["seconds_per_step"] for row in rows if "seconds_per_step" in row]
    memory = max(row["memory_mb"] for row in rows if "memory_mb" in row)
    costs = (run.parameters, statistics.median(seconds), memory)
    about = (str(run.directory), recipe_of(trial.config), run.split)
    return ComparedResult(trial.model, trial.seed, run.error, *costs, *about)


def recipe_of(cfg: DictConfig) -> str:
    """Return the settings of an optimisation that models may differ in, as one line."""
    cfg = check_config(cfg)
    training = cfg.training
    clip = "none" if training.clip_norm is None else f"{training.clip_norm:g}"
    schedule = {
        "one_cycle": f"pct_start {training.pct_start:.3g}, div_factor {training.div_factor:.3g}",
        "cosine": f"cosine after {training.warmup_steps} steps",
        "wsd": f"constant, then down over {training.decay_fraction:.0%}",
    }
    init = cfg.model.get("init") or "own"
    return (
        f"batch {cfg.data.get('batch_size', 1) * training.accumulate}, "
        f"{OPTIMIZERS[training.optimizer].format_map(training)}, "
        f"decay {training.weight_decay:.3g}, "
        f"{schedule[training.schedule]}, "
        f"clip {clip}, beta2 {training.beta2:g}, {training.precision}, "
        f"weights {training.select.replace('_', ' ')}, init {init}"
    )


def _run_quietly(trial: ComparedRun) -> ComparedResult:
    directory = Path(trial.config.run_dir)
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / "log.txt", "a") as log, contextlib.redirect_stdout(log):
        return train_compared(trial)


def comparison_table(results: Sequence[ComparedResult]) -> str:
    """Return the models as a Markdown table: errors, size, step time, memory, recipe."""
    models = {result.model: [] for result in results}
    for result in results:
        models[result.model].append(result)
    first = next(iter(models))
    kind = SPLIT_NAMES[results[0].split]  # of all: they have the same data
    recipes = dict.fromkeys(result.recipe for result in results)
    letters = dict(zip(recipes, string.ascii_uppercase, strict=False))
    means = {name: statistics.mean(o.error for o in runs) for name, runs in models.items()}
    steps = {name: statistics.median(o.step_seconds for o in runs) for name, runs in models.items()}
    ratio = f"/ {first}"
    head = ("model", f"{kind} error, %", "by seed", ratio, "parameters", "step, ms", ratio)
    rows = [(*head, "peak, MB", "recipe")]
    for name, runs in models.items():
        percent = [100 * result.error for result in runs]
        spread = f" ± {statistics.stdev(percent):.2f}" if len(percent) > 1 else ""
        error = f"{100 * means[name]:.2f}{spread}"
        by_seed = ", ".join(f"{value:.2f}" for value in percent)
        size, memory = runs[0].parameters, max(result.memory_mb for result in runs)
        row = (name, error, by_seed, f"{means[name] / means[first]:.2f}", f"{size:,}")
        row += (f"{1e3 * steps[name]:.0f}", f"{steps[name] / steps[first]:.2f}", f"{memory:.0f}")
        rows.append((*row, letters[runs[0].recipe]))
    seeds = ", ".join(str(seed) for seed in sorted({result.seed for result in results}))
    about = f"Mean and standard deviation over seeds ({seeds}) of the relative L2 error on the"
    listed = "\n".join(f"- Recipe {letter}: {recipe}" for recipe, letter in letters.items())
    return (
        f"{format_table(rows, markdown=True)}\n\n{about} {kind} set.\n"
        f"Peak: of the memory that training added.\n\n{listed}\n"
    )
