"""Areas, silhouettes and distances against closed forms, finite elements and VTK."""

import numpy as np
import pytest
import pyvista as pv

from physicsnemo_flarepp.builtin.sets.elasticity import N_NODES, random_radius
from physicsnemo_flarepp.builtin.solvers.triangulate import triangulate_cell
from physicsnemo_flarepp.meshes import polygon_mesh
from physicsnemo_flarepp.meshes.measures import (
    clashing_edges,
    cloud_areas,
    distance_to_body,
    facing,
    frontal_area,
    grid_areas,
    open_edges,
)
from physicsnemo_flarepp.meshes.polygons import PolygonMesh

X = np.array([1.0, 0.0, 0.0])


def grid_points(x, y):
    return np.stack([part.reshape(-1) for part in np.meshgrid(x, y, indexing="ij")], -1)


def spans(x):
    """Half of the intervals on both sides of each point."""
    steps = np.diff(x)
    return 0.5 * (np.append(steps, 0) + np.append(0, steps))


def test_a_graded_grid_has_the_products_of_its_spans():
    x = np.geomspace(1, 30, 17)
    y = np.sort(np.random.default_rng(0).uniform(-1, 1, 9))
    areas = grid_areas(grid_points(x, y), (17, 9))
    np.testing.assert_allclose(areas, np.outer(spans(x), spans(y)).reshape(-1), rtol=1e-12)


def test_a_polar_grid_integrates_over_its_ring():
    radius, angle = np.linspace(1, 2, 60) ** 2, np.linspace(0, 2 * np.pi, 241)
    polar = grid_points(radius, angle)
    points = polar[:, :1] * np.stack([np.cos(polar[:, 1]), np.sin(polar[:, 1])], -1)
    areas = grid_areas(points, (60, 241))
    assert areas.sum() == pytest.approx(np.pi * (16 - 1), rel=1e-3)
    integral = (areas * points[:, 0] ** 2).sum()
    assert integral == pytest.approx(np.pi * (4**4 - 1) / 4, rel=1e-3)


@pytest.mark.parametrize("shape", [(3, 5), (15,)])
def test_a_grid_of_another_shape_is_an_error(shape):
    with pytest.raises(ValueError, match="got .*16 points"):
        grid_areas(np.zeros((16, 2)), shape)


def test_cells_and_points_of_a_sphere_add_up_to_its_area():
    mesh = polygon_mesh(pv.Icosphere(radius=2.0, nsub=5), "sphere")
    cells = np.linalg.norm(mesh.cell_geometry()[1], axis=1)
    for areas in (cells, mesh.vertex_areas[1]):
        assert areas.sum() == pytest.approx(16 * np.pi, rel=1e-3)
    height = mesh.points[:, 2] ** 2
    assert (mesh.vertex_areas[1] * height).sum() == pytest.approx(64 * np.pi / 3, rel=2e-3)


def test_a_cloud_of_mesh_nodes_has_the_lumped_masses_of_the_solver():
    same = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        mesh = triangulate_cell(random_radius(rng), N_NODES, rng)
        corners = mesh.nodes[mesh.triangles]
        (ax, ay), (bx, by) = ((corners[:, k] - corners[:, 0]).T for k in (1, 2))
        shares = np.repeat(np.abs(ax * by - ay * bx) / 6, 3)
        masses = np.bincount(mesh.triangles.reshape(-1), shares, N_NODES)
        areas = cloud_areas(mesh.nodes.astype(np.float32))
        assert areas.sum() == pytest.approx(masses.sum(), rel=1e-5), "the void has no area"
        same.append(np.isclose(areas, masses, rtol=1e-3).mean())
    assert np.mean(same) > 0.99, "up to diagonals of squares"


def test_a_denser_part_of_a_cloud_has_smaller_areas():
    rng = np.random.default_rng(0)
    points = np.concatenate([rng.random((400, 2)), [1, 0] + rng.random((6400, 2))])
    areas = cloud_areas(points)
    inside = (np.abs(points - [1, 0.5]) < [0.9, 0.4]).all(axis=1)
    coarse, fine = areas[:400][inside[:400]], areas[400:][inside[400:]]
    assert coarse.mean() / fine.mean() == pytest.approx(16, rel=0.2)


@pytest.mark.parametrize(
    "points, message",
    [
        (np.ones((5, 3)), "has no areas"),
        (np.array([[0, 0], [1, 0], [0, np.nan]]), "point 2 is"),
        (np.arange(10.0)[:, None].repeat(2, 1), "on a line"),
        (np.zeros((2, 2)), "too few"),
    ],
)
def test_clouds_without_areas_are_errors(points, message):
    with pytest.raises(ValueError, match=message):
        cloud_areas(points)


