"""The program that reads mesh files with VTK, so that a damaged one ends it and nothing else.

:mod:`.reading` runs this file with a bare interpreter and asks for one mesh at a time over the
socket that is its standard input: a line of JSON, and an open file for the arrays, which both
processes share without a copy. The answer is a line of JSON that says where in that file each array
is. It imports only NumPy and VTK, which take 0.2 s; the package itself would take seconds.
"""

import json
import os
import re
import socket
import sys
from functools import partial
from importlib import import_module

import numpy as np
from vtkmodules.util.numpy_support import vtk_to_numpy
from vtkmodules.vtkCommonCore import vtkOutputWindow, vtkStringOutputWindow

READERS = {
    ".vtp": "vtkIOXML.vtkXMLPolyDataReader",
    ".vtu": "vtkIOXML.vtkXMLUnstructuredGridReader",
    ".vts": "vtkIOXML.vtkXMLStructuredGridReader",
    ".vtr": "vtkIOXML.vtkXMLRectilinearGridReader",
    ".vti": "vtkIOXML.vtkXMLImageDataReader",
    ".stl": "vtkIOGeometry.vtkSTLReader",
    ".ply": "vtkIOPLY.vtkPLYReader",
    ".obj": "vtkIOGeometry.vtkOBJReader",
    ".vtk": "vtkIOLegacy.vtkDataSetReader",
    ".cgns": "vtkIOCGNSReader.vtkCGNSReader",
    ".case": "vtkIOEnSight.vtkGenericEnSightReader",
    ".encas": "vtkIOEnSight.vtkGenericEnSightReader",
    ".foam": "vtkIOGeometry.vtkOpenFOAMReader",
}
ALIGNMENT = 64
_LEGACY_KINDS = ("Scalars", "ColorScalars", "Normals", "TCoords", "Vectors", "Fields", "Tensors")


def read(path, wanted, sizes, part, said):
    """Return a description of the mesh in `path`, and its arrays as (place, name, array).

    Only arrays in `wanted` (all if None) are read. `sizes` measures the cells of a mesh that is not
    a surface of polygons. `part` is None for formats of one mesh, of others the name of a part, or
    empty for all of the highest dimension. ``said()`` returns VTK's complaints.
    """
    module, name = READERS[os.path.splitext(path)[1].lower()].split(".")
    reader = getattr(import_module(f"vtkmodules.{module}"), name)()
    getattr(reader, "SetFileName" if hasattr(reader, "SetFileName") else "SetCaseFileName")(path)
    present = mesh = None
    if part is not None:
        mesh = _joined_parts(reader, part)
    elif reader.IsA("vtkDataSetReader"):
        _end_with_a_line(reader, path)
        for kind in _LEGACY_KINDS:
            getattr(reader, f"ReadAll{kind}On")()
    elif reader.IsA("vtkXMLReader"):
        reader.UpdateInformation()
        if said():
            return {"error": said()}, []
        present = _select(reader, wanted)
    if mesh is None:
        reader.Update()
        mesh = reader.GetOutputDataObject(0)
    if said() or reader.GetErrorCode():
        return {"error": said() or f"VTK error {reader.GetErrorCode()}"}, []
    head = {"kind": mesh.GetClassName().removeprefix("vtk"), "n_cells": mesh.GetNumberOfCells()}
    if not mesh.IsA("vtkPointSet") and not mesh.IsA("vtkCartesianGrid"):
        return head, []
    polygons = mesh.GetPolys() if mesh.IsA("vtkPolyData") else None
    if polygons is not None and 0 < polygons.GetNumberOfCells() == head["n_cells"]:
        arrays = _cell_array(polygons)
    else:
        mesh = _unstructured(mesh)
        arrays = [] if mesh.GetNumberOfCells() == 0 else _cell_array(mesh.GetCells())
        if arrays:
            types = vtk_to_numpy(mesh.GetCellTypes())
            # Faces of polyhedra are not handed on: their points make a convex cell.
            arrays.append((None, "types", np.where(types == 42, types.dtype.type(41), types)))
        if arrays and sizes:
            arrays.append((None, "sizes", _cell_sizes(mesh)))
    if mesh.GetPoints() is not None:
        arrays.append((None, "points", vtk_to_numpy(mesh.GetPoints().GetData())))
    # Readers of parts leave notes of their own as field data.
    for place in ("cell", "point") if part is not None else ("cell", "point", "field"):
        arrays += _attributes(mesh, place)
    head["present"] = present or {
        place: [n for p, n, _ in arrays if p == place] for place in ("cell", "point")
    }
    return head, arrays


