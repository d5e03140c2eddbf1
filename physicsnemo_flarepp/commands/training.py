"""Verbs about training and the machine it runs on: train, compare, plan, check."""

import argparse
import json
import math
import sys
from dataclasses import asdict
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from physicsnemo.distributed import DistributedManager

# Its names are imported when they are used: matplotlib would delay the first step.
from .. import evaluation
from ..models.feeding import InputLayout, build_model
from ..parallel.launch import find_device
from ..texts import format_table, printable
from ..training import comparison, planning, run
from ..training.config import check_config
from ..training.planning import StepPlan
from ..training.reporting import SPLIT_NAMES
from .configs import compose_config
from .parsers import parse_options


class ChecksFailed(Exception):
    """Something does not work on this machine; the message names it."""


def train(cfg: DictConfig) -> dict[str, str] | None:
    """Train a config, then draw the run; exit with 128 + signal if a signal stopped it."""
    trained = run.train(cfg)
    DistributedManager.cleanup()  # one process draws
    if trained.is_main and trained.stopped_by is None:
        _bound_errors(trained.directory)
        report_training(trained.directory)
    if code := trained.exit_code():  # not on success: it would end a sweep of hydra -m
        sys.exit(code)
    if not trained.is_main or trained.errors is None:
        return None
    return {
        "run": str(trained.directory),
        f"{SPLIT_NAMES[trained.split]} error, %": f"{100 * trained.error:.2f}",
        "parameters": f"{trained.parameters:,}",
    }


def _bound_errors(directory: Path) -> None:
    """Calibrate bounds on the validation cases, or say in a line why there are none."""
    from ..evaluation.bounds import format_bounds
    from ..evaluation.figures import classifies

    if classifies(directory):
        return
    try:
        # What it names, the training has just imported.
        trained = evaluation.load_run(directory, trust=True)
        bounds = evaluation.calibrate(trained)
    except (OSError, ValueError) as reason:  # the results of the training stand
        print(printable(f"no bounds: {reason}"))
        return
    evaluation.store_bounds(bounds, trained)
    print(f"bounds from {len(bounds.case_ids)} validation cases", format_bounds(bounds), sep="\n")


def report_training(directory: Path) -> None:
    """Draw a run that has just been trained and write its page; if the page fails, say why."""
    from ..report import AFTER_TRAINING
    from .results import write_report

    options = parse_options("report", [str(directory), "--trust"])  # as above
    drawn = evaluation.draw_run(directory)
    try:
        path = write_report(options, drawn=drawn, largest=AFTER_TRAINING)
    except (ImportError, OSError, RuntimeError, ValueError) as reason:  # the training stands
        print(printable(f"no report of {directory}: {reason}; try flarepp report {directory}"))
        return
    print(f"report: {path}")


def compare(cfg: DictConfig) -> None:
    """Train what is not trained yet, then print the table; exit with 128 + signal if stopped."""
    try:
        print(comparison.compare(equal_settings(cfg), cfg.compare.directory, cfg.compare.jobs))
    except comparison.ComparisonStopped as stopped:
        print(f"flarepp compare: {stopped.message}", file=sys.stderr)
        sys.exit(stopped.exit_code)


def equal_settings(cfg: DictConfig) -> list[comparison.ComparedRun]:
    """Compose the config of every model and seed from the same overrides."""
    # Complete architectures keep the recipes of their own, as far as the overrides leave them.
    settings = HydraConfig.get()
    own = ("compare.", "experiment=", "model=", "seed=", "run_dir=")
    shared = [text for text in settings.overrides.task if not text.startswith(own)]
    shared.append(f"experiment={settings.runtime.choices.experiment}")
    trials = []
    for model in cfg.compare.models:
        for seed in cfg.compare.seeds:
            config = hydra.compose("train", [*shared, f"model={model}", f"seed={seed}"])
            config.run_dir = f"{cfg.compare.directory}/{model}-seed{seed}"
            OmegaConf.resolve(config)  # while Hydra's own values are available
            trials.append(comparison.ComparedRun(model, seed, config))
    return trials


def plan(options: argparse.Namespace) -> dict[int, list[StepPlan]]:
    """Print a table for each number of tokens and return its content."""
    overrides = [*options.overrides, "run_dir=none", "label=plan"]
    cfg = check_config(compose_config("train", overrides))
    precision = cfg.training.precision
    arguments = OmegaConf.to_container(cfg.model)
    arguments |= {"structured_shape": None, "unified_pos": None}  # a grid is a cloud, too
    model = build_model(arguments, InputLayout(options.inputs, 0, 0, options.outputs), precision)
    settings = {"batch": cfg.data.batch_size, "precision": precision}
    settings |= {name: getattr(options, name) for name in ("memory", "host_memory", "ranks")}
    model = model.to(find_device(options.device))
    plans = {}
    for n_tokens in options.tokens:
        plans[n_tokens] = planning.plan(model, n_tokens, **settings)
        print(plan_table(n_tokens, plans[n_tokens]))
    return plans


def plan_table(n_tokens: int, steps: list[StepPlan]) -> str:
    """Return the kinds of step as a Markdown table.

    >>> print(plan_table(10**6, [StepPlan("plain", 2 * 10**9, 0, 61.2, True)]))
    1,000,000 tokens
    <BLANKLINE>
    | step | memory of a rank | on host | time | fits |
    |---|---|---|---|---|
    | plain | 2.00 GB | - | 61 s | yes |
    <BLANKLINE>
    """
    rows = [("step", "memory of a rank", "on host", "time", "fits")]
    for step in steps:
        host = f"{step.host / 1e9:.2f} GB" if step.host else "-"
        digits = max(0, 1 - math.floor(math.log10(step.seconds)))
        cells = (step.name, f"{step.device / 1e9:.2f} GB", host, f"{step.seconds:.{digits}f} s")
        rows.append((*cells, "yes" if step.fits else "no"))
    return f"{n_tokens:,} tokens\n\n{format_table(rows, markdown=True)}\n"


def check(options: argparse.Namespace) -> None:
    """Print what works on this machine as a table, or as JSON; raise if anything fails."""
    from .. import checks

    device = find_device(options.device)
    if options.ranks < 0 or options.ranks == 1:
        raise ValueError(f"--ranks must be at least 2, got {options.ranks}")
    findings = []
    for finding in checks.run_checks(checks.choose_checks(options.ranks, options.bench), device):
        findings.append(finding)
        if not options.json:
            print(finding.line(), flush=True)
    failed = [finding.name for finding in findings if finding.status == checks.FAILED]
    if options.json:
        content = {"passed": not failed, "findings": [asdict(f) for f in findings]}
        print(json.dumps(content, indent=2))
    if failed:
        raise ChecksFailed(f"{len(failed)} of {len(findings)} failed: {', '.join(failed)}")
    if not options.json:
        print(f"everything works on {device}")
