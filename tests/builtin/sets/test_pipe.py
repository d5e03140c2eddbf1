"""The pipe's flow against Poiseuille and the integral balances of mass and momentum."""

import numpy as np
import pytest
from scipy.integrate import simpson
from scipy.interpolate import CubicHermiteSpline

from physicsnemo_flarepp.builtin.sets import pipe
from physicsnemo_flarepp.builtin.solvers.navier_stokes import (
    FlowNotConverged,
    channel_elements,
    solve_channel,
)

pytestmark = pytest.mark.slow

STATIONS = np.linspace(0, 10, 5)
S_BEND = CubicHermiteSpline(STATIONS, [0.0, 0.6, -0.6, 0.3, 0.0], [0.0, 0.3, 0.0, 0.4, 0.0])


def physical_gradient(points, field):
    """Gradient of a grid field by finite differences in the grid parameters."""
    (x_i, x_j), (y_i, y_j), (f_i, f_j) = (
        np.gradient(array, edge_order=2) for array in (points[..., 0], points[..., 1], field)
    )
    area = x_i * y_j - x_j * y_i
    return np.stack([(f_i * y_j - f_j * y_i) / area, (x_i * f_j - x_j * f_i) / area], axis=-1)


def line_integral(points, vectors):
    """Integral of vectors . n over a curve, n to the right of its direction."""
    step = np.gradient(points, axis=0, edge_order=2)
    return simpson(vectors[..., 0] * step[:, 1] - vectors[..., 1] * step[:, 0], axis=0)


@pytest.mark.parametrize("slope", [0.0, 0.75])
def test_straight_pipe_carries_poiseuille_flow(slope):
    straight = CubicHermiteSpline(STATIONS, slope * STATIONS, np.full(5, slope))
    u_x, u_y, pressure = pipe.pipe_flow(straight, cells=(8, 4))
    stretch = np.hypot(1, slope)
    profile = 1 - 4 * np.linspace(-0.5, 0.5, 129) ** 2
    to_outlet = stretch * (10 - np.linspace(0, 10, 129))
    np.testing.assert_allclose(u_x, np.tile(profile / stretch, (129, 1)), atol=1e-7)
    np.testing.assert_allclose(u_y, np.tile(profile * slope / stretch, (129, 1)), atol=1e-7)
    expected = 8 * pipe.VISCOSITY * to_outlet[:, None]
    np.testing.assert_allclose(pressure, np.broadcast_to(expected, (129, 129)), atol=1e-6)


def test_a_bent_pipe_conserves_mass_along_its_length():
    points = pipe.pipe_points(S_BEND, (129, 129))
    velocity = np.moveaxis(pipe.pipe_flow(S_BEND)[:2], 0, -1)
    flux = [line_integral(points[i], velocity[i]) for i in range(129)]
    np.testing.assert_allclose(flux, 2 / 3, rtol=1e-3)


def test_a_bent_pipe_balances_momentum_between_inlet_outlet_and_walls():
    shape = (513, 257)
    points = pipe.pipe_points(S_BEND, shape)
    u_x, u_y, pressure = pipe.pipe_flow(S_BEND, shape=shape)
    sides = [(np.s_[0, :], -1), (np.s_[-1, :], 1), (np.s_[:, 0], 1), (np.s_[:, -1], -1)]
    for component, speed in enumerate((u_x, u_y)):
        flux = np.stack([speed * u_x, speed * u_y], axis=-1)
        flux -= pipe.VISCOSITY * physical_gradient(points, speed)
        flux[..., component] += pressure
        through = [sign * line_integral(points[side], flux[side]) for side, sign in sides]
        assert max(map(abs, through)) > 0.1
        assert abs(sum(through)) < 2e-3


def test_refining_the_mesh_converges():
    finest = pipe.pipe_flow(S_BEND, cells=(32, 8))
    errors = [
        np.linalg.norm(pipe.pipe_flow(S_BEND, cells=cells)[0] - finest[0])
        / np.linalg.norm(finest[0])
        for cells in ((4, 2), (8, 4), (16, 6))
    ]
    assert errors[0] > 4 * errors[1] > 16 * errors[2]
    assert errors[2] < 1e-3


