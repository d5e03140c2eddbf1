"""Does the package work on this machine?"""

from collections.abc import Iterator

import torch

from .execution import (
    autocast_findings,
    compile_findings,
    cost_findings,
    split_findings,
    streaming_findings,
)
from .findings import FAILED, Check, Finding, as_record
from .kernels import kernel_findings
from .machine import directory_findings, rendering_findings, version_findings
from .ranks import rank_findings

__all__ = ["FAILED", "Check", "Finding", "as_record", "choose_checks", "run_checks"]

_REPORT = "report the output of `flarepp check --json`"


def choose_checks(n_ranks: int = 0, bench: bool = False) -> list[Check]:
    """Return the checks in order; `n_ranks` above 1 also starts ranks, `bench` times mixers."""
    chosen = [
        Check("versions", version_findings, "reinstall what the message names"),
        Check("kernels", kernel_findings, f"no training can be trusted here: {_REPORT}"),
        Check("autocast", autocast_findings, f"train with training.precision=fp32 and {_REPORT}"),
        Check(
            "torch.compile",
            compile_findings,
            "train with training.compile=false; a CPU needs a C++ compiler (apt-get install g++), "
            "a GPU needs Triton",
        ),
        Check("parts", split_findings, "set FLAREPP_SPLITS=1 to switch parts off"),
        Check("streaming", streaming_findings, "predict on the CPU, or with offload='device'"),
        Check("rendering", rendering_findings, "only figures need it; everything else works"),
        Check("directories", directory_findings, "check the path in the message"),
    ]
    if n_ranks > 1:

        def find(device: torch.device) -> Iterator[Finding]:
            yield from rank_findings(n_ranks, device)

        advice = "NCCL_DEBUG=INFO shows what NCCL does; --device cpu tries gloo"
        chosen.append(Check(f"{n_ranks} ranks", find, advice))
    if bench:
        chosen.append(Check("cost", cost_findings, "free some memory on the device"))
    return chosen


def run_checks(checks: list[Check], device: torch.device) -> Iterator[Finding]:
    """Yield the findings of all checks."""
    for check in checks:
        yield from check.run(device)
