"""Predicted fields on meshes for ParaView: one naming of arrays, one way to a file.

The arrays of a field ``p`` are ``p`` (the target), ``p_predicted`` and ``p_error`` (prediction
minus target). With several predictions of one case these are ``p_predicted_<name>`` and
``p_error_<name>``.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyvista as pv
from jaxtyping import Float

from .files import mesh_suffix, save_mesh


def prediction_arrays(
    widths: Mapping[str, int],
    predictions: Mapping[str, Float[np.ndarray, "N O"]],
    target: Float[np.ndarray, "N O"] | None = None,
) -> dict[str, Float[np.ndarray, "N *channels"]]:
    """Return targets, predictions and errors of fields by the names they have in files.

    Parameters
    ----------
    widths : Mapping[str, int]
        Channels of each field, in the order of the O columns.
    predictions : Mapping[str, numpy.ndarray]
        By the name of the run; the name of a single one does not matter.
    target : numpy.ndarray, optional
        Without it there are no targets and no errors.

    Examples
    --------
    >>> arrays = prediction_arrays({"p": 1}, {"a": np.ones((2, 1))}, np.zeros((2, 1)))
    >>> {name: values.tolist() for name, values in arrays.items()}
    {'p': [0.0, 0.0], 'p_predicted': [1.0, 1.0], 'p_error': [1.0, 1.0]}
    >>> list(prediction_arrays({"p": 1}, {"a": np.ones((2, 1)), "b": np.ones((2, 1))}))
    ['p_predicted_a', 'p_predicted_b']
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
        raise ValueError(
            f"values have shape {values.shape}, expected (N, {sum(widths.values())}) for the "
            f"fields {dict(widths)}"
        )
    columns = np.split(values, np.cumsum(list(widths.values()))[:-1], axis=1)
    return {
        field + end: column[:, 0] if widths[field] == 1 else column
        for field, column in zip(widths, columns, strict=True)
    }


def add_arrays(
    mesh: pv.DataSet, arrays: Mapping[str, Float[np.ndarray, "N *channels"]], association: str
) -> pv.DataSet:
    """Return the mesh with further data; what it has of the same name is replaced.

    Parameters
    ----------
    mesh : pyvista.DataSet
        Changed in place.
    arrays : Mapping[str, numpy.ndarray]
        In the order of its points or cells.
    association : str
        Whether they belong to its ``point`` or ``cell``.
    """
    n, data = {
        "point": (mesh.n_points, mesh.point_data),
        "cell": (mesh.n_cells, mesh.cell_data),
    }[association]
    for name, values in arrays.items():
        if len(values) != n:
            raise ValueError(
                f"array {name!r} has {len(values)} values for a mesh of {n} {association}s; give "
                "one for each, of the whole case"
            )
        data[name] = np.ascontiguousarray(values)
    return mesh


def export_mesh(mesh: pv.DataSet, directory: str | Path, stem: str) -> Path:
    """Write a mesh with its data and return the file: ``<stem>.vtp``, ``.vts`` or ``.vtu``.

    Parameters
    ----------
    mesh : pyvista.DataSet
        A surface or points, a structured or an unstructured grid.
    directory : str or Path
        Made if there is none.
    stem : str
        Name without the suffix; dots in it are part of the name.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{stem}{mesh_suffix(mesh)}"
    save_mesh(mesh, path)
    return path
