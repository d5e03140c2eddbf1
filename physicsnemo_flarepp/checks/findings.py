"""What a check finds, as a line for people and a record for programs."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

PASSED, FAILED, NOTED = "pass", "FAIL", "note"
REPORT = "report the output of `flarepp check --json`"


@dataclass(frozen=True)
class Finding:
    """One line of the table: what was checked, its status, what was measured, and advice."""

    name: str
    status: str
    figures: str
    advice: str = ""

    def line(self) -> str:
        """Return the finding for a terminal, with its advice below."""
        text = f"{self.status:5} {self.name:33} {self.figures}".rstrip()
        return text + (f"\n{'':40}-> {self.advice}" if self.advice else "")


@dataclass(frozen=True)
class Check:
    """Yields findings for a device; its advice is for failures that have none of their own."""

    name: str
    find: Callable[[torch.device], Iterator[Finding]]
    advice: str

    def run(self, device: torch.device) -> Iterator[Finding]:
        """Yield the findings; an error is one more finding, so that other checks still run."""
        try:
            for finding in self.find(device):
                lacks = finding.status == FAILED and not finding.advice
                yield replace(finding, advice=self.advice) if lacks else finding
        except Exception as error:
            words = " ".join(str(error).split())[:300]
            yield Finding(self.name, FAILED, f"{type(error).__name__}: {words}", self.advice)


def judge(name: str, error: float, limit: float, figures: str, advice: str = "") -> Finding:
    """Return a finding that passes if ``error`` is a number up to ``limit``."""
    passed = math.isfinite(error) and error <= limit
    return Finding(name, PASSED if passed else FAILED, figures, "" if passed else advice)


def relative_error(found: Tensor, expected: Tensor, floor: float = 0.0) -> float:
    """Return the norm of the difference over that of `expected`, or `floor`; infinity for NaN."""
    found, expected = found.detach().double().cpu(), expected.detach().double().cpu()
    size = expected.norm().clamp(min=max(floor, torch.finfo(torch.float64).tiny))
    error = ((found - expected).norm() / size).item()
    return error if math.isfinite(error) else math.inf


def gradient_errors(found: list[Tensor], expected: list[Tensor]) -> list[float]:
    """Return the errors of gradients; those that nearly cancel are measured against the largest."""
    # At 1e-3, what rounding leaves of a gradient that is 0 exceeds the limit of fp32 on some CPUs.
    floor = 1e-2 * max(t.norm().item() for t in expected)
    return [relative_error(a, b, floor) for a, b in zip(found, expected, strict=True)]
