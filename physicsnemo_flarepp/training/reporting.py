"""What a run tells while it trains: a live bar on a terminal, sparse lines elsewhere."""

import ctypes
import gc
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from jaxtyping import Float, Int
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from ..texts import printable

QUIET_SECONDS = 30.0
SPLIT_NAMES = {"val": "validation", "test": "test"}


@dataclass(frozen=True)
class PendingStep:
    """A step whose loss is still on the device; `cases` are its positions, batch by batch."""

    step: int
    epoch: int
    learning_rate: float
    loss: Float[Tensor, ""]
    cases: list[Int[Tensor, " B"]]

    def row(self, loss: float) -> dict[str, object]:
        """Return the row of metrics, with the loss over all ranks."""
        return {
            "kind": "step",
            "step": self.step,
            "epoch": self.epoch,
            "loss": loss,
            "learning_rate": self.learning_rate,
        }


class PeakMemory:
    """The most memory that this process needed since it was asked to watch.

    On a CUDA device that is the peak of the allocations. On a CPU it is by how much the resident
    memory of the process grew at its peak; where Linux's ``/proc`` cannot be written, by how much
    it has grown now.

    Examples
    --------
    >>> watch = PeakMemory(torch.device("cpu"))
    >>> _ = torch.ones(2**24)  # 64 MB, and gone
    >>> watch.megabytes() > 60
    True
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        gc.collect()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            return
        # What the C library keeps of freed blocks would be filled again without growing.
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
        try:
            Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
            self._key = "VmHWM"
        except OSError:
            self._key = "VmRSS"
        self._before = _resident("VmRSS")

    def megabytes(self) -> float:
        """Return the peak so far."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) / 2**20
        return (_resident(self._key) - self._before) / 2**20


def _resident(key: str) -> int:
    """Return VmHWM, the peak of the resident memory, or VmRSS, what it is now, in bytes."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return psutil.Process().memory_info().rss
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))


def duration(seconds: float) -> str:
    """Return a time for people.

    Examples
    --------
    >>> duration(42), duration(200), duration(7300)
    ('42 s', '3 min 20 s', '2 h 1 min')
    """
    seconds = int(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60} min"


class Reporter:
    """Shows the progress of a run, once its length is set; silent unless `enabled`.

    `constant` names the prediction whose error is shown beside that of the model.
    """

    def __init__(
        self, enabled: bool, console: Console | None = None, constant: str = "the training mean"
    ) -> None:
        # Not on a terminal rich would wrap lines at 80 columns.
        self.console = console or Console(soft_wrap=True, highlight=False)
        self.enabled = enabled
        self.constant = constant
        self.total_steps = self.epochs = 0
        self._error = ""
        self._first: tuple[int, float] | None = None
        self._last_line = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.fields[name]}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[text]}"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not (enabled and self.console.is_terminal),
        )
        self._task = None

    def __enter__(self) -> "Reporter":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """Print a text; what names from files hold does not control the terminal."""
        if self.enabled:
            shown = "\n".join(map(printable, text.split("\n")))
            self.console.print(shown, markup=False, soft_wrap=True)

    def show(self, row: Mapping[str, Any]) -> None:
        """Show a row of metrics with the speed on all ranks and the peak of memory so far."""
        text = (
            f"loss {row['loss']:.4f}{self._error}  lr {row['learning_rate']:.1e}  "
            f"{row['tokens_per_second']:,.0f} tokens/s  {row['memory_mb']:,.0f} MB"
        )
        step, epoch = row["step"], f"epoch {row['epoch'] + 1}/{self.epochs}"
        if self._task is None:
            self._task = self._bar.add_task("", total=self.total_steps, name=epoch, text=text)
        self._bar.update(self._task, completed=step, name=epoch, text=text)
        now = time.monotonic()
        if self._first is None:
            self._first = (step, now)
        if not self.console.is_terminal and now - self._last_line > QUIET_SECONDS:
            self._last_line = now
            left = self._seconds_left(step, now)
            self.say(f"{epoch}  step {step}/{self.total_steps}  {text}  {left} left")

    @contextmanager
    def evaluating(self, split: str, batches: int) -> Iterator[Callable[[], None]]:
        """Show a second bar on a terminal; gives what is called after each batch."""
        name = f"{SPLIT_NAMES[split]} cases"
        task = self._bar.add_task("", total=batches, name=name, text="")
        try:
            yield lambda: self._bar.advance(task)
        finally:
            self._bar.remove_task(task)

    def evaluated(self, epoch: int, split: str, error: float, mean_predictor: float | None) -> None:
        """Show the error after an epoch, beside that of the training mean if it is known."""
        self._error = f"  {split} {100 * error:.2f} %"
        if not self.console.is_terminal:
            beside = ""
            if mean_predictor is not None:
                beside = f" (predicting {self.constant}: {100 * mean_predictor:.1f} %)"
            self.say(
                f"epoch {epoch}/{self.epochs}  {SPLIT_NAMES[split]} error {100 * error:.2f} %"
                f"{beside}"
            )

    def _seconds_left(self, step: int, now: float) -> str:
        first_step, since = self._first
        if step == first_step:
            return "unknown"
        return duration((now - since) / (step - first_step) * (self.total_steps - step))
