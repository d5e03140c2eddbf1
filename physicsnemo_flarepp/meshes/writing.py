"""Surfaces as the arrays of the readers, and meshes written complete or not at all."""

from pathlib import Path

import numpy as np
import pyvista as pv
from vtkmodules.util.numpy_support import vtk_to_numpy
from vtkmodules.vtkIOXML import (
    vtkXMLPolyDataWriter,
    vtkXMLStructuredGridWriter,
    vtkXMLUnstructuredGridWriter,
)

from ..datapipes.readers.meshes import PolygonMesh
from ..files import whole_file

_WRITERS = {
    pv.PolyData: (".vtp", vtkXMLPolyDataWriter),
    pv.StructuredGrid: (".vts", vtkXMLStructuredGridWriter),
    pv.UnstructuredGrid: (".vtu", vtkXMLUnstructuredGridWriter),
}


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
    writer = writer_class()
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
