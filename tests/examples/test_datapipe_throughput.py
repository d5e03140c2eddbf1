import sys

import datapipe_throughput
import pytest

pytestmark = pytest.mark.slow


def test_a_small_run_prints_a_rate_for_each_layout(monkeypatch, capsys):
    options = "--points 200 --cells 800 --cases 2 --epochs 1 --steps 1 --workers 0"
    monkeypatch.setattr(sys, "argv", ["datapipe_throughput.py", *options.split()])
    datapipe_throughput.main()
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[-2:]]
    assert [row[0] for row in rows] == ["presampled", "vtp"]
    for _, pipe, step, ratio, _ in rows:
        pipe, step = (float(value.replace(",", "")) for value in (pipe, step))
        assert abs(float(ratio) - pipe / step) < 0.1 + 0.01 * pipe / step
