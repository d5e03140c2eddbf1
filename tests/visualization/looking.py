"""What tests draw, and look for in pictures."""

import numpy as np
from matplotlib.colors import to_rgb


def rgb(color):
    return np.round(np.array(to_rgb(color)) * 255).astype(int)


def near(pixel, color, tolerance=3):
    return np.abs(np.asarray(pixel, int) - rgb(color)).max() <= tolerance


def pixels(drawn, key):
    left, top, width, height = drawn.rectangles[key]
    return drawn.image[top : top + height, left : left + width].astype(int)


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
