"""Small sets in every format that own data may have; each case is a body stretched by `a`."""

import csv

import h5py
import numpy as np
import pyvista as pv
import torch
import zarr
from physicsnemo.mesh import DomainMesh, Mesh
from vtkmodules.vtkIOParallel import vtkEnSightWriter

N_CASES = 6
STRETCH = [1 + 0.1 * i for i in range(N_CASES)]


def surface(stretch, place="cell"):
    """A sphere with a scalar, a vector, a parameter and a result of the whole case."""
    mesh = pv.Icosphere(nsub=1).scale((stretch, 1, 1))
    mesh.clear_data()
    points = mesh.cell_centers().points if place == "cell" else mesh.points
    data = mesh.cell_data if place == "cell" else mesh.point_data
    data["Cp"] = (points[:, 0] * stretch).astype(np.float32)
    data["tau"] = (points * stretch).astype(np.float32)
    mesh.field_data["a"] = [stretch]
    return mesh


def volume(stretch):
    mesh = pv.ImageData(dimensions=(4, 4, 3)).cast_to_unstructured_grid().scale((stretch, 1, 1))
    mesh.clear_data()
    mesh.cell_data["T"] = mesh.cell_centers().points[:, 0] * stretch
    mesh.field_data["a"] = [stretch]
    return mesh


def cloud(stretch, seed=0):
    points = np.random.default_rng(seed).random((60, 2)) * [stretch, 1]
    return {"pos": points, "u": points.sum(1) * stretch, "a": np.array(stretch)}


def cases():
    return [(f"case_{i}", stretch) for i, stretch in enumerate(STRETCH)]


def write_meshes(root, suffix, make=surface, **options):
    for name, stretch in cases():
        make(stretch, **options).save(root / f"{name}{suffix}")


def write_unstructured(root, suffix):
    for name, stretch in cases():
        surface(stretch).cast_to_unstructured_grid().save(root / f"{name}{suffix}")


def write_shape_and_arrays(root, suffix, arrays):
    """Geometry in a format without fields, and the fields of its cells beside it."""
    for name, stretch in cases():
        mesh = surface(stretch)
        fields = {"Cp": mesh.cell_data["Cp"], "a": np.array(stretch)}
        mesh.clear_data()
        mesh.save(root / f"{name}{suffix}")
        if arrays == ".npy":
            np.save(root / f"{name}_Cp.npy", fields["Cp"])
        else:
            np.savez(root / f"{name}.npz", **fields)


def write_npz(root):
    for i, (name, stretch) in enumerate(cases()):
        np.savez(root / f"{name}.npz", **cloud(stretch, i))


def write_tables(root):
    """A table x, y, u per case."""
    for i, (name, stretch) in enumerate(cases()):
        case = cloud(stretch, i)
        np.save(root / f"{name}.npy", np.column_stack([case["pos"], case["u"]]))


def write_folders(root):
    """A folder per case with one .npy file per array."""
    for i, (name, stretch) in enumerate(cases()):
        (root / name).mkdir()
        for array, values in cloud(stretch, i).items():
            np.save(root / name / f"{array}.npy", values)


def write_h5(root):
    for i, (name, stretch) in enumerate(cases()):
        with h5py.File(root / f"{name}.h5", "w") as file:
            for array, values in cloud(stretch, i).items():
                file[f"mesh/{array}" if array == "pos" else array] = values


def write_zarr(root):
    for i, (name, stretch) in enumerate(cases()):
        group = zarr.open_group(root / f"{name}.zarr", mode="w")
        for array, values in cloud(stretch, i).items():
            group[array] = np.atleast_1d(values)


def stacked():
    made = [cloud(stretch, i) for i, (_, stretch) in enumerate(cases())]
    return {name: np.stack([case[name] for case in made]) for name in made[0]}


def write_npz_set(root):
    np.savez(root / "all.npz", **stacked())


def write_npy_set(root):
    for name, values in stacked().items():
        np.save(root / f"{name}.npy", values)


