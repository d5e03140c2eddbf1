"""Does the package work on this machine?"""

from collections.abc import Iterator
from functools import partial

import torch

from .execution import (
    autocast_findings,
    compile_findings,
    cost_findings,
    split_findings,
    streaming_findings,
)
from .findings import FAILED, REPORT, Check, Finding
from .kernels import kernel_findings
from .machine import directory_findings, rendering_findings, version_findings
from .ranks import rank_findings

__all__ = ["FAILED", "Check", "Finding", "choose_checks", "run_checks"]

_COMPILERS = "a CPU needs a C++ compiler (apt-get install g++), a GPU needs Triton"


def choose_checks(n_ranks: int = 0, bench: bool = False) -> list[Check]:
    """Return the checks in order; `n_ranks` above 1 also starts ranks, `bench` times mixers."""
    chosen = [
        Check("versions", version_findings, "reinstall what the message names"),
        Check("kernels", kernel_findings, f"no training can be trusted here: {REPORT}"),
        Check("autocast", autocast_findings, f"train with training.precision=fp32 and {REPORT}"),
        Check(
            "torch.compile", compile_findings, f"train with training.compile=false; {_COMPILERS}"
        ),
        Check("parts", split_findings, "set FLAREPP_SPLITS=1 to switch parts off"),
        Check("streaming", streaming_findings, f"predict with offload='device', and {REPORT}"),
        Check("rendering", rendering_findings, "only figures need it; everything else works"),
        Check("directories", directory_findings, "check the path in the message"),
    ]
    if n_ranks > 1:
        advice = "NCCL_DEBUG=INFO shows what NCCL does; --device cpu tries gloo"
        chosen.append(Check(f"{n_ranks} ranks", partial(rank_findings, n_ranks), advice))
    if bench:
        chosen.append(Check("cost", cost_findings, "free some memory on the device"))
    return chosen


def run_checks(checks: list[Check], device: torch.device) -> Iterator[Finding]:
    """Yield the findings of all checks."""
    for check in checks:
        yield from check.run(device)
