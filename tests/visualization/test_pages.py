import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from physicsnemo_flarepp.visualization import LIGHT, Theme
from physicsnemo_flarepp.visualization.pages import Page
from tests.visualization.looking import assert_apart, numbers, texts


@pytest.mark.parametrize("path", [None, "a.png", Path("a.pdf"), ["a.png", Path("b.svg")]])
def test_paths_become_a_tuple(path):
    given = [] if path is None else path if isinstance(path, list) else [path]
    assert Page(LIGHT, [420], [200], path).paths == tuple(map(Path, given))


def test_other_formats_are_named():
    with pytest.raises(ValueError, match=r"path 'a.jpg' must end in one of \('.png', '.pdf'"):
        Page(LIGHT, [420], [200], ["a.png", "a.jpg"])


def test_pictures_keep_their_pixels_whatever_is_written_around_them():
    rng = np.random.default_rng(0)
    with Page(LIGHT, [301, 140], [77, 120]) as page:
        sizes = {(i, j): (70, 131 - i, 3) for i, j in np.ndindex(2, 2)}
        pictures = {key: rng.integers(0, 255, size, np.uint8) for key, size in sizes.items()}
        for key, picture in pictures.items():
            axis = page.picture(key, picture, *key, low=key == (1, 1))
            page.head(axis, "a heading " * 9, "\nin two lines")
            page.beside(axis, "words at the side that are longer than the row is high")
        page.title("title " * 40)
        page.note("note")
        page.bar(page.axes[0], LIGHT.fields(), (0.0, 1e-4), "above [Pa]", [np.array([-1.0])])
        page.bar(page.axes[1, :1], LIGHT.fields(), (0.0, 1e-4), "below [Pa]")
    image, _ = page.drawn
    assert_apart(page, page.rectangles)
    for key, (left, top, width, height) in page.rectangles.items():
        np.testing.assert_array_equal(image[top : top + height, left : left + width], pictures[key])
    left, top, width, height = page.rectangles[1, 1]
    frame = page.axes[1, 1].get_window_extent()
    assert top + height == len(image) - round(frame.y0)  # at the lower edge of its axes
    boxes = list(texts(page).values())
    for box in boxes:
        assert 0 <= box.x0 and box.x1 <= image.shape[1] and 0 <= box.y0 and box.y1 <= len(image)
        assert not box.count_overlaps([other for other in boxes if other is not box])


@pytest.mark.parametrize("n", range(1, 60, 8))
def test_words_are_cut_before_their_tail(n):
    tail = " error, rel. L2 12.34%"
    with Page(LIGHT, [420], [200]) as page:
        page.head(page.axes[0, 0], "n" * n, tail)
    title = page.axes[0, 0].title
    assert title.get_window_extent(page.canvas.get_renderer()).width <= 420
    words = title.get_text()
    assert words.endswith(tail)
    # Cut only where even the smallest font is too wide.
    assert words.startswith("n" * n) or title.get_size() == 5.5
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
def test_ticks_of_bars_differ_and_stay_apart(inches):
    with Page(LIGHT, [inches * LIGHT.dpi] * len(LIMITS), [200]) as page:
        for axis, limits in zip(page.axes[0], LIMITS, strict=True):
            page.bar([axis], LIGHT.fields(), limits, "p")
    for bar, limits in zip(page.figure.axes[len(LIMITS) :], LIMITS, strict=True):
        labels = numbers(bar.xaxis, limits).values()
        boxes = [label.get_window_extent() for label in labels]
        assert labels and len({label.get_text() for label in labels}) == len(labels), limits
        assert all(a.x1 + 2 < b.x0 for a, b in zip(boxes, boxes[1:], strict=False)), limits


@pytest.mark.parametrize(
    ("limits", "factor", "offset", "common"),
    [
        ((-2.4e6, 1e6), 1e6, 0, r"\times\mathdefault{10^{6}}"),
        ((101325.0, 101326.0), 1, 101320, "+1.0132 "),
        ((-700.0, 700.0), 1, 0, None),
    ],
)
def test_ticks_mean_what_their_labels_say(limits, factor, offset, common):
    with Page(LIGHT, [420], [200]) as page:
        page.bar(page.axes[0], LIGHT.fields(), limits, "p [Pa]")
    axis = page.figure.axes[-1]
    for place, tick in numbers(axis.xaxis, limits).items():
        words = tick.get_text().strip("$").replace(r"\mathdefault{", "").strip("}")
        assert float(words.replace("\N{MINUS SIGN}", "-")) * factor + offset == pytest.approx(place)
    label = axis.get_xlabel()
    assert label.startswith("p [Pa]") and (common in label if common else label == "p [Pa]")


@pytest.mark.slow
def test_long_label_of_a_bar_keeps_its_units_and_its_place():
    theme = Theme(dpi=100)
    with Page(theme, [200], [100]) as page:
        page.bar(page.axes[0], theme.fields(), (0.0, 1e-4), "wallShear" * 9 + " [m²/s²]")
    image, _ = page.drawn
    axis = page.figure.axes[-1]
    box, ticks = axis.xaxis.label.get_window_extent(), axis.get_xticklabels()
    assert "… [m²/s²]  (" in axis.get_xlabel() and "10^{\N{MINUS SIGN}4}" in axis.get_xlabel()
    assert 0 <= box.x0 and box.x1 <= image.shape[1] and 0 <= box.y0
    assert box.y1 < min(tick.get_window_extent().y0 for tick in ticks)


# A file that grows beyond the limit ends its process in the middle of a write, as a kill would.
KILLED_WHILE_WRITING = """
import os, resource, signal, sys
import numpy as np
from physicsnemo_flarepp.visualization import LIGHT
from physicsnemo_flarepp.visualization.pages import Page

def write(path):
    with Page(LIGHT, [190], [90], path) as page:
        noise = np.random.default_rng(0).integers(0, 255, (90, 190, 3), dtype=np.uint8)
        page.picture(("noise",), noise, 0, 0)

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
