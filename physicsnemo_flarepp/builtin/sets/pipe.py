"""Built-in set *pipe*: steady laminar flow through a bent pipe, in the layout of the Geo-FNO set.

A pipe of width 1 follows a random centreline over 10 units of x: four cubic pieces given by heights
and slopes at five stations. The inlet carries a parabolic profile with maximum 1, the outlet
satisfies the do-nothing condition. The Navier-Stokes equations are solved at viscosity 0.005
(Reynolds number 200) with Q4-Q3 elements on 32 x 8 cells, which are evaluated on the 129 x 129
grid. ``Pipe_Q`` holds u_x, u_y and the kinematic pressure.
"""

from functools import partial

import numpy as np
from scipy.interpolate import CubicHermiteSpline

from ..solvers.navier_stokes import FlowNotConverged, channel_elements, solve_channel
from . import BuiltinSet, Case, validation_apart, write_grid_files

LENGTH, WIDTH, VISCOSITY = 10.0, 1.0, 0.005
GRID_SHAPE = (129, 129)
CELLS, ORDER = (32, 8), 4

_STATIONS = np.linspace(0.0, LENGTH, 5)
_SMALLEST_RADIUS = 0.8 * WIDTH


def random_centreline(rng: np.random.Generator) -> CubicHermiteSpline:
    """Centreline height over x with heights N(0, 1) and slopes N(0, 1/2) at five stations.

    Heights are clipped to [-2, 2] and slopes to [-1, 1]. Draws that bend with a radius below 0.8
    are repeated: at 0.5 the inner wall would degenerate to a point.
    """
    # Curvature is found from a dense sample of every open piece.
    inside = np.linspace(1e-9, 1.0 - 1e-9, 100)
    x = (_STATIONS[:-1, None] + np.diff(_STATIONS)[:, None] * inside).ravel()
    while True:
        heights = np.clip(rng.normal(0.0, 1.0, _STATIONS.size), -2.0, 2.0)
        slopes = np.clip(rng.normal(0.0, 0.5, _STATIONS.size), -1.0, 1.0)
        centreline = CubicHermiteSpline(_STATIONS, heights, slopes)
        curvature = np.abs(centreline(x, 2)) / (1.0 + centreline(x, 1) ** 2) ** 1.5
        if np.max(curvature) * _SMALLEST_RADIUS < 1.0:
            return centreline


def _directions(centreline: CubicHermiteSpline, x: np.ndarray) -> np.ndarray:
    """Unit tangents of the centreline, (len(x), 2)."""
    tangent = np.stack([np.ones_like(x), centreline(x, 1)], axis=-1)
    return tangent / np.linalg.norm(tangent, axis=-1, keepdims=True)


def pipe_points(centreline: CubicHermiteSpline, shape: tuple[int, int]) -> np.ndarray:
    """Body-fitted points (*shape, 2): equal steps of x, equal steps along the normals."""
    x = np.linspace(0.0, LENGTH, shape[0])
    offset = WIDTH * np.linspace(-0.5, 0.5, shape[1])
    tangent = _directions(centreline, x)
    normal = np.stack([-tangent[:, 1], tangent[:, 0]], axis=-1)
    middle = np.stack([x, centreline(x)], axis=-1)
    return middle[:, None, :] + offset[None, :, None] * normal[:, None, :]


def pipe_flow(
    centreline: CubicHermiteSpline,
    cells: tuple[int, int] = CELLS,
    order: int = ORDER,
    shape: tuple[int, int] = GRID_SHAPE,
    viscosity: float = VISCOSITY,
) -> np.ndarray:
    """u_x, u_y and kinematic pressure on the body-fitted grid, (3, *shape).

    ``cells`` along are a multiple of four: joints of the centreline are cell boundaries.
    """
    elements = channel_elements(cells, order)
    count_along, count_across = elements.node_shape
    points = pipe_points(centreline, elements.node_shape)
    geometry = elements.interpolate(np.moveaxis(points, -1, 0))
    profile = 1.0 - np.linspace(-1.0, 1.0, count_across) ** 2
    direction = _directions(centreline, np.linspace(0.0, LENGTH, count_along))
    start = elements.interpolate(direction.T[:, :, None] * profile)
    try:
        velocity, pressure = solve_channel(elements, geometry, viscosity, start)
    except FlowNotConverged:
        # The same flow, reached through slower ones; if this fails too, the error goes out.
        velocity = start
        for factor in (8.0, 4.0, 2.0, 1.0):
            velocity, pressure = solve_channel(elements, geometry, factor * viscosity, velocity)
    return elements.sample(velocity, pressure, shape)


def solve_case(case_seed: int) -> Case:
    """``points`` (129, 129, 2) and ``flow`` (3, 129, 129) of the pipe with this seed."""
    centreline = random_centreline(np.random.default_rng(case_seed))
    return {"points": pipe_points(centreline, GRID_SHAPE), "flow": pipe_flow(centreline)}


_assemble = validation_apart(partial(write_grid_files, stem="Pipe"))
SET = BuiltinSet("pipe", 3, 200, 50, solve_case, _assemble)
