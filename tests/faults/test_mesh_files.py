"""Damaged mesh files: an error that names the file, never the end of the process."""

import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import pyvista as pv
import torch
from physicsnemo.mesh import DomainMesh, Mesh
from vtkmodules.vtkIOXML import vtkXMLPolyDataWriter

from physicsnemo_flarepp.datapipes import DrivAerMLReader
from physicsnemo_flarepp.meshes import read_mesh, read_surface, reading

XML_MODES = ("ascii", "inline", "appended", "raw", "lz4")
TEXT_AND_BINARY = (".stl", ".ply", ".vtk")
FILES = [
    *(f"{mode}.vtp" for mode in XML_MODES),
    *(f"{mode}{suffix}" for suffix in TEXT_AND_BINARY for mode in ("text", "binary")),
    "text.obj",
]

pytestmark = pytest.mark.slow


def body():
    mesh = pv.Icosphere(nsub=1)
    mesh.cell_data["p"] = np.arange(1, mesh.n_cells + 1, dtype=np.float32)
    mesh.cell_data["shear"] = np.linspace(1, 2, 3 * mesh.n_cells).reshape(-1, 3)
    mesh.point_data["height"] = mesh.points[:, 2] + 2
    return mesh


def write(path, mesh):
    mode = path.stem
    if path.suffix == ".vtp":
        writer = vtkXMLPolyDataWriter()
        {
            "ascii": writer.SetDataModeToAscii,
            "inline": writer.SetDataModeToBinary,
        }.get(mode, writer.SetDataModeToAppended)()
        writer.SetEncodeAppendedData(mode == "appended")
        if mode == "raw":
            writer.SetCompressorTypeToNone()
        elif mode == "lz4":
            writer.SetCompressorTypeToLZ4()
        writer.SetFileName(str(path))
        writer.SetInputData(mesh)
        assert writer.Write()
    elif path.suffix == ".obj":
        corners = [f"v {x:.9g} {y:.9g} {z:.9g}" for x, y, z in mesh.points]
        faces = [f"f {a} {b} {c}" for a, b, c in mesh.regular_faces + 1]
        path.write_text("\n".join([*corners, *faces, ""]))
    else:
        mesh.save(path, binary=mode == "binary")
    return path


def valid(surface):
    """Whether VTK's own arrays of a surface only name points that exist."""
    corners = surface.GetPolys().GetConnectivityArray()
    low, high = corners.GetRange()
    return surface.n_cells > 0 and 0 <= low and high < surface.n_points


def outcome(path):
    """The surface, or None after an error that names the file."""
    try:
        return read_surface(path)
    except ValueError as error:
        assert str(path) in str(error)
        return None


@pytest.mark.parametrize("name", FILES)
def test_a_sound_file_gives_what_vtk_reads_in_this_process(tmp_path, name):
    path = write(tmp_path / name, body())
    ours, theirs = read_surface(path), pv.read(path)
    np.testing.assert_array_equal(ours.points, theirs.points)
    np.testing.assert_array_equal(ours.faces, theirs.faces)
    for place in ("cell_data", "point_data"):
        found, expected = getattr(ours, place), getattr(theirs, place)
        assert set(found.keys()) == set(expected.keys())
        for key in expected.keys():
            np.testing.assert_array_equal(found[key], expected[key])


def may_be_cut_from(surface, whole, suffix):
    """Whether a file of this format can be cut to one of the surface that is complete in itself."""
    if suffix == ".obj":  # after a face
        return surface.n_cells <= whole.n_cells
    if suffix == ".vtk":  # between two sections
        same_shape = np.array_equal(surface.points, whole.points) and np.array_equal(
            surface.faces, whole.faces
        )
        names = surface.array_names
        return same_shape and all(np.array_equal(surface[name], whole[name]) for name in names)
    return False


def accepted_cuts(path, lengths):
    """The lengths to which the file was cut and read as if nothing were missing."""
    whole, content = read_surface(path), path.read_bytes()
    accepted = []
    for length in lengths:
        path.write_bytes(content[:length])
        surface = outcome(path)
        if surface is not None and not may_be_cut_from(surface, whole, path.suffix):
            accepted.append(length)
    return accepted


