"""What the scripts that measure share: clocks, memory, processes of their own, tables, files."""

import csv
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from typing import Any

import torch
from matplotlib.figure import Figure

from physicsnemo_flarepp.texts import format_table
from physicsnemo_flarepp.training.reporting import PeakMemory


def measure_in_own_process(script: str, job: dict) -> dict:
    """Run ``script --measure job`` in a fresh interpreter and read the row it prints last."""
    command = [sys.executable, script, "--measure", json.dumps(job)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def wait(device: torch.device) -> None:
    """Let a GPU finish before the clock is read."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed(function: Callable[[], object], device: torch.device) -> tuple[float, Any]:
    """Return the seconds of a call, device included, and its result."""
    wait(device)
    start = time.perf_counter()
    result = function()
    wait(device)
    return time.perf_counter() - start, result


def peak_of(function: Callable[[], object], device: torch.device) -> int:
    """Return the bytes that a call needs at its peak, beyond what is there before it."""
    watch = PeakMemory(device)
    before = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
    function()
    return int(watch.megabytes() * 2**20) - before


def anonymous_peak(function: Callable[[], object], every: float = 0.002) -> int:
    """Return the bytes that a call needs at its peak beyond those before it, without mapped files.

    ``RssAnon`` of this process, read again and again in a thread.
    """
    PeakMemory(torch.device("cpu"))  # gives back what the C library keeps
    before, ended, peak = _status("RssAnon"), Event(), 0

    def watch() -> None:
        nonlocal peak
        while not ended.wait(every):
            peak = max(peak, _status("RssAnon"))

    thread = Thread(target=watch)
    thread.start()
    try:
        function()
    finally:
        ended.set()
        thread.join()
    return max(peak, before) - before


def peak_bytes() -> int:
    """Return the most memory this process had since it started or since a peak was measured.

    Read from ``/proc``: the ``ru_maxrss`` of a child process starts at what its parent had.
    """
    return _status("VmHWM")


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))


def print_row(row: dict, header: bool) -> None:
    """Print one row of a Markdown table as soon as it is measured, below its header if asked."""
    lines = format_table([list(row), list(row.values())], markdown=True).splitlines()
    print("\n".join(lines if header else lines[2:]), flush=True)


def print_table(rows: list[dict]) -> None:
    """Print rows as a Markdown table, one column per key of the first."""
    if rows:
        print(format_table([list(rows[0]), *(list(row.values()) for row in rows)], markdown=True))


def slug(model: str) -> str:
    """Return the name of a model as part of a folder's name."""
    return model.lower().replace("+", "p").replace(" ", "-")


def legend_below(figure: Figure) -> None:
    """Draw one legend for all panels, below them."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)


def read_csv(path: Path) -> list[dict[str, str]]:
    """Return the rows that :func:`write_csv` wrote, none without a file."""
    if not path.is_file():
        return []
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def write_csv(rows: list[dict], path: Path) -> None:
    """Write the rows, one column per key of the first."""
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
