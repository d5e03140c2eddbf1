"""One shape sensitivity against one prediction of the same surface: time as a ratio, peak memory.

A surface of any size is a lumpy ball; the model has random weights, which cost what trained ones
do. Every row comes from a process of its own. Memory is the peak of anonymous pages beyond the mesh
itself: hidden states, inputs and their gradients wait in files of the scratch folder.

    python examples/scaling/sensitivity_cost.py --cells 250000 2000000
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from measuring import anonymous_peak, measure_in_own_process, print_row
from omegaconf import OmegaConf

from physicsnemo_flarepp.datapipes import Normalizer
from physicsnemo_flarepp.datapipes.channels import Channels
from physicsnemo_flarepp.design import ShapeModel
from physicsnemo_flarepp.evaluation import ForceSettings, Run
from physicsnemo_flarepp.meshes import PolygonMesh
from physicsnemo_flarepp.models import FlarePP


def lumpy_ball(n_cells: int) -> PolygonMesh:
    """Return a closed surface of about so many triangles."""
    columns = int(np.sqrt(n_cells))
    rows = n_cells // (2 * columns)
    u = np.linspace(0, 2 * np.pi, columns, endpoint=False)
    v = np.linspace(0, np.pi, rows + 2)[1:-1]
    u, v = (a.ravel() for a in np.meshgrid(u, v))
    radius = 1 + 0.1 * np.sin(5 * u) * np.sin(v) ** 2
    ring = np.stack([2 * radius * np.cos(u) * np.sin(v), radius * np.sin(u) * np.sin(v)], 1)
    points = np.concatenate([np.c_[ring, np.cos(v)], [[0, 0, 1.0], [0, 0, -1.0]]])
    ids = np.arange(rows * columns).reshape(rows, columns)
    right = np.roll(ids, -1, axis=1)
    a, b, c, d = ids[:-1], ids[1:], right[1:], right[:-1]
    caps = [np.stack([np.full(columns, rows * columns + end), *pair], 1)
            for end, pair in ((0, (ids[0], right[0])), (1, (right[-1], ids[-1])))]  # fmt: skip
    sides = [np.stack([x.ravel() for x in corners], 1) for corners in ((a, b, c), (a, c, d))]
    faces = np.concatenate([*caps, *sides])
    return PolygonMesh("ball", points, faces.ravel(), np.arange(0, faces.size + 1, 3))


def make_shape(n_cells: int, settings: dict, scratch: str | None) -> ShapeModel:
    """Return a small model with random weights on a lumpy ball."""
    torch.manual_seed(0)
    model = FlarePP(6, 4, n_layers=settings["n_layers"], n_hidden=settings["n_hidden"], n_head=4)
    channels = Channels(3, {"p": 1, "tau": 3}, {"normals": 3}, {}, "cell", weights="measure")
    config = OmegaConf.create({})
    run = Run("random", Path(), config, model.eval(), Normalizer(), torch.device("cpu"), config)
    run.__dict__["channels"] = channels  # instead of reading them from a run directory
    mesh = lumpy_ball(n_cells)
    forces = ForceSettings("p", "tau", shear_sign=1, speed=1.0)
    inside = torch.ones(mesh.n_cells, dtype=torch.float64)
    return ShapeModel(run, mesh, {}, forces, 1.0, False, 1.0, inside, scratch=scratch)


def measure(n_cells: int, settings: dict) -> dict:
    """Differentiate once in this process and tell its time over a prediction, and its memory."""
    with tempfile.TemporaryDirectory(dir=settings["scratch"]) as folder:
        make_shape(1000, settings, folder).gradient(
            make_shape(1000, settings, None).points, {"lift": 1.0}
        )
        shape = make_shape(n_cells, settings, folder)
        points = shape.points
        seconds = {}

        def timed(name, function):
            wall, cpu = time.perf_counter(), time.process_time()
            function()
            seconds[name] = time.perf_counter() - wall, time.process_time() - cpu

        for_values = anonymous_peak(lambda: timed("predict", lambda: shape.values(points)))
        for_gradient = anonymous_peak(
            lambda: timed("gradient", lambda: shape.gradient(points, {"lift": 1.0}))
        )
    n = shape.mesh.n_cells
    # In files: inputs (6), weight and target (5 doubles) with their gradients; hidden states.
    files = 2 * n * (4 * 7 + 8 * 5)
    files += 4 * n * (settings["n_hidden"] * (settings["n_layers"] + 1) + 1)
    # The result, and what a part of the mesh adds to it, which autograd sums in two arrays.
    vertices = 3 * points.nbytes
    return {
        "cells": n,
        "predict_cpu_s": round(seconds["predict"][1], 1),
        "gradient_cpu_s": round(seconds["gradient"][1], 1),
        "cpu_ratio": round(seconds["gradient"][1] / seconds["predict"][1], 2),
        "wall_ratio": round(seconds["gradient"][0] / seconds["predict"][0], 2),
        "in_files_mb": round(files / 1e6),
        "predict_mb": round(for_values / 1e6),
        "gradient_mb": round(for_gradient / 1e6),
        "of_vertices_mb": round(vertices / 1e6),
        "rest_mb": round((for_gradient - vertices) / 1e6),
    }


def main() -> None:
    """Measure all rows and print them as they come."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=int, nargs="+", default=[250_000, 1_000_000, 2_000_000])
    parser.add_argument("--n-hidden", type=int, default=32)
    parser.add_argument("--n-layers", type=int, default=2)
    parser.add_argument("--scratch", help="folder for files; default: that of the system")
    parser.add_argument("--measure", help=argparse.SUPPRESS)  # one row, in this process
    arguments = parser.parse_args()
    if arguments.measure:
        torch.set_num_threads(1)
        print(json.dumps(measure(**json.loads(arguments.measure))))
        return
    settings = {key: getattr(arguments, key) for key in ("n_hidden", "n_layers", "scratch")}
    for number, n_cells in enumerate(arguments.cells):
        row = measure_in_own_process(__file__, {"n_cells": n_cells, "settings": settings})
        print_row(row, header=number == 0)


if __name__ == "__main__":
    main()
