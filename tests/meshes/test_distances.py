import numpy as np
import pytest
import pyvista as pv

from physicsnemo_flarepp.meshes import PolygonMesh, polygon_mesh
from physicsnemo_flarepp.meshes.distances import distance_to_body


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
