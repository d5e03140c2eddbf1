import numpy as np
import pytest

from physicsnemo_flarepp.meshes.measures import cloud_areas
from physicsnemo_flarepp.visualization import triangulate_cloud


def disc_with_hole(n=40, hole=0.3, seed=0):
    rng = np.random.default_rng(seed)
    x = np.stack(np.meshgrid(np.linspace(-1, 1, n), np.linspace(-1, 1, n)), -1).reshape(-1, 2)
    x = x + 0.1 / n * rng.normal(size=x.shape)
    return x[np.linalg.norm(x, axis=1) > hole]


def test_void_stays_open():
    points = disc_with_hole()
    mesh = triangulate_cloud(points)
    np.testing.assert_allclose(mesh.points[:, :2], points)
    centres = mesh.cell_centers().points[:, :2]
    assert np.linalg.norm(centres, axis=1).min() > 0.25
    assert mesh.area == pytest.approx(4 - np.pi * 0.3**2, rel=0.03)


def test_figures_and_token_weights_see_the_same_body():
    rng = np.random.default_rng(0)
    radius, angle = np.sqrt(rng.uniform(0.3, 1, 300)), rng.uniform(0, 2 * np.pi, 300)
    ring = np.stack([radius * np.cos(angle), radius * np.sin(angle)], -1)
    assert triangulate_cloud(ring).area == pytest.approx(cloud_areas(ring).sum(), rel=1e-12)


def test_large_alpha_is_plain_delaunay():
    points = disc_with_hole()
    assert triangulate_cloud(points, alpha=1e9).area == pytest.approx(4, rel=0.02)


def test_scale_does_not_matter():
    points = disc_with_hole()
    assert triangulate_cloud(points).n_cells == triangulate_cloud(1000 * points + 7).n_cells


@pytest.mark.parametrize(
    ("points", "message"),
    [
        (np.zeros((2, 2)), "expected .N >= 3"),
        (np.zeros((5, 4)), r"shape \(5, 4\)"),
        (np.linspace(0, 1, 8)[:, None] * [1, 1], "on a line"),
        (np.random.default_rng(0).random((9, 3)), "do not lie in a plane"),
    ],
)
def test_unfit_points_are_refused(points, message):
    with pytest.raises(ValueError, match=message):
        triangulate_cloud(points)


def test_too_small_alpha_is_refused():
    with pytest.raises(ValueError, match="drops every face"):
        triangulate_cloud(disc_with_hole(), alpha=1e-6)


def test_graded_clouds_keep_their_faces():
    """Rings whose spacing grows a hundredfold, around a hole of six of its spacings."""
    radii = np.geomspace(0.01, 1.0, 30)
    angles = 2 * np.pi * np.arange(40) / 40
    turned = angles[None] + 0.5 * np.arange(30)[:, None] * angles[1]
    points = np.stack([radii[:, None] * np.cos(turned), radii[:, None] * np.sin(turned)], -1)
    mesh = triangulate_cloud(points.reshape(-1, 2))
    outline = 20 * np.sin(2 * np.pi / 40)  # area of a polygon of 40 corners
    assert mesh.area == pytest.approx(outline * (1 - 0.01**2), rel=1e-3)
    centres = np.linalg.norm(mesh.cell_centers().points, axis=1)
    assert centres.min() > 0.009
