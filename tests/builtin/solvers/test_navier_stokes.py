"""Coefficients of the channel's elements, and Poiseuille flow on the coarsest of them."""

import numpy as np
import pytest

from physicsnemo_flarepp.builtin.solvers.navier_stokes import channel_elements, solve_channel


def parameters(cells, shape):
    axes = [np.linspace(0, end, count) for end, count in zip(cells, shape, strict=True)]
    return np.meshgrid(*axes, indexing="ij")


@pytest.mark.parametrize("order", [2, 3, 4])
def test_polynomials_of_the_element_degree_are_sampled_exactly(order):
    elements = channel_elements((2, 1), order)

    def fields(x, y):
        return np.stack([x**order - x * y**2, y**order + x])

    coefficients = elements.interpolate(fields(*parameters((2, 1), elements.node_shape)))
    sampled = elements.sample(coefficients, np.zeros(elements.pressure.N), (11, 5))
    expected = fields(*parameters((2, 1), (11, 5)))
    np.testing.assert_allclose(sampled[:2], expected, atol=1e-12)


@pytest.mark.parametrize("order", [2, 4])
def test_a_straight_channel_carries_poiseuille_flow(order):
    elements = channel_elements((2, 2), order)
    x, y = parameters((2.0, 1.0), elements.node_shape)
    geometry, start = (
        elements.interpolate(np.stack(pair)) for pair in ([x, y], [4 * y * (1 - y), 0 * y])
    )
    velocity, pressure = solve_channel(elements, geometry, 0.1, start)
    np.testing.assert_allclose(velocity, start, atol=1e-9)
    falling = elements.sample(velocity, pressure, (3, 2))[2]
    np.testing.assert_allclose(falling, [[1.6, 1.6], [0.8, 0.8], [0, 0]], atol=1e-9)
