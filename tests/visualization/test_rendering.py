import subprocess
import sys

import pytest

from physicsnemo_flarepp.visualization import RenderingUnavailable, rendering, require_rendering


@pytest.fixture
def fresh_probe():
    rendering._probe_failure.cache_clear()
    yield
    rendering._probe_failure.cache_clear()


@pytest.mark.parametrize(
    ("probe", "reason"),
    [
        ("import os; os.abort()", "ended with signal 6"),
        ("raise SystemExit('no display at all')", "ended with code 1: no display at all"),
        ("import time; time.sleep(30)", "took more than 0.5 s"),
    ],
)
def test_missing_opengl_names_the_packages(probe, reason, fresh_probe, monkeypatch):
    monkeypatch.setattr(rendering, "_PROBE", probe)
    if "sleep" in probe:
        monkeypatch.setattr(rendering, "_PROBE_SECONDS", 0.5)
    with pytest.raises(RenderingUnavailable) as caught:
        require_rendering()
    assert reason in str(caught.value)
    assert "apt-get install libegl1 libgl1 libxrender1" in str(caught.value)


def test_probe_runs_once(fresh_probe, monkeypatch):
    calls = []

    def run(command, **_):
        calls.append(command)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    require_rendering()
    require_rendering()
    assert len(calls) == 1 and calls[0][0] == sys.executable


def test_probe_itself_renders():
    done = subprocess.run([sys.executable, "-c", rendering._PROBE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
