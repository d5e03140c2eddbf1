"""What the measuring scripts share: rows from processes of their own, tables, files."""

import csv
import json
import subprocess
import sys
from pathlib import Path


def measure_in_own_process(script: str, job: dict) -> dict:
    """Run ``script --measure job`` in a fresh interpreter and read the row it prints last."""
    command = [sys.executable, script, "--measure", json.dumps(job)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def peak_bytes() -> int:
    """Give the most memory this process ever had.

    Read from ``/proc``: the ``ru_maxrss`` of a child process starts at what its parent had.
    """
    return _status("VmHWM")


def resident_bytes() -> int:
    """Give the memory this process has now."""
    return _status("VmRSS")


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))


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
