"""What a run and its user tell each other: progress and memory, and requests to stop."""

import ctypes
import gc
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import psutil
import torch
import torch.distributed as dist
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from ..texts import printable

QUIET_SECONDS = 30.0
SPLIT_NAMES = {"val": "validation", "test": "test"}
# Sent by schedulers and torchrun, by Ctrl-C, and by `sbatch --signal=USR1@120` ahead of the limit.
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class PeakMemory:
    """The most memory that this process needed since it was asked to watch.

    On a CUDA device that is the peak of the allocations. On a CPU it is by how much the resident
    memory of the process grew at its peak; where Linux's ``/proc`` cannot be written, by how much
    it has grown now.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        gc.collect()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            return
        # What the C library keeps of freed blocks would be filled again without growing.
        if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
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
    """Return a time for people, such as 3 min 20 s."""
    minutes, seconds = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
    return f"{minutes // 60} h {minutes % 60} min"


class Reporter:
    """Shows a live bar on a terminal, sparse lines elsewhere; silent unless `enabled`."""

    def __init__(
        self, enabled: bool, console: Console | None = None, constant: str = "the training mean"
    ) -> None:
        # Not on a terminal rich would wrap lines at 80 columns.
        self.console = console or Console(soft_wrap=True, highlight=False)
        self.enabled, self.constant = enabled, constant
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

    def __enter__(self) -> Self:
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
        first_step, since = self._first = self._first or (step, now)
        if not self.console.is_terminal and now - self._last_line > QUIET_SECONDS:
            self._last_line, left = now, "time left unknown"
            if step > first_step:
                rest = (now - since) / (step - first_step) * (self.total_steps - step)
                left = f"{duration(rest)} left"
            self.say(f"{epoch}  step {step}/{self.total_steps}  {text}  {left}")

    @contextmanager
    def evaluating(self, split: str, batches: int) -> Iterator[Callable[[], None]]:
        """Show a second bar on a terminal; yields what is called after each batch."""
        task = self._bar.add_task("", total=batches, name=f"{SPLIT_NAMES[split]} cases", text="")
        try:
            yield lambda: self._bar.advance(task)
        finally:
            self._bar.remove_task(task)

    def evaluated(self, epoch: int, split: str, error: float, constant: float | None) -> None:
        """Show the error after an epoch, beside that of the constant prediction if it is known."""
        self._error = f"  {split} {100 * error:.2f} %"
        if not self.console.is_terminal:
            text = f"epoch {epoch}/{self.epochs}  {SPLIT_NAMES[split]} error {100 * error:.2f} %"
            if constant is not None:
                text += f" (predicting {self.constant}: {100 * constant:.1f} %)"
            self.say(text)


class StopRequest:
    """Inside its ``with``, SIGTERM, SIGINT and SIGUSR1 ask for a stop instead of killing.

    A second SIGINT raises KeyboardInterrupt, for a user who cannot wait. The earlier handlers
    come back at the end. Python delivers signals to the main thread only: in another thread
    nothing is installed and nothing is ever requested.
    """

    def __init__(self) -> None:
        self.signal_name: str | None = None  # of the first signal that this process got
        self._interrupted = False
        self._previous: dict[signal.Signals, Any] = {}

    def agree(self, device: str | torch.device) -> bool:
        """Return whether any rank was asked to stop: the same answer on all, at the same step."""
        requested = self.signal_name is not None
        if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
            return requested
        flag = torch.tensor(int(requested), dtype=torch.int32, device=device)
        dist.all_reduce(flag, dist.ReduceOp.MAX)
        return bool(flag.item())

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        while self._previous:
            number, handler = self._previous.popitem()
            # None stands for a handler that was not installed from Python and cannot be again.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _handle(self, number: int, frame: object) -> None:
        if number == signal.SIGINT:
            if self._interrupted:
                raise KeyboardInterrupt
            self._interrupted = True
        self.signal_name = self.signal_name or signal.Signals(number).name
