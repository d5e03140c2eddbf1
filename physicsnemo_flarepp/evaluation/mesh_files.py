"""Reading surfaces of any format, and writing meshes that are complete or not there."""

import os
from pathlib import Path

import numpy as np
import pyvista as pv
from vtkmodules.util.numpy_support import vtk_to_numpy
from vtkmodules.vtkIOXML import (
    vtkXMLPolyDataWriter,
    vtkXMLStructuredGridWriter,
    vtkXMLUnstructuredGridWriter,
)

from ..datapipes.checks import reading
from ..datapipes.readers.meshes import PolygonMesh

SUFFIXES = (".vtp", ".stl", ".ply", ".obj", ".vtk")
_WRITERS = {
    pv.PolyData: (".vtp", vtkXMLPolyDataWriter),
    pv.StructuredGrid: (".vts", vtkXMLStructuredGridWriter),
    pv.UnstructuredGrid: (".vtu", vtkXMLUnstructuredGridWriter),
}


def read_surface(path: str | Path, *, scale: float = 1.0) -> pv.PolyData:
    """Return the surface in a ``.vtp``, ``.stl``, ``.ply``, ``.obj`` or ``.vtk`` file.

    Parameters
    ----------
    path : str or Path
        The file.
    scale : float, optional
        Factor on the coordinates, such as 0.001 for millimetres.
    """
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"{path} must end in one of {', '.join(SUFFIXES)}; convert it first")
    if not path.is_file():
        raise FileNotFoundError(f"surface {path} does not exist; give the path of a mesh file")
    if not (np.isfinite(scale) and scale > 0):
        raise ValueError(f"scale is {scale}, expected a positive number such as 0.001")
    with reading(path):
        # The format is that of this name, whatever a link leads to: others refer to more files.
        surface = pv.read(path, force_ext=path.suffix.lower())
    if not isinstance(surface, pv.PolyData):
        raise ValueError(
            f"{path} holds a {type(surface).__name__}, expected a surface of polygons; extract it, "
            "for example with pyvista's extract_surface()"
        )
    _check_polygons(path, surface)
    if scale != 1.0:
        surface.points = surface.points * scale
    return surface


def _check_polygons(path: Path, surface: pv.PolyData) -> None:
    n_polygons = surface.GetPolys().GetNumberOfCells()
    if n_polygons == 0 or n_polygons != surface.n_cells:
        raise ValueError(
            f"{path} has {n_polygons} polygons among {surface.n_cells} cells and "
            f"{surface.n_points} points; expected a surface of polygons only. If it is not empty "
            "or damaged, remove lines and vertices, and turn strips into triangles, for example "
            "with pyvista's triangulate()"
        )
    sizes = np.diff(vtk_to_numpy(surface.GetPolys().GetOffsetsArray()))
    if (sizes < 3).any():
        raise ValueError(
            f"{path} has {(sizes < 3).sum()} cells with fewer than 3 vertices, the first at "
            f"{int(np.argmax(sizes < 3))}; remove them, for example with pyvista's clean()"
        )
    bad = np.flatnonzero(~np.isfinite(surface.points).all(axis=1))
    if len(bad):
        raise ValueError(
            f"{path} has {len(bad)} points with NaN or infinite coordinates, the first at "
            f"{bad[0]}; repair the file"
        )


def polygon_mesh(surface: pv.PolyData, source: str | Path) -> PolygonMesh:
    """Return a pyvista surface as the arrays that the readers work on.

    Parameters
    ----------
    surface : pyvista.PolyData
        Polygons only.
    source : str or Path
        Name for messages.
    """
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


def mesh_suffix(mesh: pv.DataSet) -> str:
    """Return the suffix of the file format of a mesh: ``.vtp``, ``.vts`` or ``.vtu``."""
    return _WRITERS[type(mesh)][0]


def save_mesh(mesh: pv.DataSet, path: str | Path) -> None:
    """Write a mesh as a VTK XML file that is either complete or not there.

    Parameters
    ----------
    mesh : pyvista.DataSet
        A surface or points (``.vtp``), a structured (``.vts``) or an unstructured grid (``.vtu``).
    path : str or Path
        With the suffix of the mesh's format. A file of that name stays whole until the new one
        is complete.
    """
    path = Path(path)
    suffix, writer_class = _WRITERS[type(mesh)]
    if path.suffix != suffix:
        raise ValueError(
            f"output is {path}, but a {type(mesh).__name__} is written to a file that ends in "
            f"{suffix}; name it so"
        )
    if not path.parent.is_dir():
        raise FileNotFoundError(f"directory {path.parent} of the output does not exist; make it")
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    writer = writer_class()
    errors: list[str] = []
    # VTK tells of a full disk through this event and the error code, not by an exception.
    writer.AddObserver("ErrorEvent", lambda *_: errors.append("VTK reported an error"))
    writer.SetFileName(str(partial))
    writer.SetInputData(mesh)
    try:
        if writer.Write() != 1 or writer.GetErrorCode() or errors:
            raise OSError(
                f"{path} could not be written (VTK error {writer.GetErrorCode()}); check that "
                "there is space and that the folder is writable"
            )
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
