"""Flow around random sections: shock, conservation of mass, and the files of the set."""

import numpy as np
import pytest

from physicsnemo_flarepp.builtin.sets import airfoil
from physicsnemo_flarepp.builtin.solvers.full_potential import (
    GAMMA,
)

pytestmark = pytest.mark.slow


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


def test_random_cases_are_sound():
    largest = []
    for seed in range(5):
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
    airfoil.SET.assemble(iter(cases), tmp_path, 2, 1, 0)
    x, y, flow = (np.load(tmp_path / f"NACA_Cylinder_{name}.npy") for name in "XYQ")
    assert x.shape == y.shape == (3, 221, 51) and flow.shape == (3, 5, 221, 51)
    assert x[2, 0, 0] == 2.25 and y[2, 0, 0] == 2.5
    np.testing.assert_array_equal(flow[:, 4, 5, 7], [100, 101, 102])