def _joined_parts(reader, part):
    """Return the last time of a file with parts as one mesh: the named one, or the solid ones."""
    from vtkmodules.vtkCommonExecutionModel import vtkStreamingDemandDrivenPipeline

    if hasattr(reader, "CreateCellToPointOff"):
        reader.CreateCellToPointOff()
    reader.UpdateInformation()
    for kind in ("Bases", "CellArrays", "PointArrays", *(["PatchArrays"] if part else [])):
        getattr(reader, f"EnableAll{kind}", lambda: None)()
    times = reader.GetOutputInformation(0).Get(vtkStreamingDemandDrivenPipeline.TIME_STEPS())
    reader.UpdateTimeStep(times[-1]) if times else reader.Update()
    parts = [(n, p) for n, p in _parts(reader.GetOutputDataObject(0), "") if p.GetNumberOfCells()]
    if not parts:
        raise ValueError("it holds no part with cells")
    highest = max(p.GetCell(0).GetCellDimension() for _, p in parts)
    if part in ("", "interior"):
        chosen = [p for _, p in parts if p.GetCell(0).GetCellDimension() == highest]
    else:
        chosen = [p for name, p in parts if name == part]
    if not chosen:
        listed = ", ".join(dict.fromkeys(name for name, _ in parts))
        raise ValueError(f"it has no part {part!r}; data.reader.boundary can be one of {listed}")
    return chosen[0] if len(chosen) == 1 else _unstructured(*chosen)


def _parts(data, name):
    """Return the meshes in a tree of blocks with their names."""
    if data is None or not data.IsA("vtkMultiBlockDataSet"):
        yield from [] if data is None else [(name, data)]
        return
    for i in range(data.GetNumberOfBlocks()):
        told = data.GetMetaData(i) if data.HasMetaData(i) else None
        yield from _parts(data.GetBlock(i), text(told.Get(data.NAME())) if told else name)


def _cell_array(cells):
    """Return the vertex numbers of cells one after the other, and where each cell begins."""
    return [
        (None, "connectivity", vtk_to_numpy(cells.GetConnectivityArray())),
        (None, "offsets", vtk_to_numpy(cells.GetOffsetsArray())),
    ]


def _unstructured(*meshes):
    """Return meshes as one unstructured grid, points and cells in their order."""
    if len(meshes) == 1 and meshes[0].IsA("vtkUnstructuredGrid"):
        return meshes[0]
    from vtkmodules.vtkFiltersCore import vtkAppendFilter

    joined = vtkAppendFilter()
    for mesh in meshes:
        joined.AddInputData(mesh)
    joined.Update()
    return joined.GetOutput()


def _cell_sizes(mesh):
    """Return the volume of each cell, or the area or length of one that is flat."""
    from vtkmodules.vtkFiltersVerdict import vtkCellSizeFilter

    measured = vtkCellSizeFilter()
    measured.SetInputData(mesh)
    measured.ComputeVertexCountOff()
    for measure in ("Length", "Area", "Volume"):
        getattr(measured, f"Set{measure}ArrayName")(f"flarepp {measure}")
    measured.Update()
    data = measured.GetOutput().GetCellData()
    parts = (data.GetArray(f"flarepp {measure}") for measure in ("Length", "Area", "Volume"))
    # A cell has one of the three, the others are 0; the volume of an inverted cell is negative.
    return sum(np.abs(vtk_to_numpy(part)) for part in parts)