def test_flow_out_of_reach_of_newton_is_reached_through_larger_viscosities():
    centreline = pipe.random_centreline(np.random.default_rng(5))
    elements = channel_elements((16, 4), 4)
    points = pipe.pipe_points(centreline, elements.node_shape)
    profile = 1 - np.linspace(-1, 1, elements.node_shape[1]) ** 2
    slope = centreline(np.linspace(0, 10, elements.node_shape[0]), 1)
    start = np.stack([np.ones_like(slope), slope]) / np.hypot(1, slope)
    geometry = elements.interpolate(np.moveaxis(points, -1, 0))
    start = elements.interpolate(start[:, :, None] * profile)
    with pytest.raises(FlowNotConverged, match="viscosity 0.002"):
        solve_channel(elements, geometry, 0.002, start)
    flow = pipe.pipe_flow(centreline, cells=(16, 4), viscosity=0.002)
    across = pipe.pipe_points(centreline, (129, 129))
    outflow = line_integral(across[-1], np.moveaxis(flow[:2], 0, -1)[-1])
    assert outflow == pytest.approx(2 / 3, rel=5e-3)


def test_a_folded_mesh_is_refused():
    elements = channel_elements((4, 2), 2)
    points = pipe.pipe_points(S_BEND, elements.node_shape)[:, ::-1]
    geometry = elements.interpolate(np.moveaxis(points, -1, 0))
    with pytest.raises(ValueError, match="folded.*expected all positive"):
        solve_channel(elements, geometry, 0.005, np.zeros_like(geometry))


def test_random_pipes_have_unfolded_grids_of_constant_width():
    for seed in range(10):
        points = pipe.pipe_points(pipe.random_centreline(np.random.default_rng(seed)), (129, 129))
        along, across = np.diff(points, axis=0)[:, :-1], np.diff(points, axis=1)[:-1]
        assert np.all(along[..., 0] * across[..., 1] > along[..., 1] * across[..., 0])
        width = np.linalg.norm(points[:, -1] - points[:, 0], axis=-1)
        np.testing.assert_allclose(width, 1.0, rtol=1e-12)


def test_random_flows_are_finite_and_laminar():
    for seed in range(10):
        centreline = pipe.random_centreline(np.random.default_rng(seed))
        u_x, u_y, pressure = pipe.pipe_flow(centreline, cells=(16, 4))
        assert 0.9 < np.hypot(u_x, u_y).max() < 1.6
        assert 0.3 < pressure[0].mean() < 2.0 and abs(pressure[-1].mean()) < 0.1
        assert np.abs(u_x[:, [0, -1]]).max() < 1e-12


def test_a_case_is_a_function_of_its_seed():
    first, again, other = (pipe.solve_case(seed) for seed in (3, 3, 4))
    for name in first:
        np.testing.assert_array_equal(first[name], again[name])
        assert not np.allclose(first[name], other[name])


def test_files_have_the_published_layout(tmp_path):
    cases = [
        {"points": np.full((129, 129, 2), k) + [0.25, 0.5], "flow": np.full((3, 129, 129), 10 * k)}
        for k in range(3)
    ]
    for k, case in enumerate(cases):
        case["flow"][1, 5, 7] = 100 + k
    pipe.SET.assemble(iter(cases), tmp_path, 2, 1, 0)
    x, y, flow = (np.load(tmp_path / f"Pipe_{name}.npy") for name in "XYQ")
    assert x.shape == y.shape == (3, 129, 129) and flow.shape == (3, 3, 129, 129)
    assert x[2, 0, 0] == 2.25 and y[2, 0, 0] == 2.5 and x.flags.c_contiguous
    np.testing.assert_array_equal(flow[:, 1, 5, 7], [100, 101, 102])