def write_h5_set(root):
    with h5py.File(root / "all.h5", "w") as file:
        for name, values in stacked().items():
            file[name] = values


def write_zarr_set(root):
    group = zarr.open_group(root / "all.zarr", mode="w")
    for name, values in stacked().items():
        group[name] = values


def write_grid(root):
    """A coefficient and a solution on a grid, without coordinates."""
    rng = np.random.default_rng(0)
    coefficient = rng.random((N_CASES, 8, 9))
    np.savez(root / "all.npz", material=coefficient, u=coefficient.cumsum(1))


def write_one_mesh(root):
    """One mesh for all cases, fields in .npy files, parameters in a table."""
    mesh = surface(1.0)
    mesh.clear_data()
    mesh.save(root / "body.vtp")
    (root / "fields").mkdir()
    with (root / "parameters.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["run", "a", "remark"])
        for name, stretch in cases():
            writer.writerow([name, stretch, "ok"])
            np.save(root / "fields" / f"{name}.npy", surface(stretch).cell_data["Cp"])


def simplices(mesh):
    return Mesh(
        points=torch.tensor(np.asarray(mesh.points)),
        cells=torch.tensor(mesh.regular_faces.astype(np.int64)),
        cell_data={name: torch.tensor(np.asarray(v)) for name, v in mesh.cell_data.items()},
        global_data={"a": torch.tensor(float(mesh.field_data["a"][0]))},
    )


def write_pmsh(root):
    for name, stretch in cases():
        simplices(surface(stretch)).save(root / f"{name}.pmsh")


def write_pdmsh(root):
    for name, stretch in cases():
        inside = Mesh(points=torch.rand(5, 3))
        given = {"a": torch.tensor(stretch)}
        mesh = simplices(surface(stretch))
        mesh = Mesh(points=mesh.points, cells=mesh.cells, cell_data=mesh.cell_data)
        DomainMesh(inside, {"body": mesh}, given).save(root / f"{name}.pdmsh")


def write_csv(root):
    """A table per case with the vector names of ParaView, and a table of parameters."""
    with (root / "parameters.csv").open("w") as file:
        file.write("case,a\n" + "".join(f"{name},{stretch}\n" for name, stretch in cases()))
    for i, (name, stretch) in enumerate(cases()):
        case = cloud(stretch, i)
        columns = [*np.pad(case["pos"], ((0, 0), (0, 1))).T, case["u"]]
        names = '"Points:0","Points:1","Points:2","u"'
        np.savetxt(root / f"{name}.csv", np.column_stack(columns), "%.9g", ",", header=names,
                   comments="")  # fmt: skip


def hexahedra(stretch):
    grid = pv.ImageData(dimensions=(4, 4, 3)).cast_to_structured_grid().scale((stretch, 1, 1))
    mesh = grid.cast_to_unstructured_grid()
    mesh.clear_data()
    mesh.cell_data["T"] = (mesh.cell_centers().points[:, 0] * stretch).astype(np.float32)
    return mesh


def write_ensight(root):
    for name, stretch in cases():
        mesh = hexahedra(stretch)
        mesh.cell_data["BlockId"] = np.ones(mesh.n_cells, dtype=np.int32)
        writer = vtkEnSightWriter()
        writer.SetInputData(mesh)
        writer.SetFileName(str(root / name))
        writer.SetPath(str(root))
        writer.SetBaseName(name)
        writer.Write()
        writer.WriteCaseFile(1)


def _node(parent, name, label, data=None):
    """A node of CGNS as its library stores it in HDF5."""
    group = parent.create_group(name)
    kind = "MT"
    if isinstance(data, str):
        kind, data = "C1", np.frombuffer(data.encode(), np.int8)
    elif data is not None:
        kind = {"f8": "R8", "f4": "R4", "i4": "I4"}[np.asarray(data).dtype.str[1:]]
    for key, text, width in (("name", name, 33), ("label", label, 33), ("type", kind, 3)):
        group.attrs.create(key, np.bytes_(text), dtype=f"S{width}")
    group.attrs.create("flags", np.array([1], np.int32))
    if data is not None:
        group.create_dataset(" data", data=data)
    return group


def write_cgns(root):
    for name, stretch in cases():
        mesh = hexahedra(stretch)
        hexes = mesh.cells.reshape(-1, 9)[:, 1:] + 1
        with h5py.File(root / f"{name}.cgns", "w", libver=("earliest", "v108")) as file:
            for key, text, width in (
                ("name", "HDF5 MotherNode", 33),
                ("label", "Root Node of HDF5 File", 33),
                ("type", "MT", 3),
            ):
                file.attrs.create(key, np.bytes_(text), dtype=f"S{width}")
            for key, text in ((" format", b"IEEE_LITTLE_32\0"), (" hdf5version", b"HDF5 1.8\0")):
                file.create_dataset(key, data=np.frombuffer(text, np.int8))
            version = np.array([3.3], np.float32)
            _node(file, "CGNSLibraryVersion", "CGNSLibraryVersion_t", version)
            base = _node(file, "Base", "CGNSBase_t", np.array([3, 3], np.int32))
            sizes = np.array([[mesh.n_points], [mesh.n_cells], [0]], np.int32)
            zone = _node(base, "Zone", "Zone_t", sizes)
            _node(zone, "ZoneType", "ZoneType_t", "Unstructured")
            grid = _node(zone, "GridCoordinates", "GridCoordinates_t")
            for axis, values in zip("XYZ", mesh.points.T.astype(float), strict=True):
                _node(grid, f"Coordinate{axis}", "DataArray_t", values)
            cells = _node(zone, "Hexahedra", "Elements_t", np.array([17, 0], np.int32))
            span = np.array([1, mesh.n_cells], np.int32)
            _node(cells, "ElementRange", "IndexRange_t", span)
            vertices = hexes.reshape(-1).astype(np.int32)
            _node(cells, "ElementConnectivity", "DataArray_t", vertices)
            solution = _node(zone, "Solution", "FlowSolution_t")
            _node(solution, "GridLocation", "GridLocation_t", "CellCenter")
            _node(solution, "T", "DataArray_t", mesh.cell_data["T"].astype(float))


def _foam(folder, kind, name, body):
    head = f"FoamFile {{ version 2.0; format ascii; class {kind}; object {name}; }}\n"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(head + body)


def _foam_list(entries):
    return f"{len(entries)}\n(\n" + "\n".join(map(str, entries)) + "\n)\n"


def write_foam(root):
    """OpenFOAM cases of three boxes in a row, with a patch of their sides."""
    n = 3
    for name, stretch in cases():
        case = root / name
        points = [f"({i * stretch} {j} {k})" for i in range(n + 1) for j in (0, 1) for k in (0, 1)]
        across = lambda i: (4 * i, 4 * i + 2, 4 * i + 3, 4 * i + 1)  # noqa: E731
        edges = ((0, 1), (1, 3), (3, 2), (2, 0))
        sides = [
            (4 * i + a, 4 * i + b, 4 * i + 4 + b, 4 * i + 4 + a) for i in range(n) for a, b in edges
        ]
        faces = [*map(across, range(1, n)), across(0)[::-1], across(n), *sides]
        owner = [*range(n - 1), 0, n - 1, *(i for i in range(n) for _ in edges)]
        mesh = case / "constant" / "polyMesh"
        _foam(mesh, "vectorField", "points", _foam_list(points))
        listed = [f"4({' '.join(map(str, face))})" for face in faces]
        _foam(mesh, "faceList", "faces", _foam_list(listed))
        _foam(mesh, "labelList", "owner", _foam_list(owner))
        _foam(mesh, "labelList", "neighbour", _foam_list(range(1, n)))
        patches = [
            f"ends {{ type patch; nFaces 2; startFace {n - 1}; }}",
            f"sides {{ type wall; nFaces {4 * n}; startFace {n + 1}; }}",
        ]
        _foam(mesh, "polyBoundaryMesh", "boundary", _foam_list(patches))
        for time in (1, 2):
            values = _foam_list([time * stretch * (i + 0.5) for i in range(n)])
            body = f"dimensions [0 0 0 1 0 0 0]; internalField nonuniform List<scalar> {values};\n"
            body += "boundaryField { ends { type zeroGradient; } sides { type zeroGradient; } }\n"
            _foam(case / str(time), "volScalarField", "T", body)
        control = "startTime 0; endTime 2; deltaT 1; writeControl timeStep; writeInterval 1;"
        _foam(case / "system", "dictionary", "controlDict", control)
        (case / "case.foam").touch()


TABLE = ["data.coordinates='values[0:2]'", "data.fields={u:'values[2]'}"]
ONE_MESH = ["data.reader.files=[body.vtp,'fields/{case}.npy']", "data.fields={Cp:values}"]
# Format -> what writes it, what a config has to say, the file to predict, and fields, features,
# globals as they are to be found.
FORMATS = {
    "vtp": (lambda r: write_meshes(r, ".vtp"), [], "case_0.vtp", "Cp tau|normals|a"),
    "vtp_points": (
        lambda r: write_meshes(r, ".vtp", place="point"), [], "case_0.vtp", "Cp tau|normals|a"),
    "vtk": (lambda r: write_meshes(r, ".vtk"), [], "case_0.vtk", "Cp tau|normals|a"),
    "vtk_unstructured": (
        lambda r: write_unstructured(r, ".vtk"), [], "case_0.vtk", "Cp tau|normals|a"),
    "vtu_surface": (lambda r: write_unstructured(r, ".vtu"), [], "case_0.vtu", "Cp tau|normals|a"),
    "vtu_volume": (
        lambda r: write_meshes(r, ".vtu", volume), ["data.weights=measure"], "case_0.vtu", "T||a"),
    "stl": (
        lambda r: write_shape_and_arrays(r, ".stl", ".npz"), [], "case_0.stl", "Cp|normals|a"),
    "ply": (
        lambda r: write_shape_and_arrays(r, ".ply", ".npz"), [], "case_0.ply", "Cp|normals|a"),
    "obj": (
        lambda r: write_shape_and_arrays(r, ".obj", ".npy"),
        ["data.reader.files=['{case}.obj','{case}_Cp.npy']"], "case_0.obj", "Cp|normals|"),
    "npz": (write_npz, [], "case_0.npz", "u||a"),
    "npy_table": (write_tables, TABLE, "case_0.npy", "u||"),
    "npy_folders": (write_folders, [], None, "u||a"),
    "h5": (write_h5, [], "case_0.h5", "u||a"),
    "zarr": (write_zarr, [], "case_0.zarr", "u||a"),
    "npz_set": (write_npz_set, [], None, "u||a"),
    "npy_set": (write_npy_set, [], None, "u||a"),
    "h5_set": (write_h5_set, [], None, "u||a"),
    "zarr_set": (write_zarr_set, [], None, "u||a"),
    "grid_set": (write_grid, [], None, "u|material|"),
    "one_mesh": (write_one_mesh, ONE_MESH, "body.vtp", "Cp|normals|a"),
    "csv": (write_csv, ["data.coordinates='Points[0:2]'"], "case_0.csv", "u||a"),
    "cgns": (write_cgns, [], "case_0.cgns", "T||"),
    "ensight": (write_ensight, [], "case_0.0.case", "T_c||"),
    "foam": (write_foam, [], "case_0/case.foam", "T||"),
    "pmsh": (write_pmsh, [], "case_0.pmsh", "Cp tau|normals|a"),
    "pdmsh": (write_pdmsh, [], "case_0.pdmsh", "Cp tau|normals|a"),
}  # fmt: skip


def write(name, root):
    """Write a format to a new folder and return its overrides, file to predict and names."""
    root.mkdir(parents=True, exist_ok=True)
    make, overrides, file, names = FORMATS[name]
    make(root)
    fields, features, values = (part.split() for part in names.split("|"))
    expected = {"fields": fields, "features": features, "globals": values}
    return overrides, file and root / file, expected
