from pathlib import Path

import pytest
import splits
import torch

PAGE = Path(__file__).parents[2] / "docs" / "kernels.md"


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_every_call_is_timed_whole_and_in_parts(monkeypatch, capsys, threads):
    command = ["splits.py", "--tokens", "3000", "--repeats", "1", "--threads", "2"]
    monkeypatch.setattr("sys.argv", [*command, "--splits", "3"])
    splits.main()
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    named = [(row[0].strip("| "), row[1]) for row in rows]
    parts = ["1", "auto, 1 and 2", "3"]
    assert named == [(call, part) for call in ("encode", "decode") for part in parts]
    assert all(float(row[2]) > 0 and float(row[3]) > 0 for row in rows)


def test_the_page_shows_the_thread_blocks_of_the_launch_rules(capsys):
    splits.print_blocks()
    assert capsys.readouterr().out.strip() in PAGE.read_text()
    # Eight heads of one sample on 132 multiprocessors, before and after.
    assert splits.thread_blocks("H100", "fp16", "decode", True, 1_000_000, 64) == (8, 256)
    assert splits.thread_blocks("H100", "fp16", "encode", True, 1_000_000, 64)[0] > 264
