"""Own files: which make up a case, what their arrays are taken for, and what is refused."""

import h5py
import numpy as np
import pytest
import pyvista as pv
import torch

from physicsnemo_flarepp.datapipes import OwnReader, ReaderOptions, plot_mesh
from physicsnemo_flarepp.datapipes.readers import contents
from physicsnemo_flarepp.datapipes.readers.case_files import find_files, read_parameters
from physicsnemo_flarepp.datapipes.readers.contents import Wanted, open_file

from . import making
from .making import cloud, surface, volume


def save_clouds(folder, n=5):
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(n):
        np.savez(folder / f"run_{i}.npz", **cloud(1 + i))
    return folder


# --- files of a case


def test_files_of_one_id_make_one_case(tmp_path):
    for i in range(3):
        mesh = surface(1 + i)
        shear = mesh.copy()
        del mesh.cell_data["tau"], shear.cell_data["Cp"]
        shear.field_data.clear()
        for part, made in (("pressure", mesh), ("shear", shear)):
            (tmp_path / part / "batch").mkdir(parents=True, exist_ok=True)
            made.save(tmp_path / part / "batch" / f"car_{i}.vtk")
    files = ["pressure/*/{case}.vtk", "shear/*/{case}.vtk"]
    reader = OwnReader(tmp_path, files=files, fields=["Cp", "tau"], features=[], cases=["car_1"])
    np.testing.assert_allclose(
        reader[0][0]["fields"][:, 1:], surface(2).cell_data["tau"], rtol=1e-6
    )
    assert list(reader.names.globals) == ["a"]


def test_a_mesh_is_decoded_once_until_its_file_changes(tmp_path, monkeypatch):
    making.write_meshes(tmp_path, ".vtp")
    decoded, original = [], contents.read_mesh

    def counted(path, **options):
        decoded.append(path.name)
        return original(path, **options)

    monkeypatch.setattr(contents, "read_mesh", counted)
    named = {"fields": ["Cp"], "features": ["normals"], "globals": ["a"], "association": "cells"}
    reader = OwnReader(tmp_path, **named, cases=["case_1", "case_2"])
    for epoch in range(3):
        reader.set_epoch(epoch)
        before = [reader[i][0]["fields"] for i in range(2)]
    assert sorted(decoded) == ["case_1.vtp", "case_2.vtp"]
    surface(9).save(tmp_path / "case_2.vtp")
    assert not torch.equal(reader[1][0]["fields"], before[1])
    assert torch.equal(reader[0][0]["fields"], before[0]) and len(decoded) == 3


def test_a_case_that_lacks_a_file_is_named(tmp_path):
    making.write_shape_and_arrays(tmp_path, ".stl", ".npz")
    (tmp_path / "case_3.npz").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"1 of 6 cases have no file '\{case\}.npz': case_3"
    ):
        find_files(tmp_path, ["{case}.stl", "{case}.npz"])


def test_a_folder_per_case_gives_its_name(tmp_path):
    for i in range(3):
        (tmp_path / f"run_{i}").mkdir()
        surface(1).save(tmp_path / f"run_{i}" / f"boundary_{i}.vtp")
        surface(1).save(tmp_path / f"run_{i}" / f"shape_{i}.stl")
    found = find_files(tmp_path, None)
    assert list(found.cases) == ["run_0", "run_1", "run_2"]
    assert "3 .stl files" in found.told[1]


def test_rows_are_kept_of_an_array_that_has_more(tmp_path):
    """As in ShapeNet-Car: pressures of points that the mesh does not have."""
    for i in range(2):
        mesh = surface(1 + i, "point")
        values = np.insert(mesh.point_data["Cp"], [4] * 3, -99.0)
        mesh.clear_data()
        (tmp_path / f"{i}").mkdir()
        mesh.save(tmp_path / f"{i}" / "shape.vtk")
        np.save(tmp_path / f"{i}" / "press.npy", values)
    files = ["{case}/shape.vtk", "{case}/press.npy"]
    reader = OwnReader(
        tmp_path, files=files, fields=["press"], rows={"press": [[0, 4], [7, None]]}, cases=["1"]
    )
    np.testing.assert_allclose(reader[0][0]["fields"][:, 0], surface(2, "point")["Cp"], rtol=1e-6)


