"""The air around the cars: the panel method evaluated off the body, a small set of volumes.

Each case is the car of the set ``cars`` with the same place and seed, in a box of hexahedra that
are finer near it, without those that touch it. Pressure follows from Bernoulli's equation; there is
no wake and no turbulence.
"""

from dataclasses import astuple
from functools import partial
from pathlib import Path

import numpy as np
from scipy.optimize import brentq

from ..solvers.panel_method import Panels, solve_flow
from . import BuiltinSet, Case
from .car_body import GROUND, CarShape, half_surface, sample_shape, whole_surface
from .cars import SPEED, write_body, write_runs

CELL_FIELDS = ("pMeanTrim", "UMeanTrim")
# Cells along x, along half of y and along z; the box reaches this many metres beyond the car.
CELLS = (44, 12, 18)
UPSTREAM, DOWNSTREAM, SIDE, ABOVE = 2.5, 4.0, 2.5, 2.5
# Cells grow by this factor from one to the next, away from the car.
GROWTH = 1.18
# Constant sources are a poor likeness of the flow closer to a panel than this part of its size.
CLEARANCE = 0.5


def graded_axis(start: float, low: float, high: float, end: float, cells: int) -> np.ndarray:
    """Return the ``cells + 1`` planes of an axis: even from `low` to `high`, wider beyond."""

    # Where growth is that of a cell's size, the number of cells between two planes is a primitive.
    def count(distance: np.ndarray, inner: float) -> np.ndarray:
        return np.log1p(distance * np.log(GROWTH) / inner) / np.log(GROWTH)

    def total(inner: float) -> float:
        sides = count(np.array([low - start, end - high]), inner).sum()
        return (high - low) / inner + sides

    # More cells come out of smaller ones: find the size that gives the number asked for.
    width = end - start
    inner = brentq(lambda size: total(size) - cells, 1e-6 * width, width, xtol=1e-15 * width)
    within = np.arange(cells + 1.0) - count(np.array(low - start), inner)
    even = (high - low) / inner
    below, beyond = (
        inner * np.expm1(np.maximum(n, 0.0) * np.log(GROWTH)) / np.log(GROWTH)
        for n in (-within, within - even)
    )
    planes = low - below + inner * np.clip(within, 0, even) + beyond
    planes[[0, -1]] = start, end
    return planes


def half_box(points: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return the planes of the box at y > 0 around the surface of a car, (P, 3), by axis."""
    low, high = points.min(axis=0), points.max(axis=0)
    return (
        graded_axis(low[0] - UPSTREAM, low[0], high[0], high[0] + DOWNSTREAM, CELLS[0]),
        graded_axis(0.0, 0.0, high[1], high[1] + SIDE, CELLS[1]),
        graded_axis(GROUND, GROUND, high[2], high[2] + ABOVE, CELLS[2]),
    )


def cells_in_the_flow(
    planes: tuple[np.ndarray, ...], points: np.ndarray, faces: np.ndarray, clearance: float
) -> np.ndarray:
    """Return which cells of a box have all corners `clearance` outside a closed surface, (n,)."""
    # VTK takes a second to import, which only the workers of this set have to wait for.
    import pyvista as pv

    corners = np.stack(np.meshgrid(*planes, indexing="ij"), -1)
    surface = pv.PolyData.from_regular_faces(points, faces)
    distance = pv.PolyData(corners.reshape(-1, 3)).compute_implicit_distance(surface)
    outside = (distance["implicit_distance"] > clearance).reshape(corners.shape[:3])
    kept = np.ones([n - 1 for n in outside.shape], dtype=bool)
    for shift in np.ndindex(2, 2, 2):
        kept &= outside[tuple(slice(s, n + s) for s, n in zip(shift, kept.shape, strict=True))]
    return kept.reshape(-1)


def solve_shape(shape: CarShape) -> Case:
    """Surface, cells and fields of the air around one car.

    ``x``, ``y``, ``z`` are the planes of the whole box, ``kept`` says which of its cells are there;
    per kept cell there are ``pMeanTrim`` in m^2/s^2 and ``UMeanTrim`` in m/s.
    """
    half_points, half_faces = half_surface(shape)
    points, faces = whole_surface(half_points, half_faces)
    flow = solve_flow(Panels(half_points[half_faces]), symmetry_y=True, ground=GROUND)
    planes = half_box(points)
    clearance = CLEARANCE * float(np.median(flow.panels.longest_edges))
    kept = cells_in_the_flow(planes, points, faces, clearance)
    middles = [(axis[1:] + axis[:-1]) / 2 for axis in planes]
    centres = np.stack(np.meshgrid(*middles, indexing="ij"), -1).reshape(-1, 3)[kept]
    velocity = SPEED * flow.velocity(centres)
    pressure = (SPEED**2 - np.einsum("nx,nx->n", velocity, velocity)) / 2

    def whole(half: np.ndarray, sign: np.ndarray | float = 1.0) -> np.ndarray:
        """Values in the cells of the whole box: the other half mirrors this one along y."""
        box = np.zeros((*CELLS, *half.shape[1:]), half.dtype)
        box.reshape(-1, *half.shape[1:])[kept] = half
        both = np.concatenate([np.flip(box, 1) * sign, box], axis=1)
        return both.reshape(-1, *half.shape[1:])

    both_kept = whole(np.ones(kept.sum())) > 0
    return {
        "points": points.astype(np.float32),
        "faces": faces.astype(np.int32),
        "x": planes[0],
        "y": np.concatenate([-planes[1][:0:-1], planes[1]]),
        "z": planes[2],
        "kept": both_kept,
        "pMeanTrim": whole(pressure)[both_kept].astype(np.float32),
        "UMeanTrim": whole(velocity, np.array([1, -1, 1]))[both_kept].astype(np.float32),
        "shape": np.array(astuple(shape)),
    }


def solve_case(case_seed: int) -> Case:
    """The air around one random car; see :func:`solve_shape`."""
    return solve_shape(sample_shape(np.random.default_rng(case_seed)))


def write_run(folder: Path, number: int, case: Case) -> None:
    """Write ``volume_<i>.vtu``, the body ``drivaer_<i>.stl`` and ``geo_ref_<i>.csv``."""
    import pyvista as pv

    write_body(folder, number, case)
    planes = [case[axis].astype(np.float32) for axis in "xyz"]
    # VTK counts cells with x first; the arrays have z first.
    order = np.arange(case["kept"].size).reshape([len(axis) - 1 for axis in planes])
    order = order.transpose(2, 1, 0).reshape(-1)
    grid = pv.RectilinearGrid(*planes)
    kept = case["kept"][order]
    rows = (np.cumsum(case["kept"]) - 1)[order][kept]
    volume = grid.extract_cells(np.flatnonzero(kept))
    volume.clear_data()
    for name in CELL_FIELDS:
        volume.cell_data[name] = case[name][rows]
    volume.save(folder / f"volume_{number}.vtu")


SET = BuiltinSet("car_volumes", 2, 40, 8, solve_case, partial(write_runs, write=write_run))
