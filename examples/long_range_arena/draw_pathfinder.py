"""Draw a sheet of Pathfinder images with their labels, by the published rules and the small ones.

python examples/long_range_arena/draw_pathfinder.py
"""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from physicsnemo_flarepp.builtin.sets import pathfinder


def main() -> None:
    """Write pathfinder.png beside this script."""
    figure = Figure(figsize=(12, 8.5), layout="constrained")
    parts = figure.subfigures(2, 1)
    for part, made in zip(parts, (pathfinder.SET, pathfinder.SMALL), strict=True):
        rules, rng = made.solve_case.keywords["rules"], np.random.default_rng(0)
        part.suptitle(
            f"{made.name}: {rules.size} x {rules.size}, contours of {rules.dashes} dashes"
        )
        for axes in part.subplots(2, 6).flat:
            image, label, *_ = pathfinder.draw_sample(rng, rules)
            axes.imshow(image, cmap="gray", vmin=0, vmax=255)
            axes.set_title("connected" if label else "not connected", fontsize=9)
            axes.set_axis_off()
    figure.savefig(Path(__file__).with_name("pathfinder.png"), dpi=80)


if __name__ == "__main__":
    main()
