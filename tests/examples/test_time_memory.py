import csv
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "examples" / "scaling" / "time_memory.py"


def test_table_csv_and_plot_of_a_small_run(tmp_path):
    command = [sys.executable, str(SCRIPT), "--models", "flare", "flarepp", "--tokens", "2000"]
    command += ["--layers", "1", "--repeats", "1", "--parts", "--weights", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with open(tmp_path / "time_memory.csv") as file:
        rows = {row["model"]: row for row in csv.DictReader(file)}
    assert rows["flare"]["time/flare"] == rows["flare"]["memory/flare"] == "1.0"
    # A step holds at least the tokens' 2000 x 128 fp32 state once, and takes longer than no time.
    for row in rows.values():
        assert float(row["memory_mb"]) > 2000 * 128 * 4 / 1e6
        assert float(row["seconds"]) > 0 and float(row["step/parts"]) > 0
        assert float(row["weighted/plain"]) > 0
    assert f"| 2000 | flarepp | {rows['flarepp']['seconds']}" in done.stdout
    assert (tmp_path / "time_memory.png").stat().st_size > 10_000
