"""Arrays by their names in files, meshes that return with them, and failed writes."""

import resource

import numpy as np
import pytest
import pyvista as pv

from physicsnemo_flarepp.meshes import mesh_suffix, save_mesh
from physicsnemo_flarepp.meshes.export import add_arrays, export_mesh, prediction_arrays

WIDTHS = {"p": 1, "shear": 3}


def values(seed=0, n=20):
    return np.random.default_rng(seed).random((n, 4))


def grid():
    x, y = np.meshgrid(np.linspace(0, 2, 11), np.linspace(0, 1, 7))
    return pv.StructuredGrid(x, y, 0 * x)


def test_one_prediction_has_plain_names():
    target, prediction = values(0), values(1)
    arrays = prediction_arrays(WIDTHS, {"any": prediction}, target)
    assert list(arrays) == [f"{f}{end}" for end in ("", "_predicted", "_error") for f in WIDTHS]
    np.testing.assert_array_equal(arrays["p"], target[:, 0])
    np.testing.assert_array_equal(arrays["shear_predicted"], prediction[:, 1:])
    np.testing.assert_array_equal(arrays["shear_error"], prediction[:, 1:] - target[:, 1:])
    assert list(prediction_arrays(WIDTHS, {"any": prediction})) == [
        "p_predicted",
        "shear_predicted",
    ]


def test_several_predictions_have_the_names_of_their_runs():
    arrays = prediction_arrays(WIDTHS, {"a": values(1), "FLARE++": values(2)}, values(0))
    assert {"p", "p_predicted_a", "p_error_a", "shear_predicted_FLARE++"} <= set(arrays)
    np.testing.assert_array_equal(arrays["p_error_FLARE++"], (values(2) - values(0))[:, 0])


def test_values_must_fit_the_fields():
    with pytest.raises(ValueError, match=r"shape \(20, 4\), expected \(N, 2\) for the fields"):
        prediction_arrays({"u": 2}, {"a": values()})


def test_a_surface_comes_back_with_its_own_data_and_the_arrays(tmp_path):
    sphere = pv.Icosphere(nsub=0)
    sphere.cell_data["own"] = np.arange(20.0)
    arrays = prediction_arrays(WIDTHS, {"a": values()})
    path = export_mesh(add_arrays(sphere.copy(), arrays, "cell"), tmp_path / "new", "case_Re_1.5")
    assert path == tmp_path / "new" / "case_Re_1.5.vtp"  # dots in a name are no suffix
    back = pv.read(path)
    np.testing.assert_array_equal(back.cell_data["own"], np.arange(20.0))
    np.testing.assert_array_equal(back.cell_data["shear_predicted"], values()[:, 1:])
    np.testing.assert_array_equal(back.regular_faces, sphere.regular_faces)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "mesh, suffix",
    [
        (grid(), ".vts"),
        (grid().cast_to_unstructured_grid(), ".vtu"),
        (pv.PolyData(np.random.default_rng(0).random((77, 3))), ".vtp"),
    ],
    ids=["grid", "volume", "cloud"],
)
def test_points_of_every_kind_of_mesh_come_back(tmp_path, mesh, suffix):
    u = np.linspace(0, 1, 77)
    path = export_mesh(add_arrays(mesh.copy(), {"u": u}, "point"), tmp_path, "case")
    assert path.name == f"case{suffix}"
    back = pv.read(path)
    np.testing.assert_array_equal(back.point_data["u"], u)
    np.testing.assert_allclose(back.points, mesh.points, rtol=1e-6)


def test_arrays_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match="array 'b' has 60 values for a mesh of 77 points"):
        add_arrays(grid(), {"a": np.ones(77), "b": np.ones(60)}, "point")


@pytest.mark.parametrize(
    "mesh",
    [
        pv.Sphere(),
        pv.PolyData(np.eye(3)),
        pv.ImageData(dimensions=(3, 3, 1)).cast_to_structured_grid(),
        pv.ImageData(dimensions=(3, 3, 3)).cast_to_unstructured_grid(),
    ],
    ids=["surface", "points", "grid", "volume"],
)
def test_every_written_format_is_what_vtk_reads(tmp_path, mesh):
    mesh.point_data["height"] = mesh.points[:, 2]
    path = tmp_path / f"mesh{mesh_suffix(mesh)}"
    save_mesh(mesh, path)
    found = pv.read(path)
    assert type(found) is type(mesh)
    np.testing.assert_array_equal(found.point_data["height"], mesh.points[:, 2])


def test_meshes_that_no_format_is_for_are_refused():
    with pytest.raises(TypeError, match="mesh is a ImageData, expected one of PolyData"):
        mesh_suffix(pv.ImageData(dimensions=(2, 2, 2)))


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path):
    path = tmp_path / "out.vtp"
    pv.Sphere().save(path)
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(OSError, match="out.vtp could not be written"):
            save_mesh(pv.Sphere(theta_resolution=100, phi_resolution=100), path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["out.vtp"]


def test_output_names_are_checked(tmp_path):
    with pytest.raises(ValueError, match="ends in .vtp"):
        save_mesh(pv.Sphere(), tmp_path / "out.stl")
    with pytest.raises(FileNotFoundError, match="none of the output does not exist"):
        save_mesh(pv.Sphere(), tmp_path / "none" / "out.vtp")
