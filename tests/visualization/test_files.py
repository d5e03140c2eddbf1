import subprocess
import sys

import pytest

from physicsnemo_flarepp.visualization.files import whole_file

# A file that grows beyond the limit ends its process in the middle of a write, as a kill would.
KILLED_WHILE_WRITING = """
import os, resource, signal, sys
import numpy as np
import pyvista as pv
from physicsnemo_flarepp.visualization import LIGHT, export_fields
from physicsnemo_flarepp.visualization.sheets import Sheet, styled

def write(path):
    if path.endswith(".vtp"):
        export_fields(path, pv.Sphere(), {"p": np.random.default_rng(0).random(842)})
        return
    with styled(LIGHT):
        sheet = Sheet(200, 100, LIGHT)
        noise = np.random.default_rng(0).integers(0, 255, (90, 190, 3), dtype=np.uint8)
        sheet.image(noise, 5, 5)
        sheet.finish(path)

for path in sys.argv[1:]:
    write(path)
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
        write(path)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXFSZ, (path, status)
    before = open(path, "rb").read()
    write(path)
    assert open(path, "rb").read() == before and len(before) > 4000, path
"""


@pytest.mark.slow
def test_writer_that_is_killed_leaves_the_file_of_before(tmp_path):
    paths = [str(tmp_path / f"figure.{suffix}") for suffix in ("png", "pdf", "svg", "vtp")]
    command = [sys.executable, "-c", KILLED_WHILE_WRITING, *paths]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_writer_that_fails_leaves_the_file_of_before_and_nothing_else(tmp_path):
    path = tmp_path / "new" / "a.png"
    with whole_file(path) as draft:
        draft.write_text("whole")
        assert draft.suffix == ".png" and not path.exists()
    with pytest.raises(RuntimeError), whole_file(path) as draft:
        draft.write_text("ha")
        raise RuntimeError
    assert path.read_text() == "whole" and list(path.parent.iterdir()) == [path]