def test_a_draw_reads_the_rows_of_any_store(tmp_path):
    for name in ("npz", "h5", "zarr"):
        making.write(name, tmp_path / name)
        draw = OwnReader(tmp_path / name, "test", options=ReaderOptions(n_points=7))[0][0]
        whole = OwnReader(tmp_path / name, "test")[0][0]
        torch.testing.assert_close(draw["fields"], whole["fields"][draw["tokens"]])


# --- parameters


@pytest.mark.parametrize("ids", [["run_7", "run_8"], ["7", "8"], ["car 007", "car 008"]])
def test_rows_of_a_table_are_found_by_id_or_number(ids, tmp_path):
    table = "name,mu,remark\n" + "".join(f"{i},{n}.5,x\n" for n, i in enumerate(ids))
    (tmp_path / "table.csv").write_text(table)
    found = read_parameters(tmp_path, None, ["run_7", "run_8"], by_position=False)
    assert found.values == {"run_7": {"mu": 0.5}, "run_8": {"mu": 1.5}}
    assert "table.csv" in found.told[0]


def test_a_table_without_the_cases_is_no_guess_and_an_error_when_named(tmp_path):
    (tmp_path / "table.csv").write_text("name,mu\na,1\nb,2\n")
    found = read_parameters(tmp_path, None, ["run_7"], by_position=False)
    assert found.values == {} and "no column holds the cases run_7" in found.told[0]
    with pytest.raises(ValueError, match="no column holds the cases"):
        read_parameters(tmp_path, "table.csv", ["run_7"], by_position=False)


# --- names


def test_what_is_there_and_not_used_is_named_when_training_starts(tmp_path):
    root = save_clouds(tmp_path)
    lines = OwnReader(root, fields=["u"], globals=[]).describe_names()
    assert lines[0] == "data: at points: fields u, features none, globals none"
    assert lines[1].startswith("data: NOT USED: a (array). To use them")


def test_results_of_a_case_are_not_guessed_to_be_inputs(tmp_path):
    for i in range(3):
        mesh = surface(1 + i)
        for name in ("Cd", "drag", "cl_total", "clearance", "U"):
            mesh.field_data[name] = [float(i)]
        mesh.save(tmp_path / f"{i}.vtp")
    assert list(OwnReader(tmp_path).names.globals) == ["a", "clearance", "U"]


def test_columns_are_picked_and_renamed(tmp_path):
    for i in range(2):
        np.savez(tmp_path / f"{i}.npz", xyz=np.eye(3), q=np.arange(12.0).reshape(3, 4))
    names = {"p": "q[0]", "shear": "q[1:4]"}
    reader = OwnReader(tmp_path, fields=names, cases=["0"])
    assert reader.open_case(0).channels()["fields"] == ["p", "shear_x", "shear_y", "shear_z"]
    assert reader.names.as_config()["fields"] == names
    with pytest.raises(ValueError, match=r"p is q\[7\], but q has shape \(3, 4\): 4 columns"):
        OwnReader(tmp_path, fields={"p": "q[7]"}, cases=["0"])[0]


@pytest.mark.parametrize(
    "change, message",
    [
        ({"fields": ["nope"]}, r"has no array 'nope' for 80 cells and 42 points; present: Cp"),
        ({"fields": ["Cp", "h"]}, "Cp is cell data, h is point data; fields"),
        ({"association": "points"}, "Cp is cell data, but data.association is points"),
        ({"association": "faces"}, "expected cells, points or auto"),
        ({"fields": []}, "data.fields is empty"),
        ({"features": ["volumes"]}, "is a surface and has no volumes"),
        ({"globals": ["Cp"]}, "Cp of data.globals is cell data, not a value of the whole"),
        ({"options": {"weights": "tau"}}, "tau .of the weights. has shape"),
    ],
)
def test_wrong_names_are_told_with_file_and_array(change, message, tmp_path):
    mesh = surface(1.0)
    mesh.point_data["h"] = mesh.points[:, 2]
    for i in range(2):
        mesh.save(tmp_path / f"case_{i}.vtp")
    given = {"fields": ["Cp"], "features": [], "globals": [], "cases": ["case_0"]} | change
    with pytest.raises(ValueError, match=message):
        OwnReader(tmp_path, **given)[0]


