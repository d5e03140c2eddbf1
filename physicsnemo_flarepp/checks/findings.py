"""What a check finds, and how it is told to people and to programs."""

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

PASSED, FAILED, NOTED = "pass", "FAIL", "note"


@dataclass(frozen=True)
class Finding:
    """One line of the table.

    Parameters
    ----------
    name : str
        What was looked at.
    status : str
        "pass", "FAIL", or "note" for a figure that cannot fail.
    figures : str
        What was measured.
    advice : str, optional
        What to do about a failure, or about a figure.
    """

    name: str
    status: str
    figures: str
    advice: str = ""

    def line(self) -> str:
        """Return the finding for a terminal, its advice below it.

        Examples
        --------
        >>> print(Finding("cache", FAILED, "read-only", "choose another").line())
        FAIL  cache                             read-only
                                                -> choose another
        """
        text = f"{self.status:5} {self.name:33} {self.figures}".rstrip()
        return text + (f"\n{'':40}-> {self.advice}" if self.advice else "")


@dataclass(frozen=True)
class Check:
    """A group of findings.

    Parameters
    ----------
    name : str
        Its name in the table should it end in an error.
    find : Callable
        Yields findings for a device.
    advice : str
        What to do if it ends in an error.
    """

    name: str
    find: Callable[[torch.device], Iterator[Finding]]
    advice: str

    def run(self, device: torch.device) -> Iterator[Finding]:
        """Yield the findings; an error is one more of them, and the other checks go on."""
        try:
            yield from self.find(device)
        except Exception as error:
            words = " ".join(str(error).split())[:300]
            yield Finding(self.name, FAILED, f"{type(error).__name__}: {words}", self.advice)


def judge(name: str, error: float, limit: float, figures: str, advice: str) -> Finding:
    """Return a finding that passes if ``error`` is a number up to ``limit``."""
    passed = math.isfinite(error) and error <= limit
    return Finding(name, PASSED if passed else FAILED, figures, "" if passed else advice)


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Return the norm of the difference over that of ``expected``; infinity for NaN.

    Examples
    --------
    >>> relative_error(torch.tensor([1.1]), torch.tensor([1.0])) < 0.11
    True
    """
    found, expected = found.detach().double().cpu(), expected.detach().double().cpu()
    size = expected.norm().clamp(min=torch.finfo(torch.float64).tiny)
    error = ((found - expected).norm() / size).item()
    return error if math.isfinite(error) else math.inf


def as_record(finding: Finding) -> dict[str, str]:
    """Return what ``--json`` prints of a finding."""
    return asdict(finding)
