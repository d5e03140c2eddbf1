import csv
import json

import pytest
import time_memory
import torch

pytestmark = pytest.mark.slow


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def one_process(monkeypatch):
    """Memory of FLARE++ is measured in a process of its own, of the others in this one."""
    started, original = [], time_memory.measure_in_own_process

    def measure(script, job):
        if job["model"] == "flarepp":
            started.append(job)
            return original(script, job)
        return time_memory.measure_memory(**json.loads(json.dumps(job)))

    monkeypatch.setattr(time_memory, "measure_in_own_process", measure)
    return started


def test_table_csv_and_plot_of_a_small_run(tmp_path, monkeypatch, capsys, threads, one_process):
    command = [
        "time_memory.py",
        "--models",
        "flare",
        "flarepp",
        "--tokens",
        "1000",
        "--layers",
        "1",
    ]
    command += ["--repeats", "1", "--threads", "1", "--parts", "--weights", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", command)
    time_memory.main()
    assert len(one_process) == 1
    with open(tmp_path / "time_memory.csv") as file:
        rows = {row["model"]: row for row in csv.DictReader(file)}
    assert rows["flare"]["time/flare"] == rows["flare"]["memory/flare"] == "1.0"
    # A step holds at least the tokens' 1000 x 128 fp32 state once, and takes longer than no time.
    for row in rows.values():
        assert float(row["memory_mb"]) > 1000 * 128 * 4 / 1e6
        assert float(row["seconds"]) > 0 and float(row["step/parts"]) > 0
        assert float(row["weighted/plain"]) > 0
    assert f"| 1000 | flarepp | {rows['flarepp']['seconds']}" in capsys.readouterr().out
    assert (tmp_path / "time_memory.png").stat().st_size > 10_000
