"""The panel method against the sphere's exact solution, its symmetries and direct integration."""

import numpy as np
import pytest
import pyvista as pv

from physicsnemo_flarepp.builtin.sets.car_body import (
    lattice_quads,
    split_quads,
    whole_surface,
)
from physicsnemo_flarepp.builtin.solvers.panel_method import (
    Panels,
    panel_velocity,
    solve_flow,
)


def icosphere(subdivisions, drift=0.0):
    """Unit sphere of triangles; ``drift`` crowds its nodes towards the front or the back."""
    mesh = pv.Icosphere(radius=1, nsub=subdivisions)
    points = np.asarray(mesh.points, dtype=float) + [drift, 0, 0]
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    return Panels(points[mesh.regular_faces])


def half_sphere(intervals, centre=(0, 0, 0)):
    """Nodes and triangles of the half y >= 0 of a unit sphere, a cube blown up."""
    axis = np.tan(np.linspace(-np.pi / 4, np.pi / 4, 2 * intervals + 1))
    lattice = np.stack(np.meshgrid(axis, axis[intervals:], axis, indexing="ij"), axis=-1)
    outer = np.abs(lattice).max(axis=-1) > 1 - 1e-12
    ids = np.full(outer.shape, -1)
    ids[outer] = np.arange(outer.sum())
    points = lattice[outer] / np.linalg.norm(lattice[outer], axis=1, keepdims=True)
    points[np.abs(points) < 1e-12] = 0
    return points + centre, split_quads(points, lattice_quads(ids))


def sphere_error(flow):
    """Largest error of Cp over all faces, in units of the dynamic pressure."""
    x = flow.panels.centroids
    cos = x[:, 0] / np.linalg.norm(x, axis=1)
    return np.abs(flow.pressure_coefficient - (1 - 9 / 4 * (1 - cos**2))).max()


def drag(flow, reference_area):
    return -flow.pressure_coefficient @ flow.panels.area_vectors[:, 0] / reference_area


def test_the_velocity_of_a_panel_equals_its_integral():
    rng = np.random.default_rng(0)
    corners = rng.normal(size=(20, 3, 3))
    points = rng.normal(size=(20, 3)) * 2
    nodes, weights = np.polynomial.legendre.leggauss(60)
    nodes, weights = (nodes + 1) / 2, weights / 2
    # The square [0, 1]^2 collapsed onto the triangle.
    u, v = np.meshgrid(nodes, nodes, indexing="ij")
    jacobian = (u * weights[:, None] * weights).ravel()
    barycentric = np.stack([1 - u, u * (1 - v), u * v]).reshape(3, -1)
    for point, triangle in zip(points, corners, strict=True):
        arm = point - barycentric.T @ triangle
        doubled_area = np.linalg.norm(
            np.cross(triangle[1] - triangle[0], triangle[2] - triangle[0])
        )
        kernel = arm / np.linalg.norm(arm, axis=1, keepdims=True) ** 3 / (4 * np.pi)
        expected = doubled_area * jacobian @ kernel
        got = panel_velocity(point[None], triangle[None])[0]
        assert np.allclose(got, expected, rtol=1e-3, atol=1e-5)


def test_sphere_pressure_is_within_two_percent_on_every_face():
    coarse, fine = (sphere_error(solve_flow(icosphere(n))) for n in (2, 3))
    assert fine < 0.02
    assert fine < coarse / 1.7


def test_a_sphere_of_uneven_panels_has_almost_no_drag():
    """Even panels would cancel fore and aft whatever the method gives."""
    flow = solve_flow(icosphere(3, drift=0.3))
    assert abs(drag(flow, np.pi)) < 0.004
    assert sphere_error(flow) < 0.025


def test_distant_panels_may_act_as_points():
    panels = icosphere(2, drift=0.3)
    exact = solve_flow(panels, near=np.inf).pressure_coefficient
    assert np.abs(solve_flow(panels).pressure_coefficient - exact).max() < 2e-3


def test_half_a_body_with_its_mirror_image_is_the_whole_body():
    points, faces = half_sphere(4)
    whole_points, whole_faces = whole_surface(points, faces)
    half = solve_flow(Panels(points[faces]), symmetry_y=True)
    whole = solve_flow(Panels(whole_points[whole_faces]))
    assert np.allclose(half.surface_velocity, whole.surface_velocity[: len(faces)], atol=1e-12)


def test_the_ground_is_a_second_body_below_and_no_flow_crosses_it():
    points, faces = half_sphere(4, centre=(0, 0, 1.3))
    above = Panels(points[faces])
    flow = solve_flow(above, symmetry_y=True, ground=0.1)
    below = Panels((above.corners * [1, 1, -1] + [0, 0, 0.2])[:, ::-1])
    both = solve_flow(Panels(np.concatenate([above.corners, below.corners])), symmetry_y=True)
    n = len(faces)
    assert np.allclose(flow.surface_velocity, both.surface_velocity[:n], atol=1e-12)

    x, y = np.meshgrid(np.linspace(-3, 3, 13), np.linspace(-3, 3, 13))
    plane = np.column_stack([x.ravel(), y.ravel(), np.full(x.size, 0.1)])
    velocity = flow.velocity(plane)
    assert np.abs(velocity[:, 2]).max() < 1e-12
    free = solve_flow(above, symmetry_y=True).velocity(plane)
    assert np.abs(free[:, 2]).max() > 0.1
    # The gap of 0.2 lets the flow pass faster than a sphere alone would make it.
    gap = np.flatnonzero((x.ravel() == 0) & (y.ravel() == 0))[0]
    assert velocity[gap, 0] > free[gap, 0] > 1.2


@pytest.mark.parametrize("distance", [1.5, 3.0])
def test_the_field_around_a_sphere_is_that_of_a_doublet(distance):
    flow = solve_flow(icosphere(3))
    points = distance * np.array([[0, 1, 0], [1, 0, 0], [0.6, 0, 0.8]])
    r = np.linalg.norm(points, axis=1, keepdims=True)
    doublet = [1, 0, 0] + ([1, 0, 0] - 3 * points[:, :1] * points / r**2) / (2 * r**3)
    assert np.allclose(flow.velocity(points), doublet, atol=0.01)
