import sys

import prepared_cases
import pytest

pytestmark = pytest.mark.slow


def test_a_small_run_prints_both_times_and_their_ratio(monkeypatch, capsys):
    options = "--points 50 --cells 800 --samples 1 --cold"
    monkeypatch.setattr(sys, "argv", ["prepared_cases.py", *options.split()])
    prepared_cases.main()
    first, *rows = capsys.readouterr().out.splitlines()
    assert "50 per sample" in first
    raw, ready, ratio = (float(row.split()[1]) for row in rows)
    assert raw > 0 and ready > 0 and ratio == pytest.approx(raw / ready, rel=0.5, abs=1)