def test_arrays_that_are_not_of_the_tokens_are_refused(tmp_path):
    for i in range(2):
        np.savez(tmp_path / f"{i}.npz", pos=np.zeros((4, 2)), u=np.zeros(5))
    with pytest.raises(ValueError, match=r"u has shape \(5,\), expected \(4,\) or \(4, channels\)"):
        OwnReader(tmp_path, fields=["u"], features=[], globals=[], cases=["0"])[0]


def test_volumes_weigh_by_what_they_hold(tmp_path):
    for i in range(2):
        volume(1 + i).save(tmp_path / f"{i}.vtu")
    options = {"weights": "measure"}
    sample = OwnReader(tmp_path, features=["volumes"], cases=["1"], options=options)[0][0]
    expected = volume(2).compute_cell_sizes()["Volume"]
    np.testing.assert_allclose(sample["weights"], expected, rtol=1e-6)
    np.testing.assert_allclose(sample["features"][:, 0], expected, rtol=1e-6)


# --- files of others


def test_an_array_of_objects_is_no_array(tmp_path):
    np.savez(tmp_path / "a.npz", pos=np.zeros((3, 2)), bad=np.array([print], dtype=object))
    assert set(open_file(tmp_path / "a.npz", Wanted()).arrays) == {"pos"}
    np.save(tmp_path / "b.npy", np.array([print], dtype=object))
    found = open_file(tmp_path / "b.npy", Wanted())
    assert not found.arrays and "b.npy: b is of objects" in found.unreadable["b"]


def test_links_of_hdf5_to_other_files_are_no_arrays(tmp_path):
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["key"] = np.arange(3.0)
    with h5py.File(tmp_path / "case.h5", "w") as file:
        file["pos"] = np.zeros((3, 2))
        file["u"] = h5py.ExternalLink("secret.h5", "key")
        file.create_group("inner")["v"] = h5py.SoftLink("/pos")
    assert set(open_file(tmp_path / "case.h5", Wanted()).arrays) == {"pos"}


@pytest.mark.parametrize("suffix", [".vtu", ".vts", ".vti", ".vtr"])
def test_a_cut_mesh_file_is_an_error_that_names_it(suffix, tmp_path):
    image = pv.ImageData(dimensions=(5, 5, 5))
    image.point_data["u"] = np.arange(125.0)
    casts = {
        ".vtu": image.cast_to_unstructured_grid, ".vts": image.cast_to_structured_grid,
        ".vtr": image.cast_to_rectilinear_grid, ".vti": image.copy,
    }  # fmt: skip
    path = tmp_path / f"mesh{suffix}"
    casts[suffix]().save(path)
    assert open_file(path, Wanted()).count("cell") == 64
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(ValueError, match=f"mesh{suffix}"):
        open_file(path, Wanted())


# --- what a stranger's arrays are taken for


def write_arrays(folder, **arrays):
    for name, values in arrays.items():
        np.save(folder / f"{name}.npy", values)
    return folder


RANDOM = np.random.default_rng(0)


def test_transposed_coordinates_are_refused_and_never_predict_the_parameters(tmp_path):
    fields = {"params": RANDOM.random((30, 2)), "T": RANDOM.random((30, 50))}
    write_arrays(tmp_path, coords=RANDOM.random((2, 50)), **fields)
    with pytest.raises(
        ValueError, match=r"coords.npy: .* 50 coordinates.*Transposed\? .*\(50, 2\)"
    ):
        _ = OwnReader(tmp_path).names
    with pytest.raises(ValueError, match=r"Transposed\?"):
        OwnReader(tmp_path, coordinates="coords", fields=["params"], globals=["T"], features=[])[0]
    write_arrays(tmp_path, coords=RANDOM.random((50, 2)))
    names = OwnReader(tmp_path).names
    assert [*names.fields, *names.globals] == ["T", "params"]


