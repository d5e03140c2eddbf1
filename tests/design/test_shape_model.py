"""A run as a function of vertices: the numbers of predict, and their exact derivatives."""

import numpy as np
import pytest
import pyvista as pv
import torch

from physicsnemo_flarepp.design import make_lattice, open_shape
from physicsnemo_flarepp.evaluation import force_settings, load_run, predict_file
from physicsnemo_flarepp.evaluation.forces import field_forces, force_surface
from tests.design.conftest import write
from tests.evaluation import making

HELD = {"global_values": {"lRef": 4.0}, "progress": False}


@pytest.mark.parametrize("flip", [False, True])
def test_quantities_are_those_of_predict(run, body, flip):
    settings = force_settings(run)
    shape = open_shape(run, body, settings=settings, flip=flip, **HELD)
    predicted = predict_file(run, body, global_values={"lRef": 4.0}, flip=flip, progress=False)
    surface = force_surface(predicted.polygons, "cell", settings)
    forces = field_forces(surface, predicted.values, run.channels, settings)
    found = shape.values(shape.points)
    assert [found[n] for n in ("drag", "side", "lift")] == pytest.approx(forces.total, rel=1e-6)
    areas = surface.areas
    average = areas @ predicted.values[:, 0] / areas.sum()
    assert found["pMeanTrim"] == pytest.approx(average, rel=1e-6)
    assert shape.gradient(shape.points, {"drag": 1.0})[0] == pytest.approx(found, rel=1e-5)


@pytest.mark.parametrize("moving", [False, True])
@pytest.mark.parametrize("quantity", ["lift", "wallShearStressMeanTrim_x"])
def test_gradients_are_those_of_differences(run, body, quantity, moving, monkeypatch):
    monkeypatch.setattr("physicsnemo_flarepp.design.shape_model._CHUNK", 77)
    box = (-1.0, 0.5, -2, 2, -2, 2)
    settings = force_settings(run)
    shape = open_shape(run, body, settings=settings, region=box, moving_area=moving, **HELD)
    assert 0 < shape.inside.sum() < len(shape.inside)
    shape = shape.in_double()
    points = shape.points
    lattice = make_lattice(points.numpy(), (3, 3, 3), symmetric=False)
    torch.manual_seed(1)
    direction = lattice.deform(points, torch.randn(3, 3, 3, 3).double()) - points
    points = points + 0.01 * direction  # off the kinks of a symmetric silhouette
    weights = {quantity: 2.0, "drag": -1.0}
    slope = float((shape.gradient(points, weights)[1] * direction).sum())
    ends = [shape.values(points + s * 1e-5 * direction) for s in (1, -1)]
    expected = sum(w * (ends[0][n] - ends[1][n]) / 2e-5 for n, w in weights.items())
    assert slope == pytest.approx(expected, rel=1e-6)


def test_fields_at_points_are_differentiated_too(tmp_path, body):
    surfaces = making.write_surfaces(tmp_path / "set")
    for path in surfaces.glob("*/boundary_*.vtp"):
        pv.read(path).cell_data_to_point_data().save(path)
    reader = {"_target_": "OwnReader", "files": "{case}/boundary_*.vtp"}
    data = making.surface_data(surfaces, reader=reader, fields=["pMeanTrim"], weights="measure")
    data |= {"features": ["normals"], "association": "points"}
    run = load_run(making.write_run(tmp_path / "run", data), device="cpu")
    shape = open_shape(run, body, progress=False).in_double()
    points, direction = shape.points, torch.randn(len(shape.points), 3).double()
    slope = float((shape.gradient(points, {"pMeanTrim": 1.0})[1] * direction).sum())
    ends = [shape.values(points + s * 1e-6 * direction)["pMeanTrim"] for s in (1, -1)]
    assert slope == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda mesh: mesh.extract_cells(range(300)).extract_surface(algorithm=None), "is open: "),
        (lambda mesh: _flipped(mesh, 5), "3 edges have neighbours that face opposite sides"),
        (lambda mesh: _collapsed(mesh), "cells have no area"),
    ],
)
def test_bad_surfaces_are_refused(run, tmp_path, change, message):
    mesh = change(making.body(0))
    mesh.clear_data()
    mesh.save(tmp_path / "bad.vtp")
    with pytest.raises(ValueError, match=message):
        open_shape(run, tmp_path / "bad.vtp", **HELD)
    if "open" in message:
        shape = open_shape(run, tmp_path / "bad.vtp", allow_open=True, **HELD)
        assert any("is open" in text for text in shape.warnings)


def _flipped(mesh, cell):
    faces = mesh.regular_faces.copy()
    faces[cell] = faces[cell][::-1]
    return pv.PolyData.from_regular_faces(mesh.points, faces)


def _collapsed(mesh):
    faces = mesh.regular_faces
    points = mesh.points.copy()
    points[faces[0, 1]] = points[faces[0, 0]]
    return pv.PolyData.from_regular_faces(points, faces)


def test_stored_normals_that_are_not_the_cells_are_refused(run, tmp_path):
    mesh = making.body(0)
    mesh.cell_data["normals"] = np.tile([1.0, 0, 0], (mesh.n_cells, 1))
    mesh.save(tmp_path / "own.vtp")
    with pytest.raises(ValueError, match="features of .*own.vtp are not those of its cells"):
        open_shape(run, tmp_path / "own.vtp", **HELD)


@pytest.mark.parametrize(
    ("features", "weights", "message"),
    [
        (["areas"], "measure", r"has no normals \(data.features=\[normals\]\)"),
        (["normals"], "none", r"has no weights of its tokens \(data.weights=measure\)"),
    ],
)
def test_runs_that_do_not_see_the_shape_are_refused(tmp_path, body, features, weights, message):
    run = load_run(write(tmp_path, features, weights), device="cpu")
    with pytest.raises(ValueError, match=message):
        open_shape(run, body, **HELD)


def test_an_empty_box_is_told(run, body):
    with pytest.raises(ValueError, match="holds no cell of .*body.stl, which spans"):
        open_shape(run, body, region=(9, 10, 0, 1, 0, 1), **HELD)
