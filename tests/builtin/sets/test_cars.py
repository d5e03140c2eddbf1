"""The cars set: DrivAerML's layout, consistent fields, reproducible files."""

import csv
import json

import numpy as np
import pytest
import pyvista as pv

from physicsnemo_flarepp.builtin import generate
from physicsnemo_flarepp.builtin.sets import CaseId, case_seed
from physicsnemo_flarepp.builtin.sets.cars import SET, flat_plate_shear

pytestmark = pytest.mark.slow

FILES = {"boundary_{}.vtp", "drivaer_{}.stl", "force_mom_{}.csv", "geo_ref_{}.csv"}


@pytest.fixture(scope="module")
def cars(tmp_path_factory):
    root = tmp_path_factory.mktemp("cars")
    return generate("cars", n_train=1, n_test=1, root=root, workers=1, progress=False)


@pytest.fixture(scope="module")
def surface(cars):
    mesh = pv.read(cars / "run_1" / "boundary_1.vtp")
    mesh = mesh.compute_normals(
        point_normals=False, consistent_normals=False, auto_orient_normals=False
    )
    return mesh.compute_cell_sizes(length=False, volume=False)


def read_row(path):
    with open(path, newline="") as file:
        (row,) = csv.DictReader(file)
    return {name: float(value) for name, value in row.items()}


def test_the_layout_is_that_of_drivaerml(cars):
    assert json.loads((cars / "manifest.json").read_text()) == {
        "train": ["run_1"],
        "test": ["run_2"],
    }
    for number in (1, 2):
        names = {path.name for path in (cars / f"run_{number}").iterdir()}
        assert names == {name.format(number) for name in FILES}


def test_the_surface_carries_the_published_cell_fields(surface):
    assert surface.n_cells >= 3000 and surface.is_all_triangles and surface.n_open_edges == 0
    for name, shape in [("CpMeanTrim", ()), ("pMeanTrim", ()), ("wallShearStressMeanTrim", (3,))]:
        assert surface.cell_data[name].dtype == np.float32
        assert surface.cell_data[name].shape == (surface.n_cells, *shape)
    assert surface.points.dtype == np.float32


def test_pressure_is_kinematic_and_reaches_stagnation(surface):
    cp, p = surface["CpMeanTrim"], surface["pMeanTrim"]
    assert np.allclose(p, cp * 0.5 * 38.889**2, rtol=1e-6)
    assert 0.95 < cp.max() <= 1
    assert -3 < cp.min() < -0.8
    foremost = surface.cell_centers().points[cp.argmax(), 0]
    assert foremost < surface.bounds[0] + 0.1 or foremost > surface.bounds[1] - 0.1


def test_wall_shear_lies_in_the_surface_and_points_downstream(surface):
    shear = surface["wallShearStressMeanTrim"]
    across = np.einsum("nx,nx->n", shear, surface["Normals"])
    assert np.abs(across).max() < 1e-4 * np.linalg.norm(shear, axis=1).max()
    downstream = shear[:, 0] > 0
    assert surface["Area"][downstream].sum() > 0.95 * surface["Area"].sum()


def test_wall_shear_follows_from_the_pressure_by_the_plate_law(surface):
    """|tau| = c_f |u|^2 / 2, with |u| from Cp by Bernoulli and Re_x counted from the front."""
    speed = 38.889 * np.sqrt(1 - surface["CpMeanTrim"].astype(float))
    length = surface.cell_centers().points[:, 0] - surface.bounds[0] + 0.05
    friction = 0.0592 / (speed * length / 1.507e-5) ** 0.2
    expected = friction * speed**2 / 2
    got = np.linalg.norm(surface["wallShearStressMeanTrim"], axis=1)
    assert np.allclose(got, expected, rtol=2e-3, atol=1e-3)


def test_there_is_no_shear_at_rest():
    assert np.array_equal(flat_plate_shear(np.zeros((2, 3)), np.ones(2)), np.zeros((2, 3)))


def test_coefficients_are_the_integrals_of_the_fields(cars, surface):
    reference = read_row(cars / "run_1" / "geo_ref_1.csv")
    force = read_row(cars / "run_1" / "force_mom_1.csv")
    silhouette = surface.project_points_to_plane(origin=(0, 0, 0), normal=(1, 0, 0))
    area = surface["Area"]
    pressure = -(surface["CpMeanTrim"] * area) @ surface["Normals"] / reference["aRef"]
    friction = area @ surface["wallShearStressMeanTrim"] / (38.889**2 / 2) / reference["aRef"]
    assert force["Cd"] == pytest.approx(pressure[0] + friction[0], abs=1e-4)
    assert force["Cl"] == pytest.approx(pressure[2] + friction[2], abs=1e-4)
    # d'Alembert: potential flow has no pressure drag; what is left is friction.
    assert abs(pressure[0]) < 0.01 and 0.02 < friction[0] < 0.08
    assert reference["aRef"] == pytest.approx(silhouette.area / 2, rel=1e-3)
    assert len(reference) == 12


def test_fields_are_symmetric(surface):
    half = surface.n_cells // 2
    shear = surface["wallShearStressMeanTrim"]
    assert np.array_equal(surface["pMeanTrim"][:half], surface["pMeanTrim"][half:])
    assert np.array_equal(shear[:half] * np.float32([1, -1, 1]), shear[half:])


def test_the_stl_is_the_same_surface(cars, surface):
    stl = pv.read(cars / "run_1" / "drivaer_1.stl")
    assert stl.n_cells == surface.n_cells
    assert stl.volume == pytest.approx(surface.volume, rel=1e-5)


def test_cases_differ_and_equal_seeds_give_equal_files(cars, tmp_path):
    other = generate("cars", n_train=1, n_test=1, root=tmp_path, workers=2, progress=False)
    for path in sorted(cars.rglob("*.*")):
        assert path.read_bytes() == (other / path.relative_to(cars)).read_bytes(), path.name
    first, second = (read_row(cars / f"run_{n}" / f"geo_ref_{n}.csv") for n in (1, 2))
    assert all(first[name] != second[name] for name in first)
    assert SET.n_train == 40 and SET.n_test == 8
    first = CaseId("train", 0)
    assert case_seed(0, first) != case_seed(1, first)
