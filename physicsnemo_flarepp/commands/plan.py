"""Print what a training step on whole meshes needs, and which kinds of step fit."""

import argparse
import math

from omegaconf import OmegaConf

from ..models.feeding import InputLayout, build_model
from ..parallel.launch import find_device
from ..texts import format_table
from ..training.config import check_config
from ..training.planning import StepPlan, plan
from .configs import compose_config


def run(options: argparse.Namespace) -> dict[int, list[StepPlan]]:
    """Print a table for each number of tokens and return its content."""
    overrides = [*options.overrides, "run_dir=none", "label=plan"]
    cfg = check_config(compose_config("train", overrides))
    arguments = OmegaConf.to_container(cfg.model)
    arguments |= {"structured_shape": None, "unified_pos": None}  # a grid is a cloud, too
    layout = InputLayout(options.inputs, 0, 0, options.outputs)
    model = build_model(arguments, layout, cfg.training.precision)
    model = model.to(find_device(options.device))
    plans = {}
    for n_tokens in options.tokens:
        plans[n_tokens] = plan(
            model,
            n_tokens,
            batch=cfg.data.batch_size,
            precision=cfg.training.precision,
            memory=options.memory,
            host_memory=options.host_memory,
            ranks=options.ranks,
        )
        print(table(n_tokens, plans[n_tokens]))
    return plans


def table(n_tokens: int, steps: list[StepPlan]) -> str:
    """Return the kinds of step as a Markdown table.

    >>> print(table(10**6, [StepPlan("plain", 2 * 10**9, 0, 61.2, True)]))
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
