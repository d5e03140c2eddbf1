"""Print whether everything works on this machine."""

import argparse
import json

import torch

from ..checks import FAILED, as_record, choose_checks, run_checks


class ChecksFailed(Exception):
    """Something does not work on this machine; the message names it."""


def run(options: argparse.Namespace) -> None:
    """Print the table, or JSON; raise :class:`ChecksFailed` if anything fails."""
    device = _device(options.device)
    if options.ranks < 0 or options.ranks == 1:
        raise ValueError(f"--ranks must be at least 2, got {options.ranks}")
    findings = []
    for finding in run_checks(choose_checks(options.ranks, options.bench), device):
        findings.append(finding)
        if not options.json:
            print(finding.line(), flush=True)
    failed = [finding.name for finding in findings if finding.status == FAILED]
    if options.json:
        content = {"passed": not failed, "findings": [as_record(f) for f in findings]}
        print(json.dumps(content, indent=2))
    if failed:
        raise ChecksFailed(f"{len(failed)} of {len(findings)} failed: {', '.join(failed)}")
    if not options.json:
        print(f"everything works on {device}")


def _device(name: str | None) -> torch.device:
    if name is None:
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    device = torch.device(name)
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"--device must be cpu, cuda or cuda:<number>, got {name!r}")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            f"--device is {name!r}, but torch {torch.__version__} finds no CUDA device; "
            "look at nvidia-smi, the driver and CUDA_VISIBLE_DEVICES"
        )
    return torch.device("cuda", device.index or 0) if device.type == "cuda" else device