@pytest.mark.parametrize(
    ("arrays", "coordinates"),
    [
        ({"points": (20, 51, 2), "pos": (20, 3)}, ["points"]),
        ({"points": (20, 51, 2), "x": (20, 51, 1), "y": (20, 51, 1)}, ["points"]),
        ({"x": (20, 51), "y": (20, 51), "position": (20, 51)}, ["x", "y"]),
        ({"x": (20, 51, 3)}, ["x"]),
        ({"coords": (51, 2), "params": (20, 51)}, ["coords"]),
    ],
)
def test_the_coordinates_are_those_that_fit_the_other_arrays(arrays, coordinates, tmp_path):
    arrays = {name: RANDOM.random(shape) for name, shape in arrays.items()}
    write_arrays(tmp_path, u=RANDOM.random((20, 51)), **arrays)
    reader = OwnReader(tmp_path)
    assert list(reader.names.coordinates) == coordinates and "u" in reader.names.fields
    assert len(reader[0][0]["coordinates"]) == 51


def test_as_many_points_as_cases_are_points(tmp_path):
    arrays = {"coords": (50, 2), "params": (50, 2), "T": (50, 50)}
    write_arrays(tmp_path, **{name: RANDOM.random(shape) for name, shape in arrays.items()})
    reader = OwnReader(tmp_path)
    assert [*reader.names.fields, *reader.names.globals] == ["T", "params"]
    sample, metadata = reader[3]
    assert sample["coordinates"].shape == (50, 2)
    assert metadata["global_names"] == ["params_1", "params_2"]


@pytest.mark.parametrize("kind", [bool, np.int8, np.uint16])
@pytest.mark.parametrize("names", [("a", "u"), ("x", "y")])
def test_truths_and_whole_numbers_at_tokens_are_inputs(kind, names, tmp_path):
    given, result = names
    coefficient = RANDOM.random((6, 8, 9)) > 0.5
    arrays = {given: coefficient.astype(kind), result: RANDOM.random((6, 8, 9))}
    np.savez(tmp_path / "all.npz", same=np.ones((6, 8, 9), int), cell_ids=arrays[given], **arrays)
    reader = OwnReader(tmp_path)
    assert [list(reader.names.features), list(reader.names.fields)] == [[given], [result]]
    sample = reader[0][0]
    assert sample["features"].flatten().tolist() == coefficient[0].flatten().tolist()


def test_the_list_of_triangles_counts_no_cases_and_the_wrong_file_is_blamed(tmp_path):
    points = RANDOM.random((9, 2))
    triangles = RANDOM.integers(0, 9, (400, 3))
    write_arrays(tmp_path, points=points, snapshots=RANDOM.random((6, 9)), triangles=triangles)
    assert list(OwnReader(tmp_path).names.fields) == ["snapshots"]
    write_arrays(tmp_path, snapshots=RANDOM.random((6, 8)))
    with pytest.raises(ValueError, match=r"snapshots.npy: snapshots has shape \(8,\), expected"):
        OwnReader(tmp_path, fields=["snapshots"], coordinates="points")[0]


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("corners", [3, 4])
def test_a_list_of_cells_makes_surfaces_of_clouds(first, corners, tmp_path):
    plane = pv.Plane(i_resolution=4, j_resolution=3)
    plane = plane.triangulate() if corners == 3 else plane
    cells = plane.regular_faces + first
    points, u = np.asarray(plane.points), RANDOM.random((6, plane.n_points))
    write_arrays(tmp_path, nodes=points, u=u, elements=cells, ids=np.arange(6))
    reader = OwnReader(tmp_path)
    assert list(reader.names.fields) == ["u"] and list(reader.names.features) == []
    sample, metadata = reader[2]
    mesh = plot_mesh(metadata, sample["coordinates"].numpy())
    np.testing.assert_array_equal(mesh.regular_faces, plane.regular_faces)
    np.testing.assert_allclose(mesh.points, plane.points)
    assert plot_mesh(metadata, points[:7]).n_cells == 7  # of other points: a cloud of vertices
    assert not any("NOT USED: elements" in line for line in reader.describe_names())
