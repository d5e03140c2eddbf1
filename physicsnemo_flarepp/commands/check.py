"""Print whether everything works on this machine."""

import argparse
import json

from ..checks import FAILED, as_record, choose_checks, run_checks
from ..parallel.launch import find_device


class ChecksFailed(Exception):
    """Something does not work on this machine; the message names it."""


def run(options: argparse.Namespace) -> None:
    """Print the table, or JSON; raise :class:`ChecksFailed` if anything fails."""
    device = find_device(options.device)
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
