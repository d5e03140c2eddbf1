"""Mesh files: read to checked arrays, written whole or not at all.

VTK reads them in a process of its own (:mod:`.vtk_calls`), for a damaged file can end the process
that parses it. What it hands over is checked before anything uses it: a vertex number outside the
points would read other memory, or, if negative, count from the end.

Meshes are read from the formats :data:`SUFFIXES`: as a :class:`PolygonMesh` if all cells are
polygons, whatever the format calls them, else as a :class:`CellMesh`. What is written is VTK's XML.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..files import damaged, whole_file
from .cells import POLYGON_TYPES, CellMesh, pixels_to_quads
from .declared_sizes import check_declared_size
from .polygons import ASSOCIATIONS, PolygonMesh, check_vertices
from .vtk_calls import ask_vtk

# pyvista takes a second that reading arrays and generating data do not need.
if TYPE_CHECKING:
    import pyvista as pv

SUFFIXES = (".vtp", ".stl", ".ply", ".obj", ".vtk", ".vtu", ".vts", ".vtr", ".vti")
_WRITTEN = {"PolyData": ".vtp", "StructuredGrid": ".vts", "UnstructuredGrid": ".vtu"}


def read_mesh(
    path: str | Path,
    *,
    arrays: Sequence[str] | None = None,
    places: Sequence[str] = ASSOCIATIONS,
    sizes: bool = False,
) -> PolygonMesh | CellMesh:
    """Return the mesh in a file, whatever state the file is in, or an error naming it.

    Parameters
    ----------
    path : str or Path
        One of the formats :data:`SUFFIXES`.
    arrays : Sequence[str], optional
        Names of the arrays to read of VTK's XML files; by default all arrays of numbers.
    places : Sequence[str], optional
        Where to read them: ``cell``, ``point``, or both.
    sizes : bool, optional
        Have VTK measure the cells of a mesh that is no surface of polygons.

    Returns
    -------
    PolygonMesh or CellMesh
        A surface of polygons, or a mesh of other cells or of points alone.

    Raises
    ------
    ValueError
        If the file is damaged or holds no mesh.
    """
    path = Path(path)
    head, found = _read_checked(path, arrays, places, sizes)
    data = {
        place: {name: array for (at, name), array in found.items() if at == place}
        for place in (*ASSOCIATIONS, "field")
    }
    points, connectivity, offsets = (
        found[None, name] for name in ("points", "connectivity", "offsets")
    )
    types = found.get((None, "types"))
    if types is None:
        return PolygonMesh(path, points, connectivity, offsets, data, head["present"])
    if len(types) and np.isin(types, POLYGON_TYPES).all():
        connectivity = pixels_to_quads(connectivity, offsets, types)
        return PolygonMesh(path, points, connectivity, offsets, data, head["present"])
    return CellMesh(
        path,
        points,
        connectivity,
        offsets,
        types,
        data,
        head["present"],
        found.get((None, "sizes")),
        head["kind"],
    )


def _read_checked(
    path: Path, arrays: Sequence[str] | None, places: Sequence[str], sizes: bool
) -> tuple[dict, dict[tuple, np.ndarray]]:
    """Return what VTK says of a mesh file, and its arrays by place and name, checked."""
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"{path} must end in one of {', '.join(SUFFIXES)}; convert it first")
    if not path.is_file():
        raise FileNotFoundError(f"mesh {path} does not exist; give the path of a mesh file")
    with path.open("rb"):  # say here if it may not be read
        pass
    try:
        check_declared_size(path)
        head, found = ask_vtk(path, arrays, places, sizes)
        if "error" in head:
            raise ValueError(head["error"])
        if "present" not in head:
            raise ValueError(f"it holds a {head['kind']}, which is no mesh of points and cells")
        none = np.zeros(0, dtype=np.int64)
        for name in ("connectivity", "types"):
            if head["n_cells"] == 0:
                found.setdefault((None, name), none)
        found.setdefault((None, "offsets"), np.zeros(1, dtype=np.int64))
        found.setdefault((None, "points"), np.zeros((0, 3)))
        _check(head, found)
    except ValueError as error:
        raise damaged(path, error) from error
    return head, found


def read_polygons(
    path: str | Path, *, arrays: Sequence[str] | None = None, places: Sequence[str] = ASSOCIATIONS
) -> PolygonMesh:
    """Return the surface in a mesh file; see :func:`read_mesh`.

    Raises
    ------
    ValueError
        If the file is damaged or holds anything but polygons.
    """
    mesh = read_mesh(path, arrays=arrays, places=places)
    if isinstance(mesh, PolygonMesh):
        return mesh
    if mesh.kind != "PolyData":
        raise ValueError(
            f"{path} holds a {mesh.kind} with cells that are no polygons, expected a surface; "
            "extract it, for example with pyvista's extract_surface()"
        )
    n_polygons = int(np.isin(mesh.types, POLYGON_TYPES).sum())
    raise ValueError(
        f"{path} has {n_polygons} polygons among {mesh.n_cells} cells and "
        f"{len(mesh.points)} points; expected a surface of polygons only. If it is not empty "
        "or damaged, remove lines and vertices, and turn strips into triangles, for example "
        "with pyvista's triangulate()"
    )


def read_surface(path: str | Path, *, scale: float = 1.0) -> "pv.PolyData":
    """Return the surface in a mesh file of one of the formats :data:`SUFFIXES`.

    Parameters
    ----------
    path : str or Path
        The file.
    scale : float, optional
        Factor on the coordinates, such as 0.001 for millimetres.
    """
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
    return to_pyvista(replace(raw, points=raw.points if scale == 1.0 else raw.points * scale))


def to_pyvista(mesh: PolygonMesh | CellMesh) -> "pv.PolyData | pv.UnstructuredGrid":
    """Return a mesh with its data as pyvista has it; points without cells as vertices.

    Parameters
    ----------
    mesh : PolygonMesh or CellMesh
        As :func:`read_mesh` gives it.
    """
    import pyvista as pv
    from vtkmodules.util.numpy_support import numpy_to_vtk

    if isinstance(mesh, PolygonMesh):
        made = pv.PolyData()
        made.points = mesh.points
        made.SetPolys(pv.CellArray.from_arrays(mesh.offsets, mesh.connectivity))
    elif mesh.n_cells == 0:
        made = pv.PolyData(np.asarray(mesh.points))
    else:
        made = pv.UnstructuredGrid()
        made.points = mesh.points
        cells = pv.CellArray.from_arrays(mesh.offsets, mesh.connectivity)
        types = np.ascontiguousarray(mesh.types, dtype=np.uint8)
        made.SetCells(numpy_to_vtk(types, deep=True), cells)
    targets = {"cell": made.cell_data, "point": made.point_data, "field": made.field_data}
    for place, target in targets.items():
        for name, array in mesh.data.get(place, {}).items():
            target[name] = np.asarray(array)
    return made


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
            "field": {
                name: np.asarray(array)
                for name, array in surface.field_data.items()
                if np.asarray(array).dtype.kind in "fiub"
            },
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


def _check(head: Mapping, found: Mapping[tuple, np.ndarray]) -> None:
    """Raise ValueError unless cells and arrays fit together."""
    points, n_cells = found[None, "points"], head["n_cells"]
    if points.shape != (len(points), 3) or (n_cells and len(points) == 0):
        raise ValueError("it has cells but no points")
    connectivity, offsets = found[None, "connectivity"], found[None, "offsets"]
    if (
        len(offsets) != n_cells + 1
        or offsets[0] != 0
        or offsets[-1] != len(connectivity)
        or (np.diff(offsets) < 0).any()
    ):
        raise ValueError(
            f"the offsets of its {n_cells} cells do not go up from 0 to the "
            f"{len(connectivity)} vertices listed"
        )
    check_vertices(connectivity, len(points))
    for (place, name), array in found.items():
        rows = {"cell": n_cells, "point": len(points)}.get(place, len(array))
        if name in ("types", "sizes") and place is None:
            rows = n_cells
        if len(array) != rows:
            raise ValueError(f"{place} array {name} has {len(array)} rows, expected {rows}")
