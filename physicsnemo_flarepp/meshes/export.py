"""Meshes written for ParaView: predicted fields under fixed names, files whole or not at all.

The arrays of a field ``p`` are ``p`` (the target), ``p_predicted`` and ``p_error`` (prediction
minus target). With several predictions of one case these are ``p_predicted_<name>`` and
``p_error_<name>``.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from ..files import whole_file
from ..texts import printable

if TYPE_CHECKING:
    import pyvista as pv

_SUFFIXES = {"PolyData": ".vtp", "StructuredGrid": ".vts", "UnstructuredGrid": ".vtu"}
_MARKS = str.maketrans(dict.fromkeys('<>&"', "_"))


def prediction_arrays(
    widths: Mapping[str, int],
    predictions: Mapping[str, Float[np.ndarray, "N O"]],
    target: Float[np.ndarray, "N O"] | None = None,
) -> dict[str, Float[np.ndarray, "N *channels"]]:
    """Return targets, predictions and errors of fields by the names they have in files.

    `widths` gives the channels of each field; `predictions` are by the name of the run.
    """
    arrays = {}
    if target is not None:
        arrays |= _by_field(widths, target, "")
    for name, values in predictions.items():
        end = f"_{name}" if len(predictions) > 1 else ""
        arrays |= _by_field(widths, values, f"_predicted{end}")
        if target is not None:
            arrays |= _by_field(widths, values - target, f"_error{end}")
    return arrays


def _by_field(widths: Mapping[str, int], values: np.ndarray, end: str) -> dict[str, np.ndarray]:
    if values.ndim != 2 or values.shape[1] != sum(widths.values()):
        width = sum(widths.values())
        raise ValueError(f"shape {values.shape}, expected (N, {width}) for the fields {widths}")
    columns = np.split(values, np.cumsum(list(widths.values()))[:-1], axis=1)
    return {
        _array_name(field) + end: column[:, 0] if widths[field] == 1 else column
        for field, column in zip(widths, columns, strict=True)
    }


def _array_name(name: str) -> str:
    """Return a name that VTK's XML files can hold: they do not escape marks of XML."""
    return printable(name).translate(_MARKS)


def add_arrays(
    mesh: "pv.DataSet", arrays: Mapping[str, Float[np.ndarray, "N *channels"]], association: str
) -> "pv.DataSet":
    """Add arrays to the ``point`` or ``cell`` data of a mesh, in place, and return the mesh."""
    cells, points = (mesh.n_cells, mesh.cell_data), (mesh.n_points, mesh.point_data)
    n, data = {"point": points, "cell": cells}[association]
    for name, values in arrays.items():
        if len(values) != n:
            raise ValueError(
                f"array {name!r} has {len(values)} values for a mesh of {n} {association}s"
            )
        data[_array_name(name)] = np.ascontiguousarray(values)
    return mesh


def _format(mesh: "pv.DataSet") -> tuple[str, str]:
    """Return VTK's name of the kind of a mesh, and the suffix of its files."""
    for kind, suffix in _SUFFIXES.items():
        if mesh.IsA(f"vtk{kind}"):
            return kind, suffix
    raise TypeError(f"mesh is a {type(mesh).__name__}, expected one of {', '.join(_SUFFIXES)}")


def mesh_suffix(mesh: "pv.DataSet") -> str:
    """Return the suffix of the file format of a mesh: ``.vtp``, ``.vts`` or ``.vtu``."""
    return _format(mesh)[1]


def save_mesh(mesh: "pv.DataSet", path: str | Path) -> None:
    """Write a mesh as a VTK XML file that is either complete or not there.

    `path` must have the suffix of the mesh's format: ``.vtp`` for a surface or points, ``.vts`` for
    a structured and ``.vtu`` for an unstructured grid.
    """
    from vtkmodules import vtkIOXML

    path = Path(path)
    kind, suffix = _format(mesh)
    if path.suffix != suffix:
        raise ValueError(f"output is {path}, but a {type(mesh).__name__} file ends in {suffix}")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"directory {path.parent} of the output does not exist; make it")
    writer = getattr(vtkIOXML, f"vtkXML{kind}Writer")()
    errors: list[str] = []
    # VTK tells of a full disk through this event and the error code, not by an exception.
    writer.AddObserver("ErrorEvent", lambda *_: errors.append("VTK reported an error"))
    writer.SetInputData(mesh)
    with whole_file(path) as draft:
        writer.SetFileName(str(draft))
        if writer.Write() != 1 or writer.GetErrorCode() or errors:
            raise OSError(
                f"{path} could not be written (VTK error {writer.GetErrorCode()}); is there space, "
                "and is the folder writable?"
            )


def export_mesh(mesh: "pv.DataSet", directory: str | Path, stem: str) -> Path:
    """Write a mesh to ``<directory>/<stem>`` plus its suffix, and return the path."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{stem}{mesh_suffix(mesh)}"
    save_mesh(mesh, path)
    return path
