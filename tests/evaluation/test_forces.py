"""Forces against closed forms, and against the numbers that the solver of the cars wrote."""

import numpy as np
import pytest
import pyvista as pv
import torch

from physicsnemo_flarepp.builtin.sets.car_body import sample_shape
from physicsnemo_flarepp.builtin.sets.cars import solve_shape, write_run
from physicsnemo_flarepp.datapipes.readers.case_files import (
    read_reference_values,
    reference_values_beside,
)
from physicsnemo_flarepp.evaluation.forces import (
    ForceSettings,
    force_settings,
    force_surface,
    load_sums,
    surface_areas,
    surface_forces,
)
from physicsnemo_flarepp.meshes import geometry, polygon_mesh
from physicsnemo_flarepp.meshes.geometry import surface_tensors
from physicsnemo_flarepp.meshes.measures import frontal_area

X = np.array([1.0, 0.0, 0.0])


def settings(**changes):
    return ForceSettings(
        **{"pressure": "p", "shear": "tau", "shear_sign": 1, "speed": 2.0, **changes}
    )


def ellipsoid():
    return pv.Icosphere(nsub=4).scale((2.0, 1.0, 0.5))


def values_at(mesh, association, function):
    places = mesh.points if association == "point" else mesh.cell_centers().points
    return function(*places.astype(np.float64).T)


def forces(mesh, association, pressure, shear=None, area=1.0, **changes):
    chosen = settings(**changes)
    surface = surface_areas(polygon_mesh(mesh, "mesh"), association, chosen.orientation)
    return surface_forces(surface, pressure, shear, chosen, area)


@pytest.mark.parametrize("association", ["cell", "point"])
def test_uniform_pressure_on_a_closed_surface_gives_no_force(association):
    mesh = ellipsoid()
    pressure = values_at(mesh, association, lambda x, y, z: 7.0 + 0 * x)
    np.testing.assert_allclose(forces(mesh, association, pressure).total, 0, atol=1e-5)


@pytest.mark.parametrize("association", ["cell", "point"])
@pytest.mark.parametrize("axis, expected", [(0, "Cd"), (1, "Cs"), (2, "Cl")])
def test_linear_pressure_gives_buoyancy(association, axis, expected):
    mesh = ellipsoid()
    pressure = values_at(mesh, association, lambda *xyz: 3.0 * xyz[axis])
    # Gauss: the integral of -p n over the surface is minus the gradient of p times the volume.
    coefficient = -3.0 * mesh.volume / (0.5 * 2.0**2 * 4.0)
    found = forces(mesh, association, pressure, area=4.0).coefficients
    assert found.pop(expected) == pytest.approx(coefficient, rel=1e-5)
    np.testing.assert_allclose(list(found.values()), 0, atol=1e-5)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("association", ["cell", "point"])
def test_constant_shear_gives_its_value_times_the_area(association, sign):
    mesh = ellipsoid()
    n = mesh.n_points if association == "point" else mesh.n_cells
    shear = np.tile([0.1, 0.2, 0.3], (n, 1))
    found = forces(mesh, association, np.zeros(n), shear, shear_sign=sign, density=1.2)
    np.testing.assert_allclose(
        found.shear, sign * np.array([0.1, 0.2, 0.3]) * mesh.area / (0.6 * 4), rtol=1e-5
    )
    assert not found.pressure.any()


def test_axes_turn_the_coefficients():
    mesh = ellipsoid()
    pressure = values_at(mesh, "cell", lambda x, y, z: -x)
    turned = forces(mesh, "cell", pressure, drag_axis=(0, 0, 2), lift_axis=(-3, 0, 0))
    np.testing.assert_allclose(turned.total, [0, 0, -mesh.volume / 2], atol=1e-5)


def test_orientation_is_found_from_the_volume_and_can_be_given():
    mesh = ellipsoid().translate((50, -20, 3))
    inward = mesh.flip_faces()
    pressure = values_at(mesh, "cell", lambda x, y, z: z)
    expected = forces(mesh, "cell", pressure).total
    np.testing.assert_allclose(forces(inward, "cell", pressure).total, expected, atol=1e-9)
    told = forces(inward, "cell", pressure, orientation="outward").total
    np.testing.assert_allclose(told, -expected, atol=1e-9)


def test_an_open_surface_is_used_with_a_warning():
    bowl = ellipsoid().clip("x", origin=(1.5, 0, 0))
    surface = surface_areas(polygon_mesh(bowl, "bowl.stl"), "cell")
    assert len(surface.warnings) == 1 and "bowl.stl is open" in surface.warnings[0]
    assert not surface_areas(polygon_mesh(ellipsoid(), "whole"), "cell").warnings


def test_a_flipped_cell_is_reported():
    mesh = ellipsoid()
    faces = mesh.regular_faces.copy()
    faces[100] = faces[100, ::-1]
    flipped = pv.PolyData.from_regular_faces(mesh.points, faces)
    warnings = surface_areas(polygon_mesh(flipped, "flipped"), "cell").warnings
    assert any("at 3 edges neighbouring" in text for text in warnings)


def test_an_unknown_orientation_or_association_is_refused():
    mesh = polygon_mesh(ellipsoid(), "body")
    with pytest.raises(ValueError, match="orientation is 'Outward', expected one of"):
        surface_areas(mesh, "cell", "Outward")
    with pytest.raises(ValueError, match="association is 'cells', expected one of"):
        surface_areas(mesh, "cells")


