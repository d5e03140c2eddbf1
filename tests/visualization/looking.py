"""What tests draw, and look for in pictures."""

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.text import Text


def rgb(color):
    return np.round(np.array(to_rgb(color)) * 255).astype(int)


def near(pixel, color, tolerance=3):
    return np.abs(np.asarray(pixel, int) - rgb(color)).max() <= tolerance


def texts(page):
    """Give all words on a page, with the boxes they take."""
    found = page.figure.findobj(lambda a: isinstance(a, Text) and a.get_text().strip())
    boxes = {text.get_text(): text.get_window_extent() for text in found if text.get_visible()}
    return {words: box for words, box in boxes.items() if box.width > 1}


def numbers(axis, limits):
    """Give the labels that are drawn beside an axis, by their value."""
    ticks = zip(axis.get_majorticklocs(), axis.get_majorticklabels(), strict=True)
    return {place: label for place, label in ticks if limits[0] <= place <= limits[1]}


def assert_apart(page, rectangles):
    """Pictures lie on the page, and none on another."""
    taken = np.zeros(np.round(page.figure.get_size_inches() * page.theme.dpi).astype(int)[::-1])
    for left, top, width, height in rectangles.values():
        assert 0 <= left and 0 <= top
        part = taken[top : top + height, left : left + width]
        assert part.shape == (height, width)
        part += 1
    assert taken.max() == 1


def run_records(factor, n=50):
    """Give the metrics of a run."""
    for step in range(1, n + 1):
        yield {"kind": "step", "step": step, "epoch": 0, "loss": factor / step}
        if step % 10 == 0:
            yield {
                "kind": "evaluation",
                "step": step,
                "epoch": 0,
                "error": factor * (0.5 if step == 30 else 1) / step,
                "mean_predictor_error": 0.8,
            }