def _end_with_a_line(reader, path):
    """Append a newline to a text file: without it VTK repeats the last number of a cut file."""
    with open(path, "rb") as file:
        if file.read(1024).split(b"\n", 3)[2:3] != [b"ASCII"]:
            return
        file.seek(0)
        content = file.read() + b"\n"
    reader.ReadFromInputStringOn()
    reader.SetBinaryInputString(content, len(content))


def _select(reader, wanted):
    """Enable the wanted arrays and return the names of all, by place."""
    present = {}
    for place in ("cell", "point"):
        chosen = getattr(reader, f"Get{place.title()}DataArraySelection")()
        present[place] = [chosen.GetArrayName(i) for i in range(chosen.GetNumberOfArrays())]
        for name in present[place]:
            if wanted is not None and name not in wanted:
                chosen.DisableArray(name)
    return present


def _attributes(mesh, place):
    """Return the named arrays of numbers of one place."""
    data = getattr(mesh, f"Get{place.title()}Data")()
    found = [data.GetArray(i) for i in range(data.GetNumberOfArrays())]
    return [
        (place, text(array.GetName()), vtk_to_numpy(array))
        for array in found
        if array is not None and array.GetName()
    ]


def text(found):
    """Return a string of VTK, which is bytes if it is not UTF-8, as text."""
    return found.decode("latin-1") if isinstance(found, bytes) else found


def complaints(window):
    """Return VTK's errors, and its warnings that tell of one, without source lines."""
    output = text(window.GetOutput())
    parts = re.split(r"^((?:ERROR|(?:Generic )?Warning): In .*)\n", output, flags=re.MULTILINE)
    told = [
        " ".join(said.split())
        for head, said in zip(parts[1::2], parts[2::2], strict=True)
        if head.startswith("ERROR") or "rror" in said
    ]
    return "; ".join(dict.fromkeys(re.sub(r" ?\(0x[0-9a-f]+\)", "", said) for said in told))[:500]


def limit_memory(available):
    """Make a claim of 10^12 points fail here instead of filling the machine."""
    if sys.platform != "linux":
        return
    import resource

    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = used + available
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def store(arrays, file):
    """Write arrays to a file one after the other, and return what each is and where it begins."""
    listed, end = [], 0
    for place, name, array in arrays:
        begin = -(-end // ALIGNMENT) * ALIGNMENT
        file.write(b"\0" * (begin - end))
        if array.size:
            file.write(memoryview(np.ascontiguousarray(array)).cast("B"))
        end = begin + array.nbytes
        listed.append((place, name, array.dtype.str, array.shape, begin))
    return listed


def serve(requests, replies):
    """Answer requests until there are no more."""
    while True:
        line, files = b"", []
        while not line.endswith(b"\n"):
            part, received, _, _ = socket.recv_fds(requests, 1 << 16, 1)
            if not part:
                return
            line, files = line + part, files + received
        request = json.loads(line)
        limit_memory(request["memory"])
        window = vtkStringOutputWindow()
        vtkOutputWindow.SetInstance(window)
        with os.fdopen(files[0], "wb") as file:
            try:
                asked = (request[key] for key in ("path", "arrays", "sizes", "part"))
                head, arrays = read(*asked, partial(complaints, window))
                head["arrays"] = store(arrays, file)
            except Exception as error:
                head = {"error": f"{type(error).__name__}: {error}", "arrays": []}
            arrays = None  # free the memory before the next file
        replies.write(json.dumps(head).encode() + b"\n")
        replies.flush()


if __name__ == "__main__":
    # What VTK prints must not get among the replies.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(socket.socket(fileno=0), answers)
