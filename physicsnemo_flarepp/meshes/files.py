"""Mesh files: read to checked arrays, written whole or not at all.

VTK reads them in a process of its own (:mod:`.vtk_calls`), for a damaged file can end the process
that parses it. What it hands over is checked before anything uses it: a vertex number outside the
points would read other memory, or, if negative, count from the end.

Surfaces are read from the formats :data:`SUFFIXES`. What is written is VTK's XML, of which the
surfaces (``.vtp``) are read again.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..files import damaged, whole_file
from .declared_sizes import check_declared_size
from .polygons import ASSOCIATIONS, PolygonMesh, check_vertices
from .vtk_calls import ask_vtk

# pyvista takes a second that reading arrays and generating data do not need.
if TYPE_CHECKING:
    import pyvista as pv

SUFFIXES = (".vtp", ".stl", ".ply", ".obj", ".vtk")
_WRITTEN = {"PolyData": ".vtp", "StructuredGrid": ".vts", "UnstructuredGrid": ".vtu"}


def read_polygons(
    path: str | Path, *, arrays: Sequence[str] | None = None, places: Sequence[str] = ASSOCIATIONS
) -> PolygonMesh:
    """Return the polygons in a mesh file, whatever state the file is in, or an error naming it.

    Parameters
    ----------
    path : str or Path
        ``.vtp``, ``.stl``, ``.ply``, ``.obj`` or ``.vtk``.
    arrays : Sequence[str], optional
        Names of the arrays to read of a ``.vtp`` file; by default all arrays of numbers.
    places : Sequence[str], optional
        Where to read them: ``cell``, ``point``, or both.

    Raises
    ------
    ValueError
        If the file is damaged or holds anything but polygons.
    """
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"{path} must end in one of {', '.join(SUFFIXES)}; convert it first")
    if not path.is_file():
        raise FileNotFoundError(f"surface {path} does not exist; give the path of a mesh file")
    with path.open("rb"):  # say here if it may not be read
        pass
    try:
        check_declared_size(path)
        head, found = ask_vtk(path, arrays, places)
        if "error" in head:
            raise ValueError(head["error"])
    except ValueError as error:
        raise damaged(path, error) from error
    if head["kind"] != "PolyData":
        raise ValueError(
            f"{path} holds a {head['kind']}, expected a surface of polygons; extract it, "
            "for example with pyvista's extract_surface()"
        )
    n_points = len(found.get((None, "points"), ()))
    if head["n_polygons"] == 0 or head["n_polygons"] != head["n_cells"]:
        raise ValueError(
            f"{path} has {head['n_polygons']} polygons among {head['n_cells']} cells and "
            f"{n_points} points; expected a surface of polygons only. If it is not empty "
            "or damaged, remove lines and vertices, and turn strips into triangles, for example "
            "with pyvista's triangulate()"
        )
    try:
        _check(head, found, n_points)
    except ValueError as error:
        raise damaged(path, error) from error
    data = {
        place: {name: array for (at, name), array in found.items() if at == place}
        for place in (*ASSOCIATIONS, "field")
    }
    geometry = (found[None, name] for name in ("points", "connectivity", "offsets"))
    return PolygonMesh(path, *geometry, data, head["present"])


def read_surface(path: str | Path, *, scale: float = 1.0) -> "pv.PolyData":
    """Return the surface in a ``.vtp``, ``.stl``, ``.ply``, ``.obj`` or ``.vtk`` file.

    Parameters
    ----------
    path : str or Path
        The file.
    scale : float, optional
        Factor on the coordinates, such as 0.001 for millimetres.
    """
    import pyvista as pv

    if not (np.isfinite(scale) and scale > 0):
        raise ValueError(f"scale is {scale}, expected a positive number such as 0.001")
    raw = read_polygons(path)
    sizes = np.diff(raw.offsets)
    if (sizes < 3).any():
        raise ValueError(
            f"{path} has {(sizes < 3).sum()} cells with fewer than 3 vertices, the first at "
            f"{int(np.argmax(sizes < 3))}; remove them, for example with pyvista's clean()"
        )
    bad = np.flatnonzero(~np.isfinite(raw.points).all(axis=1))
    if len(bad):
        raise ValueError(
            f"{path} has {len(bad)} points with NaN or infinite coordinates, the first at "
            f"{bad[0]}; repair the file"
        )
    surface = pv.PolyData()
    surface.points = raw.points if scale == 1.0 else raw.points * scale
    surface.SetPolys(pv.CellArray.from_arrays(raw.offsets, raw.connectivity))
    for place, target in (
        ("cell", surface.cell_data),
        ("point", surface.point_data),
        ("field", surface.field_data),
    ):
        for name, array in raw.data[place].items():
            target[name] = array
    return surface


def polygon_mesh(surface: "pv.PolyData", source: str | Path) -> PolygonMesh:
    """Return a pyvista surface as arrays, which share its memory.

    Parameters
    ----------
    surface : pyvista.PolyData
        Polygons only.
    source : str or Path
        Name for messages.
    """
    from vtkmodules.util.numpy_support import vtk_to_numpy

    polygons = surface.GetPolys()
    return PolygonMesh(
        Path(source),
        np.asarray(surface.points),
        vtk_to_numpy(polygons.GetConnectivityArray()),
        vtk_to_numpy(polygons.GetOffsetsArray()),
        {
            "cell": {name: np.asarray(surface.cell_data[name]) for name in surface.cell_data},
            "point": {name: np.asarray(surface.point_data[name]) for name in surface.point_data},
        },
    )


def mesh_suffix(mesh: "pv.DataSet") -> str:
    """Return the suffix of the file format of a mesh: ``.vtp``, ``.vts`` or ``.vtu``."""
    for kind, suffix in _WRITTEN.items():
        if mesh.IsA(f"vtk{kind}"):
            return suffix
    raise TypeError(f"mesh is a {type(mesh).__name__}, expected one of {', '.join(_WRITTEN)}")


def save_mesh(mesh: "pv.DataSet", path: str | Path) -> None:
    """Write a mesh as a VTK XML file that is either complete or not there.

    Parameters
    ----------
    mesh : pyvista.DataSet
        A surface or points (``.vtp``), a structured (``.vts``) or an unstructured grid (``.vtu``).
    path : str or Path
        With the suffix of the mesh's format. A file of that name stays whole until the new one
        is complete.
    """
    from vtkmodules import vtkIOXML

    path = Path(path)
    suffix = mesh_suffix(mesh)
    if path.suffix != suffix:
        raise ValueError(
            f"output is {path}, but a {type(mesh).__name__} is written to a file that ends in "
            f"{suffix}; name it so"
        )
    if not path.parent.is_dir():
        raise FileNotFoundError(f"directory {path.parent} of the output does not exist; make it")
    writers = {
        ".vtp": vtkIOXML.vtkXMLPolyDataWriter,
        ".vts": vtkIOXML.vtkXMLStructuredGridWriter,
        ".vtu": vtkIOXML.vtkXMLUnstructuredGridWriter,
    }
    writer = writers[suffix]()
    errors: list[str] = []
    # VTK tells of a full disk through this event and the error code, not by an exception.
    writer.AddObserver("ErrorEvent", lambda *_: errors.append("VTK reported an error"))
    writer.SetInputData(mesh)
    with whole_file(path) as draft:
        writer.SetFileName(str(draft))
        if writer.Write() != 1 or writer.GetErrorCode() or errors:
            raise OSError(
                f"{path} could not be written (VTK error {writer.GetErrorCode()}); check that "
                "there is space and that the folder is writable"
            )


def _check(head: Mapping, found: Mapping[tuple, np.ndarray], n_points: int) -> None:
    """Raise ValueError unless polygons and arrays fit together."""
    if n_points == 0 or found[None, "points"].shape != (n_points, 3):
        raise ValueError("it has polygons but no points")
    connectivity, offsets = found[None, "connectivity"], found[None, "offsets"]
    if (
        len(offsets) != head["n_polygons"] + 1
        or offsets[0] != 0
        or offsets[-1] != len(connectivity)
        or (np.diff(offsets) < 0).any()
    ):
        raise ValueError(
            f"the offsets of its {head['n_polygons']} polygons do not go up from 0 to the "
            f"{len(connectivity)} vertices listed"
        )
    check_vertices(connectivity, n_points)
    for (place, name), array in found.items():
        rows = {"cell": head["n_cells"], "point": n_points}.get(place, len(array))
        if len(array) != rows:
            raise ValueError(f"{place} array {name} has {len(array)} rows, expected {rows}")
