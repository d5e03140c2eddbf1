import numpy as np
import pytest
import pyvista as pv

from physicsnemo_flarepp.meshes import polygon_mesh
from physicsnemo_flarepp.meshes.silhouettes import frontal_area

X = np.array([1.0, 0.0, 0.0])


@pytest.mark.slow
def test_silhouette_of_a_sphere_from_any_side():
    sphere = polygon_mesh(pv.Icosphere(radius=2.0, nsub=5, center=(9, 9, 9)), "sphere")
    for axis in (X, np.array([0.0, 0.0, -2.0]), np.array([1.0, 1.0, 1.0])):
        assert frontal_area(sphere, axis) == pytest.approx(4 * np.pi, rel=1e-3)


@pytest.mark.slow
def test_silhouette_counts_hidden_parts_once_and_holes_not_at_all():
    ring = pv.ParametricTorus(ringradius=2.0, crosssectionradius=0.5, u_res=200, v_res=100)
    mesh = polygon_mesh(ring.triangulate(), "ring")
    through = frontal_area(mesh, np.array([0.0, 0.0, 1.0]))
    assert through == pytest.approx(np.pi * (2.5**2 - 1.5**2), rel=2e-3)
    side = frontal_area(mesh, X)
    assert side == pytest.approx(4.0 + np.pi * 0.5**2, rel=2e-3)


def test_silhouette_takes_polygons():
    box = polygon_mesh(pv.Box((0, 1, 0, 2, 0, 3)).merge(pv.Box((4, 5, 1, 4, 0, 3))), "boxes")
    assert frontal_area(box, X) == pytest.approx(12.0, rel=1e-6)
