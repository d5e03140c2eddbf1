"""Mesh files: what is read, and what is refused."""

import numpy as np
import pytest
import pyvista as pv

from physicsnemo_flarepp.meshes import (
    SUFFIXES,
    PolygonMesh,
    polygon_mesh,
    read_mesh,
    read_polygons,
    read_surface,
    save_mesh,
    vtk_process,
)
from tests.own_data import making


def test_the_helper_process_reads_every_format():
    assert set(vtk_process.READERS) == set(SUFFIXES)


def test_polygons_are_the_same_from_the_file_and_from_pyvista(tmp_path):
    mesh = pv.Plane(i_resolution=2, j_resolution=3) + pv.Sphere(theta_resolution=5)
    mesh = mesh.extract_surface(algorithm=None)
    mesh.cell_data["p"] = np.arange(mesh.n_cells)
    save_mesh(mesh, tmp_path / "mixed.vtp")
    stored, shown = read_polygons(tmp_path / "mixed.vtp"), polygon_mesh(mesh, "shown")
    for name in ("points", "connectivity", "offsets"):
        np.testing.assert_array_equal(getattr(stored, name), getattr(shown, name))
    np.testing.assert_array_equal(stored.data["cell"]["p"], shown.data["cell"]["p"])
    assert "p" in stored.array_names()["cell"] and "p" in shown.array_names()["cell"]


def bad_file(name, folder):
    path = folder / f"{name}.vtp"
    if name == "empty":
        pv.PolyData().save(path)
    elif name == "cloud":
        pv.PolyData(np.random.default_rng(0).random((5, 3))).save(path)
    elif name == "lines":
        (pv.Sphere() + pv.Line()).extract_surface(algorithm=None).save(path)
    elif name == "infinite":
        mesh = pv.Sphere()
        mesh.points[7, 1] = np.nan
        mesh.save(path)
    elif name == "two_corners":
        pv.PolyData.from_irregular_faces(np.eye(3), [[0, 1, 2], [0, 1]]).save(path)
    elif name == "volume":
        path = folder / "volume.vtk"
        pv.ImageData(dimensions=(3, 3, 3)).cast_to_unstructured_grid().save(path)
    elif name == "suffix":
        path = folder / "car.step"
        path.write_text("")
    return path


@pytest.mark.parametrize(
    "name, error, message",
    [
        ("empty", ValueError, "0 polygons among 0 cells"),
        ("cloud", ValueError, "0 polygons among 5 cells"),
        ("lines", ValueError, "expected polygons only"),
        ("infinite", ValueError, "1 points with NaN.*first at 7"),
        ("two_corners", ValueError, "1 cells with fewer than 3 vertices, the first at 1"),
        ("volume", ValueError, "holds a UnstructuredGrid.*extract_surface"),
        ("suffix", ValueError, "car.step must end in"),
        ("absent", FileNotFoundError, "absent.vtp does not exist"),
    ],
)
def test_what_is_no_surface_is_refused(tmp_path, name, error, message):
    with pytest.raises(error, match=message):
        read_surface(bad_file(name, tmp_path))


@pytest.mark.parametrize("name", ["cgns", "ensight", "foam"])
def test_cases_with_parts_are_read_as_their_volume(name, tmp_path):
    _, file, _ = making.write(name, tmp_path)
    mesh = read_mesh(file, sizes=True)
    sizes = {"foam": [1.0] * 3}.get(name, [1.0] * 18)
    np.testing.assert_allclose(mesh.sizes, sizes, rtol=1e-6)
    assert not mesh.data["field"]
    (field,) = mesh.data["cell"].values()
    # Of several times the last is read.
    expected = mesh.cell_centres()[:, 0] * (2 if name == "foam" else 1)
    np.testing.assert_allclose(field, expected, rtol=1e-6)


def test_a_part_is_read_by_its_name(tmp_path):
    _, file, _ = making.write("foam", tmp_path)
    sides = read_mesh(file, part="sides")
    assert isinstance(sides, PolygonMesh) and sides.n_cells == 12
    assert read_mesh(file, part="interior").n_cells == 3
    with pytest.raises(ValueError, match="no part 'wing'; .* one of internalMesh, ends, sides"):
        read_mesh(file, part="wing")
    (file.parent / "constant" / "polyMesh" / "faces").write_text("nothing")
    with pytest.raises(ValueError, match="case.foam"):
        read_mesh(file)