@pytest.mark.slow
def test_silhouette_of_a_sphere_from_any_side():
    sphere = polygon_mesh(pv.Icosphere(radius=2.0, nsub=5, center=(9, 9, 9)), "sphere")
    for axis in (X, np.array([0.0, 0.0, -2.0]), np.array([1.0, 1.0, 1.0])):
        assert frontal_area(sphere, axis, lines=800) == pytest.approx(4 * np.pi, rel=1e-3)


@pytest.mark.slow
def test_silhouette_counts_hidden_parts_once_and_holes_not_at_all():
    ring = pv.ParametricTorus(ringradius=2.0, crosssectionradius=0.5, u_res=200, v_res=100)
    mesh = polygon_mesh(ring.triangulate(), "ring")
    through = frontal_area(mesh, np.array([0.0, 0.0, 1.0]), lines=800)
    assert through == pytest.approx(np.pi * (2.5**2 - 1.5**2), rel=2e-3)
    side = frontal_area(mesh, X, lines=800)
    assert side == pytest.approx(4.0 + np.pi * 0.5**2, rel=2e-3)


def test_silhouette_takes_polygons():
    box = polygon_mesh(pv.Box((0, 1, 0, 2, 0, 3)).merge(pv.Box((4, 5, 1, 4, 0, 3))), "boxes")
    assert frontal_area(box, X) == pytest.approx(12.0, rel=1e-6)


@pytest.fixture(scope="module")
def body():
    return pv.Icosphere(nsub=3).scale((1.0, 0.6, 0.4))


@pytest.fixture(scope="module")
def points():
    return np.random.default_rng(0).uniform(-1.5, 1.5, (500, 3))


def test_distances_are_those_of_vtk(body, points):
    distance, direction = distance_to_body(points, polygon_mesh(body, "body"))
    expected = pv.PolyData(points).compute_implicit_distance(body)["implicit_distance"]
    np.testing.assert_allclose(distance, expected, atol=2e-6)
    assert (distance < 0).any() and (distance > 0).any()
    np.testing.assert_allclose(np.linalg.norm(direction, axis=1), 1, atol=1e-5)
    reached = pv.PolyData(points + np.abs(distance)[:, None] * direction)
    left = reached.compute_implicit_distance(body)["implicit_distance"]
    np.testing.assert_allclose(left, 0, atol=5e-6)


def test_a_body_turned_inside_out_has_the_same_inside(body, points):
    distance = distance_to_body(points, polygon_mesh(body, "body"))[0]
    flipped = distance_to_body(points, polygon_mesh(body.flip_faces(), "flipped"))[0]
    np.testing.assert_allclose(flipped, distance, atol=1e-6)


def test_polygons_are_measured_like_their_triangles(points):
    cube = pv.Cube(x_length=2.0).clean()
    faces = distance_to_body(points, polygon_mesh(cube, "quads"))
    triangles = distance_to_body(points, polygon_mesh(cube.triangulate(), "triangles"))
    np.testing.assert_allclose(faces[0], triangles[0], atol=1e-6)


def test_a_point_on_the_body_has_no_direction(body):
    distance, direction = distance_to_body(np.array([body.points[0]]), polygon_mesh(body, "body"))
    assert abs(distance[0]) < 1e-6 and np.linalg.norm(direction) < 1.0001


def test_a_body_without_faces_is_named(points):
    empty = PolygonMesh("points.stl", np.eye(3), np.zeros(0, int), np.zeros(1, int), {})
    with pytest.raises(ValueError, match="points.stl has no faces"):
        distance_to_body(points, empty)


def test_a_surface_faces_out_in_or_neither():
    axes = np.concatenate([np.eye(3), -np.eye(3)])  # centres and vectors of the faces of a cube
    assert facing(axes, axes) == "outward" and facing(axes, -axes) == "inward"
    assert facing(axes[:1], axes[:1]) is None


def test_open_and_clashing_edges_are_counted():
    corners = np.array([[0.0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0]])
    for second, clashing in (([0, 2, 3], 0), ([0, 3, 2], 1)):
        cells = np.array([0, 1, 2, *second])
        square = PolygonMesh("square", corners, cells, np.arange(0, 7, 3))
        assert clashing_edges(square) == clashing
        assert open_edges(square) == 4 + 2 * clashing
