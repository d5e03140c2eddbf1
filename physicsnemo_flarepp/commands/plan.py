"""Memory and time of a training step on whole meshes, by kind of step, and what fits.

    flarepp plan --tokens 8800000 --memory 80GB experiment=drivaerml_raw model=flarepp

Memory is counted on small clouds on the CPU and holds for any device. The plain step is timed on
this machine; the times of the others follow by their operations. The overrides make the model, as
in flarepp train; data is not read. "waits" are hidden states on the host, of streamed steps only;
"fits" leaves a tenth of a GPU free, and half of the host.
"""

import argparse
import math

from ..training.planning import StepPlan
from .configs import compose_config

_UNITS = {"kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def parse_bytes(text: str) -> float:
    """Return the bytes of a text such as 80GB or 512MiB.

    Examples
    --------
    >>> parse_bytes("80GB"), parse_bytes("1 GiB")
    (80000000000.0, 1073741824.0)
    """
    for unit, size in _UNITS.items():
        if text.endswith(unit):
            try:
                return float(text.removesuffix(unit)) * size
            except ValueError:
                break
    raise ValueError(
        f"{text!r} is not an amount of memory; give a number and one of {', '.join(_UNITS)}"
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of :func:`run`."""
    parser.add_argument("overrides", nargs="*", help="GROUP=OPTION and KEY=VALUE of flarepp train")
    parser.add_argument("--tokens", type=int, nargs="+", required=True, help="points of a case")
    parser.add_argument("--memory", type=parse_bytes, help="of a GPU, e.g. 80GB; default: this one")
    parser.add_argument("--host-memory", type=parse_bytes, help="of its host; default: of this one")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8], help="context groups")
    parser.add_argument("--device", default="auto", help="where steps are timed")
    parser.add_argument("--inputs", type=int, default=6, help="channels of a point; matters little")
    parser.add_argument("--outputs", type=int, default=4, help="channels that are predicted")


def run(options: argparse.Namespace) -> dict[int, list[StepPlan]]:
    """Print a table for each number of tokens and return what is in them."""
    import torch
    from omegaconf import OmegaConf

    from ..models.feeding import InputLayout, build_model
    from ..training.config import check_config
    from ..training.planning import plan

    overrides = [*options.overrides, "run_dir=none", "label=plan"]
    cfg = check_config(compose_config("train", overrides))
    arguments = OmegaConf.to_container(cfg.model)
    arguments |= {"structured_shape": None, "unified_pos": None}  # a grid is a cloud, too
    layout = InputLayout(options.inputs, 0, 0, options.outputs)
    device = options.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    model = build_model(arguments, layout, cfg.training.precision).to(device)
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

    Examples
    --------
    >>> print(table(10**6, [StepPlan("plain", 2 * 10**9, 0, 61.2, True)]))
    1,000,000 tokens
    <BLANKLINE>
    | step | memory of a rank | waits | time | fits |
    |---|---|---|---|---|
    | plain | 2.00 GB | - | 61 s | yes |
    <BLANKLINE>
    """
    lines = [f"{n_tokens:,} tokens", "", "| step | memory of a rank | waits | time | fits |"]
    lines.append("|---" * 5 + "|")
    for step in steps:
        waits = f"{step.host / 1e9:.2f} GB" if step.host else "-"
        digits = max(0, 1 - math.floor(math.log10(step.seconds)))
        cells = (step.name, f"{step.device / 1e9:.2f} GB", waits, f"{step.seconds:.{digits}f} s")
        lines.append("| " + " | ".join((*cells, "yes" if step.fits else "no")) + " |")
    return "\n".join([*lines, ""])
