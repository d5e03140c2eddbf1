"""Sensitivities per area, along lattices and parameters, and what the command writes."""

from dataclasses import replace

import numpy as np
import pytest
import pyvista as pv
import torch

from physicsnemo_flarepp.builtin.sets import car_body
from physicsnemo_flarepp.builtin.sets.cars import write_row
from physicsnemo_flarepp.design import (
    car_directions,
    check_gradient,
    largest_difference,
    lattice_rows,
    make_lattice,
    open_shape,
    shape_sensitivity,
)
from physicsnemo_flarepp.design.sensitivity import normal_part
from physicsnemo_flarepp.evaluation import force_settings
from physicsnemo_flarepp.meshes import polygon_mesh
from tests.commands.calling import verb
from tests.design.test_shape_model import HELD


@pytest.fixture(scope="module")
def shape(run, body):
    return open_shape(run, body, settings=force_settings(run), **HELD)


@pytest.fixture(scope="module")
def found(shape):
    return shape_sensitivity(shape, "lift")


def test_derivatives_are_those_of_central_differences(shape, found):
    pairs = check_gradient(shape, found, directions=2)
    assert largest_difference(pairs) < 1e-4
    wrong = replace(found, vectors=1.01 * found.vectors)
    assert largest_difference(check_gradient(shape, wrong, directions=2)) > 5e-3


def test_control_points_have_the_derivatives_of_their_deformations(shape, found):
    lattice = make_lattice(shape.mesh.points, (3, 2, 2), symmetric=False)
    rows = lattice_rows(shape, found, lattice)
    assert len(rows) == 13
    control = torch.zeros(3, 2, 2, 3).double()
    control[2, 1, 0, 2] = 1.0
    moved = (lattice.deform(shape.points, control) - shape.points).numpy()
    row = next(row for row in rows if row[:3] == [2, 1, 0])
    assert row[8] == pytest.approx((moved * found.vectors).sum())
    assert row[3:6] == pytest.approx(lattice.positions[2, 1, 0].tolist())


def test_the_map_per_area_is_that_of_a_ball_on_any_mesh(shape):
    """The volume grows by one per area and displacement, whatever the cells are."""
    for nsub, smoothing in ((2, 0.0), (2, 0.3), (3, 0.3)):
        mesh = polygon_mesh(pv.Icosphere(nsub=nsub), "ball")
        points = torch.tensor(np.asarray(mesh.points, float), requires_grad=True)
        a, b, c = points[torch.tensor(mesh.connectivity).reshape(-1, 3)].unbind(1)
        (torch.linalg.cross(b, c) * a).sum().div(6).backward()
        ball = replace(shape, mesh=mesh)
        assert normal_part(ball, points.grad.numpy(), smoothing) == pytest.approx(1.0, rel=0.06)
        mean = normal_part(ball, points.grad.numpy(), smoothing) @ mesh.vertex_areas[1]
        assert mean == pytest.approx(mesh.vertex_areas[1].sum(), rel=0.02)


def test_smoothing_keeps_the_integral(shape, found):
    areas = shape.mesh.vertex_areas[1]
    totals = [normal_part(shape, found.vectors, length) @ areas for length in (0.0, 0.2)]
    assert totals[1] == pytest.approx(totals[0], rel=1e-6)


def test_built_in_cars_have_their_parameters(run, tmp_path, shape):
    car = car_body.CarShape()
    points, faces = car_body.whole_surface(*car_body.half_surface(car))
    pv.PolyData.from_regular_faces(points.astype(np.float32), faces).save(tmp_path / "car.stl")
    names = list(car_body.RANGES)
    write_row(tmp_path / "geo_ref_1.csv", names, [getattr(car, name) for name in names])
    opened = open_shape(run, tmp_path / "car.stl", settings=force_settings(run), **HELD)
    directions = car_directions(opened)
    assert list(directions) == names
    # Raising the ground clearance moves the underside up, by one where the car is lowest.
    lowest = opened.mesh.points[:, 2].argmin()
    assert directions["ground_clearance"][lowest] == pytest.approx([0, 0, 1], abs=1e-3)
    wider = car_body.whole_surface(*car_body.half_surface(replace(car, width=1.85)))[0]
    assert np.ptp(wider[:, 1]) - np.ptp(points[:, 1]) == pytest.approx(
        0.01 * np.ptp(directions["width"][:, 1]), rel=0.02
    )
    assert car_directions(shape) == {}


def test_an_unknown_quantity_is_told(run, body, shape):
    with pytest.raises(ValueError, match="cannot give 'mach'; choose one of drag, side, lift, pM"):
        shape_sensitivity(shape, "mach")
    bare = open_shape(run, body, **HELD)
    with pytest.raises(ValueError, match="lift needs the pressure"):
        shape_sensitivity(bare, "lift")


@pytest.mark.slow
def test_the_command_writes_map_table_and_figure(directory, body, tmp_path, capsys):
    output = tmp_path / "new" / "map.vtp"
    arguments = [str(directory), str(body), "--of", "lift", "--check", "--global", "lRef=4"]
    options = ["--views", "side", "--lattice", "2,2,2", "--output", str(output)]
    written = verb("sensitivity")([*arguments, *options])
    assert [path.name for path in written] == ["map.vtp", "map.csv", "map.png"]
    mesh, told = pv.read(output), capsys.readouterr().out
    assert mesh.point_data["d_lift"].shape == (mesh.n_points, 3)
    assert mesh.point_data["d_lift_per_area"].shape == (mesh.n_points,)
    assert "worst difference" in told and "are held" in told
    assert len(output.with_suffix(".csv").read_text().splitlines()) == 9
