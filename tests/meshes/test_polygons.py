import numpy as np
import pytest
import pyvista as pv

from physicsnemo_flarepp.meshes import polygon_mesh
from physicsnemo_flarepp.meshes.polygons import polygon_geometry, select_polygons, unit_vectors


def test_mixed_polygons_match_vtk():
    quads = pv.Plane(i_resolution=3, j_resolution=2).rotate_x(30).translate((100, 50, 3))
    triangles = pv.Sphere(theta_resolution=6, phi_resolution=5)
    mesh = quads.append_polydata(triangles)
    faces = mesh.irregular_faces
    connectivity = np.concatenate(faces)
    offsets = np.concatenate([[0], np.cumsum([len(face) for face in faces])])
    centres, vectors = polygon_geometry(mesh.points, connectivity, offsets)
    np.testing.assert_allclose(centres, mesh.cell_centers().points, atol=1e-5)
    sizes = mesh.compute_cell_sizes(length=False, volume=False)["Area"]
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), sizes, rtol=1e-4)
    normals = mesh.face_normals
    np.testing.assert_allclose(vectors / sizes[:, None], normals, atol=1e-3)


def test_selected_rows_equal_the_rows_of_the_whole():
    faces = [np.array(face) for face in ([0, 1, 2], [2, 3, 4, 5], [5, 1, 0], [4, 3, 2, 1, 0])]
    connectivity = np.concatenate(faces)
    offsets = np.array([0, 3, 7, 10, 15])
    for rows in (slice(1, 3), np.array([0, 3]), slice(2, 2)):
        chosen, bounds = select_polygons(connectivity, offsets, rows)
        expected = [faces[i] for i in np.arange(4)[rows]]
        assert len(bounds) == len(expected) + 1
        for k, face in enumerate(expected):
            assert chosen[bounds[k] : bounds[k + 1]].tolist() == face.tolist()


def test_a_mesh_gives_the_geometry_of_chosen_cells_and_of_all_points():
    sphere = pv.Icosphere(nsub=3)
    mesh = polygon_mesh(sphere, "sphere")
    rows = np.array([5, 2, 900])
    centres, vectors = mesh.cell_geometry(rows)
    np.testing.assert_allclose(centres, sphere.cell_centers().points[rows], atol=1e-6)
    np.testing.assert_allclose(unit_vectors(vectors), sphere.face_normals[rows], atol=1e-5)
    normals, areas = mesh.vertex_areas
    assert areas.sum() == pytest.approx(sphere.area)
    assert (unit_vectors(normals) * sphere.points).sum(axis=1).min() > 0.5 * 0.99  # radius 1/2
