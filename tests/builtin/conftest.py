import signal
import subprocess
import sys
from pathlib import Path

import pytest

from physicsnemo_flarepp.builtin import sets

IN_ANOTHER_PROCESS = """
import sys
sys.path.insert(0, {folder!r})
from physicsnemo_flarepp.builtin import generate, sets
from physicsnemo_flarepp.builtin.__main__ import main
sets.MODULES["counted"] = "counted_set:SET"
main(["counted", "--val", "0", "--root", sys.argv[1], "--workers", sys.argv[2]])
"""


@pytest.fixture
def log(tmp_path, monkeypatch):
    """Register the counted set; the file lists the seeds of all solved cases."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setitem(sets.MODULES, "counted", "counted_set:SET")
    monkeypatch.setenv("COUNTED_SET_LOG", str(tmp_path / "log"))
    return tmp_path / "log"


@pytest.fixture
def start_elsewhere():
    """Make the counted set in another process, the first of a process group of its own."""

    def start(root, workers=1):
        code = IN_ANOTHER_PROCESS.format(folder=str(Path(__file__).parent))
        return subprocess.Popen(
            [sys.executable, "-c", code, str(root), str(workers)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            # Where tests run in the background of a shell, interrupts are ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    return start