@pytest.mark.parametrize("name", FILES)
def test_a_cut_file_is_an_error_that_names_it(tmp_path, name):
    path = write(tmp_path / name, body())
    lengths = np.linspace(0, 0.95 * path.stat().st_size, 12).astype(int).tolist()
    assert accepted_cuts(path, lengths) == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FILES)
def test_a_file_cut_anywhere_is_an_error_that_names_it(tmp_path, name):
    path = write(tmp_path / name, body())
    size = path.stat().st_size
    # The last bytes of XML and text close what is complete: without them the mesh is the same.
    lengths = np.unique(np.linspace(0, size - 40, 500).astype(int)).tolist()
    assert accepted_cuts(path, lengths) == []


def check_damage(path, n, seed):
    """Flip bits, overwrite stretches, cut out or repeat a part; count what was noticed."""
    content = path.read_bytes()
    rng = np.random.default_rng(seed)
    noticed = 0
    for number in range(n):
        damaged = bytearray(content)
        at, other = sorted(rng.integers(0, len(content), 2).tolist())
        kind = ("flip", "stretch", "digits", "removed", "repeated")[number % 5]
        if kind == "flip":
            damaged[at] ^= 1 << int(rng.integers(8))
        elif kind == "stretch":
            damaged[at : at + 8] = rng.bytes(len(damaged[at : at + 8]))
        elif kind == "digits":  # counts and offsets in headers, at any size
            places = [m.span() for m in re.finditer(rb"\d+", content[:2000])]
            begin, end = places[int(rng.integers(len(places)))]
            value = str(int(10 ** rng.uniform(0, 19))).encode()
            damaged[begin:end] = value if number % 2 else b"-" + value
        elif kind == "removed":
            del damaged[at:other]
        else:
            damaged[at:at] = damaged[at:other]
        path.write_bytes(damaged)
        surface = outcome(path)
        noticed += surface is None
        assert surface is None or valid(surface)
    return noticed


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_never_ends_the_process(tmp_path, name):
    path = write(tmp_path / name, body())
    assert check_damage(path, 20, seed=1) > 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FILES)
def test_no_damage_of_many_ends_the_process(tmp_path, name):
    path = write(tmp_path / name, body())
    noticed = check_damage(path, 1000, seed=2)
    print(f"{name}: {noticed} of 1000 noticed")
    assert noticed > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "old, new",
    [
        (rb'NumberOfPoints="42"', b'NumberOfPoints="1000000000000"'),
        (rb'NumberOfPolys="80"', b'NumberOfPolys="1000000000000"'),
        (rb'offset="\d+"', b'offset="9000000000000000000"'),
        (rb'NumberOfComponents="3"', b'NumberOfComponents="2000000000"'),
    ],
)
@pytest.mark.parametrize("mode", ["raw", "appended"])
def test_claims_that_no_memory_could_hold_are_refused(tmp_path, mode, old, new):
    path = write(tmp_path / f"{mode}.vtp", body())
    path.write_bytes(re.sub(old, new, path.read_bytes()))
    with pytest.raises(ValueError, match=f"{mode}.vtp cannot be read"):
        read_surface(path)


def case_folder(root, mesh):
    """One DrivAerML case, and its reader."""
    folder = root / "run_1"
    folder.mkdir(parents=True)
    path = write(folder / "raw.vtp", mesh).rename(folder / "boundary_1.vtp")
    return path, DrivAerMLReader(root, fields=["p"], features=["normals"], cases=["run_1"])


def with_vertex(mesh, number):
    faces = mesh.regular_faces.copy()
    faces[7, 1] = number
    damaged = pv.PolyData()
    damaged.points = mesh.points
    damaged.SetPolys(pv.CellArray.from_regular_cells(faces))
    damaged.cell_data["p"] = mesh.cell_data["p"]
    return damaged


@pytest.mark.parametrize("number", [-1, 42, 2**40])
def test_vertices_that_do_not_exist_are_an_error_for_both_readers(tmp_path, number):
    path, reader = case_folder(tmp_path, with_vertex(body(), number))
    message = "boundary_1.vtp cannot be read .vertex numbers go from .* but the mesh has 42 points"
    with pytest.raises(ValueError, match=message):
        read_surface(path)
    with pytest.raises(ValueError, match=message):
        reader[0]


