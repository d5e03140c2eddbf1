import subprocess
import sys

import numpy as np
import pytest

from physicsnemo_flarepp.visualization import LIGHT, Theme
from physicsnemo_flarepp.visualization.sheets import Sheet, styled


@pytest.fixture
def sheet():
    with styled(LIGHT):
        yield Sheet(500, 120, LIGHT)


def width_of(sheet, artist):
    return artist.get_window_extent(sheet.canvas.get_renderer()).width


@pytest.mark.parametrize("n", range(1, 60, 8))
def test_words_are_cut_before_their_tail(sheet, n):
    room = 480
    sheet.text("n" * n, 250, 60, room=room, size=9, tail=" error, rel. L2 12.34%")
    (artist,) = sheet.figure.texts
    assert width_of(sheet, artist) <= room
    words = artist.get_text()
    assert words.endswith(" error, rel. L2 12.34%")
    # Cut only where even the smallest font is too wide.
    assert words.startswith("n" * n) or artist.get_size() == 5.0
    assert words.count("…") == (not words.startswith("n" * n))


LIMITS = [
    (-700.0, 700.0),
    (-0.034, 0.034),
    (101325.0, 101326.0),
    (-101326.25, -101325.75),
    (0.0, 0.0145),
    (-2.4e-7, 2.4e-7),
    (999.0, 1001.0),
    (-39.0, 1.2e6),
    (1.0, 1.0 + 3e-9),
    (-1.0, 1.0),
]


@pytest.mark.parametrize("inches", [0.6, 2.1])
@pytest.mark.parametrize("limits", LIMITS)
def test_ticks_differ_and_stay_apart(sheet, limits, inches):
    sheet.bar(LIGHT.fields(), limits, "p", 50, 50, inches * LIGHT.dpi)
    axis = sheet.figure.axes[0]
    sheet.canvas.draw()
    labels = [label for label in axis.get_xticklabels() if label.get_text()]
    boxes = [label.get_window_extent() for label in labels]
    assert labels and len({label.get_text() for label in labels}) == len(labels)
    assert all(a.x1 + 2 < b.x0 for a, b in zip(boxes, boxes[1:], strict=False))


def test_numbers_that_share_their_digits_are_counted_from_an_offset(sheet):
    sheet.bar(LIGHT.fields(), (101325.0, 101326.0), "pressure [Pa]", 50, 50, 2 * LIGHT.dpi)
    (label,) = sheet.figure.texts
    assert label.get_text() == "pressure [Pa]  (+101325)"
    words = [tick.get_text() for tick in sheet.figure.axes[0].get_xticklabels()]
    assert words[0] == "0.0" and words[-1] == "1.0"


def test_ticks_mean_what_their_labels_say(sheet):
    sheet.bar(LIGHT.fields(), (-2.4e6, 1e6), "p", 50, 50, 2.2 * LIGHT.dpi)
    axis = sheet.figure.axes[0]
    words = [tick.get_text().replace("\N{MINUS SIGN}", "-") for tick in axis.get_xticklabels()]
    np.testing.assert_allclose(np.array(words, float) * 1e6, axis.get_xticks())
    assert r"×10$^{6}$" in sheet.figure.texts[0].get_text()


@pytest.mark.slow
def test_long_label_of_a_bar_keeps_its_units_and_its_place():
    theme = Theme(dpi=100)
    with styled(theme):
        sheet = Sheet(400, 100, theme)
        sheet.bar(theme.fields(), (0.0, 1e-4), "wallShear" * 9 + " [m²/s²]", 100, 10, 200)
        (label,) = sheet.figure.texts
        box = label.get_window_extent(sheet.canvas.get_renderer())
        sheet.canvas.draw()
        ticks = [tick.get_window_extent() for tick in sheet.figure.axes[0].get_xticklabels()]
    assert label.get_text().endswith("… [m²/s²]  (×10$^{-4}$)")
    assert 90 <= box.x0 and box.x1 <= 310 and 0 <= box.y0
    assert box.y1 < min(tick.y0 for tick in ticks)


# A file that grows beyond the limit ends its process in the middle of a write, as a kill would.
KILLED_WHILE_WRITING = """
import os, resource, signal, sys
import numpy as np
from physicsnemo_flarepp.visualization import LIGHT
from physicsnemo_flarepp.visualization.sheets import Sheet, styled

def write(path):
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
    paths = [str(tmp_path / f"figure.{suffix}") for suffix in ("png", "pdf", "svg")]
    command = [sys.executable, "-c", KILLED_WHILE_WRITING, *paths]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
