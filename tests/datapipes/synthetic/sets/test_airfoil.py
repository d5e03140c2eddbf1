"""The aerofoil solver against Joukowski's exact flow, Prandtl-Glauert and conservation of mass."""

import numpy as np
import pytest

from physicsnemo_flarepp.datapipes.synthetic.sets import airfoil
from physicsnemo_flarepp.datapipes.synthetic.solvers.c_grid import make_c_grid
from physicsnemo_flarepp.datapipes.synthetic.solvers.full_potential import (
    GAMMA,
    NoPotentialFlow,
    nodal_velocity,
    solve_potential,
)

CENTRE = -0.1 + 0.08j  # of the circle through 1 that Joukowski's map turns into a section
RADIUS = abs(1 - CENTRE)
CIRCLE_START = np.angle(1 - CENTRE)
INCIDENCE = np.radians(3)
CIRCULATION = 4 * np.pi * RADIUS * np.sin(INCIDENCE - CIRCLE_START)


def joukowski(parameter):
    """Section of chord about 4: down from the trailing edge at 2, around the nose, and back."""
    circle = CENTRE + RADIUS * np.exp(1j * (CIRCLE_START - np.pi * (1 + parameter)))
    return circle + 1 / circle


def joukowski_speed(z):
    """Exact incompressible speed outside the section."""
    root = np.sqrt(z - 2) * np.sqrt(z + 2)
    circle = np.stack([z + root, z - root]) / 2
    outer = np.argmax(np.abs(circle - CENTRE), axis=0)
    circle = np.take_along_axis(circle, outer[None], axis=0)[0]
    arm = circle - CENTRE
    slope = np.exp(-1j * INCIDENCE) - np.exp(1j * INCIDENCE) * (RADIUS / arm) ** 2
    slope += 1j * CIRCULATION / (2 * np.pi * arm)
    return np.abs(slope / (1 - circle**-2))


def joukowski_grid(shape, n_wake):
    step = 1e-4
    before, tip, after = joukowski(np.array([-step, 0.0, step]))
    first, second = (after - before) / (2 * step), (after - 2 * tip + before) / step**2
    radius = abs(first) ** 3 / abs((first.conjugate() * second).imag)
    return make_c_grid(joukowski, tip + 0.5 * radius * (2 - tip) / abs(2 - tip), shape, n_wake, 100)


def joukowski_errors(shape, n_wake):
    """Largest error of the surface speed off the trailing edge, and error of the circulation."""
    grid = joukowski_grid(shape, n_wake)
    flow = solve_potential(grid, 0.0, INCIDENCE)
    surface = grid.points[n_wake + 1 : shape[0] - n_wake - 1, 0]
    speed = np.abs(nodal_velocity(grid, flow)[n_wake + 1 : shape[0] - n_wake - 1, 0])
    inner = surface.real < 1.9
    error = np.abs(speed - joukowski_speed(surface))[inner].max()
    return error / joukowski_speed(surface)[inner].max(), flow.circulation / CIRCULATION - 1


def test_joukowski_section_has_the_exact_surface_speed_and_lift():
    speed_error, lift_error = joukowski_errors((221, 51), 40)
    assert speed_error < 0.01
    assert abs(lift_error) < 0.01


def test_refining_the_grid_converges():
    coarse, middle, fine = (
        joukowski_errors(shape, wake)[0]
        for shape, wake in (((61, 15), 11), ((121, 29), 22), ((241, 57), 44))
    )
    assert coarse > 2.5 * middle > 6.25 * fine


def test_speed_in_the_field_is_exact_away_from_the_section():
    grid = joukowski_grid((221, 51), 40)
    velocity = nodal_velocity(grid, solve_potential(grid, 0.0, INCIDENCE))
    field = np.s_[60:160, 1:40]
    np.testing.assert_allclose(
        np.abs(velocity[field]), joukowski_speed(grid.points[field]), atol=0.01
    )


def test_lift_of_a_thin_section_follows_prandtl_and_glauert():
    grid = airfoil.section_grid(airfoil.naca_section(0.03, 0.0, 0.4), 0.03)
    slow, fast = (solve_potential(grid, mach, np.radians(0.5)).circulation for mach in (0.0, 0.5))
    assert 2 * slow == pytest.approx(2 * np.pi * np.radians(0.5), rel=0.04)
    assert fast / slow == pytest.approx(1 / np.sqrt(1 - 0.5**2), rel=0.02)


