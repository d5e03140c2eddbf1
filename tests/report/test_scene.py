"""What the view is given: the values of the mesh, whatever kind it is."""

import base64
import zlib

import numpy as np
import pytest
import pyvista as pv

from physicsnemo_flarepp.report import Layer, make_scene, scene

pytestmark = pytest.mark.slow
LIMITS = (-1.0, 1.0)


def unpack(text, kind):
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), kind)


def drawn(made, part=0):
    """Corners (n, 3) and values (n,) of a part, as the browser looks them up."""
    points = unpack(made["points"], "<f4").reshape(-1, 3)
    corners = unpack(made["corners"], "<u4")
    values = unpack(made["fields"][0]["quantities"][0]["values"], "<f4")
    rows = np.arange(len(corners)) // 3 if made["per"] == "cell" else corners
    chosen = slice(made["parts"][part]["start"], None)
    chosen = slice(chosen.start, chosen.start + made["parts"][part]["count"])
    return points[corners[chosen]], values[rows[chosen]]


def make(mesh, association, values):
    return make_scene("mesh", mesh, association, {"x": [Layer("value", values, LIMITS)]})


def test_polygons_of_any_size_keep_their_values():
    points = np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0], [2, 0, 1], [2, 1, 1], [3, 0, 2]])
    mesh = pv.PolyData(points.astype(float), [4, 0, 1, 2, 3, 5, 1, 4, 6, 5, 2])
    places, values = drawn(make(mesh, "cell", np.array([0.25, 0.75])))
    assert len(places) == 15
    for corners, triple in zip(places.reshape(-1, 3, 3), values.reshape(-1, 3), strict=True):
        assert (triple == (0.25 if corners[:, 2].max() == 0 else 0.75)).all()
    places, values = drawn(make(mesh, "point", points[:, 0].astype(float)))
    np.testing.assert_array_equal(places[:, 0], values)


def test_a_large_surface_is_decimated_and_says_so(monkeypatch):
    mesh = pv.Icosphere(nsub=5)  # 20,480 triangles
    whole = make(mesh, "cell", mesh.cell_centers().points[:, 0])
    assert whole["notes"] == [] and whole["parts"][0]["count"] == 3 * mesh.n_cells
    monkeypatch.setattr(scene, "_BYTES", 3000 * 26)
    small = make(mesh, "cell", mesh.cell_centers().points[:, 0])
    places, values = drawn(small)
    assert 1000 < len(places) / 3 <= 3000
    assert f"{len(places) // 3:,} of 20,480 triangles" in small["notes"][0]
    centres = places.reshape(-1, 3, 3).mean(axis=1)
    assert np.abs(values.reshape(-1, 3)[:, 0] - centres[:, 0]).max() < 0.03
    assert np.linalg.norm(centres, axis=1).min() > 0.45  # the radius is 0.5


def test_volumes_are_cut_across_each_axis():
    box = pv.ImageData(dimensions=(6, 7, 8)).cast_to_unstructured_grid()
    for association, places in (("point", box.points), ("cell", box.cell_centers().points)):
        made = make(box, association, places[:, 0].astype(float))
        names = [part["name"] for part in made["parts"]]
        assert len(names) == 27 and names[made["first"]].startswith("y = ")
        for part, name in enumerate(names):
            corners, values = drawn(made, part)
            axis, _, place = name.partition(" = ")
            assert np.abs(corners[:, "xyz".index(axis)] - float(place)).max() < 0.006
            assert np.abs(values - corners[:, 0]).max() < (1e-5 if association == "point" else 1.01)


def test_clouds_are_points_whole_and_in_slabs():
    cloud = pv.PolyData(np.random.default_rng(0).uniform(size=(200, 3)))
    made = make(cloud, "point", cloud.points[:, 0].astype(float))
    assert made["corners_each"] == 1 and made["parts"][0]["count"] == 200
    for part in (0, 3, 27):
        places, values = drawn(made, part)
        np.testing.assert_array_equal(places[:, 0], values)
    assert sum(part["count"] for part in made["parts"][1:10]) == 200
