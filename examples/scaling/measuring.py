"""What the measuring scripts share: rows from processes of their own, tables, files."""

import csv
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from physicsnemo_flarepp.training.reporting import PeakMemory


def measure_in_own_process(script: str, job: dict) -> dict:
    """Run ``script --measure job`` in a fresh interpreter and read the row it prints last."""
    command = [sys.executable, script, "--measure", json.dumps(job)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def peak_of(function: Callable[[], object], device: torch.device) -> int:
    """Return the bytes that a call needs at its peak, beyond what is there before it."""
    watch = PeakMemory(device)
    before = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
    function()
    return int(watch.megabytes() * 2**20) - before


def peak_bytes() -> int:
    """Return the most memory this process had since it started or since a peak was measured.

    Read from ``/proc``: the ``ru_maxrss`` of a child process starts at what its parent had.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def print_row(row: dict, header: bool) -> None:
    """Print one row of a Markdown table, below its header if asked."""
    if header:
        print("| " + " | ".join(row) + " |\n" + "|---" * len(row) + "|")
    print("| " + " | ".join(map(str, row.values())) + " |", flush=True)


def write_csv(rows: list[dict], path: Path) -> None:
    """Write the rows, one column per key of the first."""
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