def test_lift_and_mirror_image_change_sign():
    def lift(camber):
        section = airfoil.naca_section(0.1, camber, 0.4)
        return solve_potential(airfoil.section_grid(section, 0.1, (111, 26)), 0.6).circulation

    assert lift(0.01) == pytest.approx(-lift(-0.01), rel=1e-6) and lift(0.01) > 0.01
    assert abs(lift(0.0)) < 1e-9


def test_transonic_flow_has_a_shock_and_conserves_mass():
    grid = airfoil.section_grid(airfoil.naca_section(0.12, 0.0, 0.4), 0.12)
    density, u, v, _, mach = airfoil.flow_fields(grid, 0.8)
    upper = mach[110:180, 0]
    peak = np.argmax(upper)
    assert 1.15 < upper[peak] < 1.4
    assert upper[peak + 5] < 0.95 and 0.3 < grid.points[110 + peak, 0].real < 0.7
    # Mass through the closed curve along a C-line and back along both ends of the grid.
    momentum = density * (u - 1j * v)
    for ring in (5, 15, 30):
        curve = [grid.points[0, :ring], grid.points[:, ring], grid.points[-1, :ring][::-1]]
        flow = [momentum[0, :ring], momentum[:, ring], momentum[-1, :ring][::-1]]
        curve, flow = np.concatenate(curve), np.concatenate(flow)
        flux = 0.5 * (flow[1:] + flow[:-1]) * np.diff(curve)
        through = np.ptp(curve.imag) * 0.8 * np.sqrt(GAMMA)
        assert abs(flux.imag.sum()) < 0.01 * through


def test_a_flow_that_potential_theory_does_not_have_is_an_error():
    grid = airfoil.section_grid(airfoil.naca_section(0.14, 0.03, 0.4), 0.14, (111, 26))
    with pytest.raises(NoPotentialFlow, match="lower the Mach number"):
        solve_potential(grid, 0.85)
    with pytest.raises(ValueError, match="mach=1.2"):
        solve_potential(grid, 1.2)


def test_sections_that_make_no_c_grid_are_refused():
    with pytest.raises(ValueError, match="open trailing edge"):
        make_c_grid(lambda t: t**2 + 0.06j * t, 0.001)
    with pytest.raises(ValueError, match="not a graph"):
        make_c_grid(airfoil.naca_section(0.12, 0.0, 0.4), 0.5 + 0.2j)


def test_random_cases_are_sound():
    largest = []
    for seed in range(10):
        case = airfoil.solve_case(seed)
        x, y = np.moveaxis(case["points"], -1, 0)
        (x_i, y_i), (x_j, y_j) = (
            [np.diff(a, axis=0)[:, :-1] for a in (x, y)],
            [np.diff(a, axis=1)[:-1] for a in (x, y)],
        )
        assert np.all(x_i * y_j > x_j * y_i)
        assert np.all(x[:41, 0] == x[:-42:-1, 0]) and np.all(y[:41, 0] == y[:-42:-1, 0])
        assert np.hypot(x, y)[:, -1].min() > 24
        density, u, v, pressure, mach = case["flow"]
        assert np.all(np.isfinite(case["flow"])) and mach.min() >= 0 and mach.max() < 1.5
        np.testing.assert_allclose(mach, np.hypot(u, v) / np.sqrt(GAMMA * pressure / density))
        np.testing.assert_allclose(pressure, density**GAMMA)
        np.testing.assert_allclose(mach[:, -1], airfoil.MACH, atol=0.02)
        largest.append(mach.max())
    assert max(largest) > 1.05


def test_a_case_is_a_function_of_its_seed():
    first, again, other = (airfoil.solve_case(seed) for seed in (3, 3, 4))
    for name in first:
        np.testing.assert_array_equal(first[name], again[name])
        assert not np.allclose(first[name], other[name])


def test_files_have_the_published_layout(tmp_path):
    cases = [
        {"points": np.full((221, 51, 2), k) + [0.25, 0.5], "flow": np.full((5, 221, 51), 10 * k)}
        for k in range(3)
    ]
    for k, case in enumerate(cases):
        case["flow"][4, 5, 7] = 100 + k
    airfoil.SET.assemble(iter(cases), tmp_path, 2, 1)
    x, y, flow = (np.load(tmp_path / f"NACA_Cylinder_{name}.npy") for name in "XYQ")
    assert x.shape == y.shape == (3, 221, 51) and flow.shape == (3, 5, 221, 51)
    assert x[2, 0, 0] == 2.25 and y[2, 0, 0] == 2.5
    np.testing.assert_array_equal(flow[:, 4, 5, 7], [100, 101, 102])
