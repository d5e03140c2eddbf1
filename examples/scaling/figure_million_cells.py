"""Time and memory of a comparison figure of a surface with a million cells.

python examples/scaling/figure_million_cells.py                 prints seconds and peak memory
python examples/scaling/figure_million_cells.py --keep FILE     and keeps the figure
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import pyvista as pv
from measuring import peak_bytes, print_row

from physicsnemo_flarepp.visualization import plot_comparison, require_rendering


def bumpy_body(n_cells: int) -> pv.PolyData:
    """Return a closed surface of about `n_cells` triangles, 4.5 x 1.8 x 1.2, with fine relief."""
    around = round((n_cells / 4) ** 0.5)
    body = pv.Sphere(radius=1.0, theta_resolution=2 * around, phi_resolution=around + 1)
    x, y, z = body.points.T
    relief = 1 + 0.02 * np.sin(40 * x) * np.sin(30 * y) * np.sin(35 * z)
    body.points = body.points * relief[:, None] * (2.25, 0.9, 0.6)
    return body


def measure(n_cells: int, n_models: int, path: Path) -> dict:
    """Draw one figure and give what it took."""
    require_rendering()  # a test picture in a child process, once per process
    body = bumpy_body(n_cells)
    x, y, z = body.cell_centers().points.T
    truth = 300 * np.cos(2 * x) * np.cos(3 * y) - 200 * z
    models = {
        f"model {i + 1}": truth + 10 * (i + 1) * np.sin((8 + i) * x + 5 * z)
        for i in range(n_models)
    }
    before, start, work = peak_bytes(), time.perf_counter(), time.process_time()
    drawn = plot_comparison(body, truth, models, field="p", units="m²/s²", path=path)
    seconds, work = time.perf_counter() - start, time.process_time() - work
    return {
        "cells": body.n_cells,
        "panels": len(drawn.rectangles),
        "seconds": round(seconds, 1),
        "CPU seconds": round(work, 1),
        "peak memory (VmHWM), GB": round(peak_bytes() / 1e9, 2),
        "of it before the figure, GB": round(before / 1e9, 2),
    }


def main() -> None:
    """Measure and print one row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=int, default=1_000_000)
    parser.add_argument("--models", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="PNG, PDF or SVG file to keep the figure in")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        path = arguments.keep or Path(directory) / "figure.png"
        print_row(measure(arguments.cells, arguments.models, path), header=True)


if __name__ == "__main__":
    main()
