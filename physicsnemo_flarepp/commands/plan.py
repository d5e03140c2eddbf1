"""Memory and time of a training step on whole meshes, by the ways to take it, and what fits.

    flarepp plan --tokens 8800000 --memory 80GB experiment=drivaerml_raw model=flarepp

Memory is counted on small clouds on the CPU and holds for any device; times are measured on this
machine. The model is that of the config that the overrides make, as in flarepp train; data is not
read. "waits" are hidden states on the host, of streamed steps only; "fits" leaves a tenth of a GPU
free, and half of the host.
"""

import argparse
import math

from ..training.planning import Way, parse_bytes
from .configs import compose_config


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


def run(options: argparse.Namespace) -> dict[int, list[Way]]:
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


def table(n_tokens: int, ways: list[Way]) -> str:
    """Return the ways as a Markdown table.

    Examples
    --------
    >>> print(table(10**6, [Way("plain", 2 * 10**9, 0, 61.2, True)]))
    1,000,000 tokens
    <BLANKLINE>
    | step | memory of a rank | waits | time | fits |
    |---|---|---|---|---|
    | plain | 2.00 GB | - | 61 s | yes |
    <BLANKLINE>
    """
    lines = [f"{n_tokens:,} tokens", "", "| step | memory of a rank | waits | time | fits |"]
    lines.append("|---" * 5 + "|")
    for way in ways:
        waits = f"{way.host / 1e9:.2f} GB" if way.host else "-"
        digits = max(0, 1 - math.floor(math.log10(way.seconds)))
        cells = (way.name, f"{way.device / 1e9:.2f} GB", waits, f"{way.seconds:.{digits}f} s")
        lines.append("| " + " | ".join((*cells, "yes" if way.fits else "no")) + " |")
    return "\n".join([*lines, ""])