def test_a_flat_sheet_needs_an_orientation():
    sheet = polygon_mesh(pv.Plane(), "sheet")
    with pytest.raises(ValueError, match="encloses no volume.*orientation='outward'"):
        surface_areas(sheet, "cell")
    vectors = surface_areas(sheet, "cell", "inward").vectors
    np.testing.assert_allclose(vectors.sum(0), [0, 0, -1], atol=1e-6)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"shear_sign": 0}, "shear_sign is 0"),
        ({"speed": 0.0}, "speed is 0.0"),
        ({"reference_area": -1.0}, "reference_area is -1.0"),
        ({"orientation": "up"}, "orientation is 'up'"),
        ({"lift_axis": (1, 0, 1)}, "must be orthogonal"),
    ],
)
def test_bad_settings_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        settings(**changes)


def test_values_of_a_sample_are_refused():
    with pytest.raises(ValueError, match=r"pressure has shape \(10,\), expected"):
        forces(ellipsoid(), "cell", np.zeros(10))


@pytest.mark.slow
def test_true_fields_of_a_car_give_the_forces_its_solver_wrote(tmp_path):
    folder = tmp_path / "run_3"
    write_run(folder, 3, solve_shape(sample_shape(np.random.default_rng(5))))
    source = folder / "boundary_3.vtp"
    car = pv.read(source)
    chosen = ForceSettings("pMeanTrim", "wallShearStressMeanTrim", shear_sign=1, speed=38.889)
    surface = surface_areas(polygon_mesh(car, source), "cell")
    assert not surface.warnings
    found = surface_forces(
        surface,
        car["pMeanTrim"],
        car["wallShearStressMeanTrim"],
        chosen,
        reference_values_beside(source)["aRef"],
    ).coefficients
    written = read_reference_values(folder / "force_mom_3.csv")
    assert found["Cd"] == pytest.approx(written["Cd"], abs=2e-6)
    assert found["Cl"] == pytest.approx(written["Cl"], abs=2e-6)
    assert found["Cs"] == pytest.approx(0, abs=2e-6)
    # The cars' aRef counts forward-facing cells; nothing of this body hides anything else.
    assert frontal_area(polygon_mesh(car, source), X) == pytest.approx(
        reference_values_beside(source)["aRef"], rel=1e-3
    )


def test_without_a_table_the_reference_is_the_silhouette(loaded, tmp_path):
    ball = polygon_mesh(pv.Icosphere(nsub=5), tmp_path / "ball.stl")
    surface = force_surface(ball, "cell", force_settings(loaded))
    assert surface.reference_area == pytest.approx(np.pi, rel=1e-3)
    assert "silhouette" in surface.area_source
    given = force_surface(ball, "cell", force_settings(loaded, {"reference_area": 3.0}))
    assert given.reference_area == 3.0


@pytest.mark.parametrize("association", ["cell", "point"])
@pytest.mark.parametrize("is_fixed", [True, False], ids=["fixed area", "own area"])
def test_coefficients_have_the_derivatives_of_finite_differences(association, is_fixed):
    """Forces and moments by the vertices, with the reference area held or differentiated."""
    body = pv.Icosphere(nsub=2).scale((2.0, 1.0, 0.5))
    # Off symmetry: where one part just hides another, the silhouette has a kink.
    body.points += 0.02 * np.random.default_rng(0).normal(size=body.points.shape)
    mesh = polygon_mesh(body, "ellipsoid")
    chosen, axis = settings(shear_sign=-1, drag_axis=(1.0, 0.2, 0), lift_axis=(0, 0, 1.0)), X
    torch.manual_seed(0)
    points = torch.tensor(mesh.points, dtype=torch.float64, requires_grad=True)
    n = mesh.n_cells if association == "cell" else len(points)
    pressure, shear = torch.randn(n).double(), torch.randn(n, 3).double()

    def coefficients(points):
        surface = surface_tensors(points, mesh.connectivity, mesh.offsets, association)
        known = (surface.vectors, surface.areas, pressure, shear, chosen)
        area = 3.0 if is_fixed else geometry.frontal_area(points, mesh, axis, lines=300)
        arms = surface.positions - torch.tensor([0.5, 0.0, 1.0])
        return torch.cat((*load_sums(*known), *load_sums(*known, arms))) / area

    found, cotangent = coefficients(points), torch.randn(12).double()
    total = found.detach().numpy()[:3] + found.detach().numpy()[3:6]
    areas = surface_areas(mesh, association, "outward")
    area = 3.0 if is_fixed else float(geometry.frontal_area(points.detach(), mesh, axis, lines=300))
    expected = surface_forces(areas, pressure.numpy(), shear.numpy(), chosen, area).total
    np.testing.assert_allclose(total, expected, rtol=1e-12)
    (gradient,) = torch.autograd.grad(found, points, cotangent)
    direction = torch.randn_like(points)
    ends = [coefficients((points + s * direction).detach()) @ cotangent for s in (1e-6, -1e-6)]
    slope = (ends[0] - ends[1]) / 2e-6
    torch.testing.assert_close((gradient * direction).sum(), slope, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("axis", range(3))
def test_moments_of_a_buoyant_body_are_those_of_its_centre(axis):
    """Linear pressure acts like a weight at the centre of the volume."""
    mesh = polygon_mesh(ellipsoid().translate((3.0, -1.0, 2.0)), "ellipsoid")
    surface = surface_tensors(torch.tensor(mesh.points).double(), mesh.connectivity, mesh.offsets)
    known = (surface.vectors, surface.areas, 3.0 * surface.positions[:, axis], None, settings())
    force, moment = load_sums(*known)[0], load_sums(*known, surface.positions)[0]
    expected = np.cross([3.0, -1.0, 2.0], force)
    np.testing.assert_allclose(moment, expected, rtol=0, atol=2e-2 * np.abs(expected).max())
