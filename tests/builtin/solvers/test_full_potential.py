"""The full potential solver against Joukowski's exact flow and Prandtl and Glauert's rule."""

import numpy as np
import pytest

from physicsnemo_flarepp.builtin.sets import airfoil
from physicsnemo_flarepp.builtin.solvers import Unsolvable
from physicsnemo_flarepp.builtin.solvers.full_potential import (
    make_c_grid,
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_flow_that_potential_theory_does_not_have_is_an_error():
    grid = airfoil.section_grid(airfoil.naca_section(0.14, 0.03, 0.4), 0.14, (111, 26))
    with pytest.raises(Unsolvable, match="lower the Mach number"):
        solve_potential(grid, 0.85)
    with pytest.raises(ValueError, match="mach=1.2"):
        solve_potential(grid, 1.2)


def test_sections_that_make_no_c_grid_are_refused():
    with pytest.raises(ValueError, match="open trailing edge"):
        make_c_grid(lambda t: t**2 + 0.06j * t, 0.001)
    with pytest.raises(ValueError, match="not a graph"):
        make_c_grid(airfoil.naca_section(0.12, 0.0, 0.4), 0.5 + 0.2j)