@pytest.mark.parametrize("number", [-1, 42])
def test_vertices_that_do_not_exist_are_an_error_in_a_domain_mesh(tmp_path, number):
    mesh = body()
    cells = torch.from_numpy(mesh.regular_faces.copy()).long()
    cells[7, 1] = number
    surface = Mesh(
        points=torch.from_numpy(np.array(mesh.points)).float(),
        cells=cells,
        cell_data={"p": torch.from_numpy(np.array(mesh.cell_data["p"]))},
    )
    interior = Mesh(points=torch.zeros(1, 3))
    (tmp_path / "run_1").mkdir()
    domain = DomainMesh(interior=interior, boundaries={"vehicle": surface})
    domain.save(tmp_path / "run_1" / "domain_1.pdmsh")
    reader = DrivAerMLReader(tmp_path, fields=["p"], cases=["run_1"])
    with pytest.raises(ValueError, match="domain_1.pdmsh cannot be read .*vertex numbers go from"):
        reader[0]


def test_the_drivaerml_reader_survives_what_ends_vtk(tmp_path):
    path, reader = case_folder(tmp_path, body())
    sound = path.read_bytes()
    path.write_bytes(sound.replace(b'NumberOfPoints="42"', b'NumberOfPoints="1000000000000"'))
    with pytest.raises(ValueError, match="boundary_1.vtp cannot be read .VTK crashed on it"):
        reader[0]
    path.write_bytes(sound)
    assert len(reader[0][0]["fields"]) == 80


def test_only_arrays_that_are_asked_for_are_read(tmp_path):
    path = write(tmp_path / "raw.vtp", body())
    raw = read_mesh(path, arrays=["p", "height"])
    assert list(raw.data["cell"]) == ["p"] and list(raw.data["point"]) == ["height"]
    assert set(raw.present["cell"]) >= {"p", "shear"} and "height" in raw.present["point"]


def test_a_name_that_is_no_text_is_no_obstacle(tmp_path):
    path = write(tmp_path / "binary.vtk", body())
    path.write_bytes(path.read_bytes().replace(b"SCALARS p ", b"SCALARS \xb8 "))
    np.testing.assert_array_equal(read_surface(path).cell_data["\xb8"], body().cell_data["p"])


def test_a_volume_mesh_is_no_surface(tmp_path):
    path = tmp_path / "volume.vtu"
    pv.ImageData(dimensions=(3, 3, 3)).cast_to_unstructured_grid().save(path)
    with pytest.raises(ValueError, match="volume.vtu holds a UnstructuredGrid.*extract_surface"):
        read_surface(path)


def test_a_parser_that_does_not_come_back_is_ended(tmp_path, monkeypatch):
    path = write(tmp_path / "raw.vtp", body())
    read_surface(path)
    process = reading._idle[-1].child
    os.kill(process.pid, signal.SIGSTOP)
    monkeypatch.setattr(reading, "_SECONDS", 0.2)
    with pytest.raises(ValueError, match="raw.vtp cannot be read .VTK did not finish within 1 s"):
        read_surface(path)
    monkeypatch.undo()
    assert process.poll() == -signal.SIGKILL
    assert read_surface(path).n_cells == 80


def test_a_parser_lost_between_two_files_is_replaced(tmp_path):
    path = write(tmp_path / "raw.vtp", body())
    read_surface(path)
    for process in reading._idle:
        process.child.kill()
        process.child.wait()
    assert read_surface(path).n_cells == 80


def test_threads_read_at_the_same_time(tmp_path):
    sound = write(tmp_path / "raw.vtp", body())
    cut = tmp_path / "cut.ply"
    write(tmp_path / "binary.ply", body())
    cut.write_bytes((tmp_path / "binary.ply").read_bytes()[:-400])
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(outcome, [sound, cut] * 8))
    assert [None if mesh is None else mesh.n_cells for mesh in found] == [80, None] * 8


@pytest.mark.slow
def test_no_parser_outlives_the_program(tmp_path):
    path = write(tmp_path / "raw.vtp", body())
    program = (
        "import sys; from physicsnemo_flarepp.meshes import read_polygons, reading; "
        "read_polygons(sys.argv[1]); print(reading._idle[0].child.pid)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True
    )
    assert not done.stderr
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)
