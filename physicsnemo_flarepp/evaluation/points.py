"""Predictions of point sets and grids as meshes: test cases, or points of a file."""

from pathlib import Path

import numpy as np
import pyvista as pv
import torch

from ..datapipes import plot_mesh
from ..datapipes.channels import Channels
from ..files import reading
from .cases import CasePrediction, physical_prediction
from .surfaces import SUFFIX_OF_PREDICTIONS
from .trained_run import Run

SUFFIX_OF_ERRORS = "_error"


def case_mesh(case: CasePrediction) -> pv.DataSet:
    """Return the mesh of a test case with target, prediction and error of each field.

    The arrays are ``<field>``, ``<field>_predicted`` and ``<field>_error`` (prediction minus
    target), and the features the model was given.
    """
    mesh = case.mesh
    data = mesh.cell_data if case.association == "cell" else mesh.point_data
    arrays = {
        "": case.target,
        SUFFIX_OF_PREDICTIONS: case.prediction,
        SUFFIX_OF_ERRORS: case.prediction - case.target,
    }
    for suffix, values in arrays.items():
        _add_fields(data, values, case.channels, suffix)
    for i, name in enumerate(case.feature_names):
        data[name] = case.features[:, i]
    return mesh


def _add_fields(
    data: pv.DataSetAttributes, values: np.ndarray, channels: Channels, suffix: str
) -> None:
    for field in channels.fields:
        column = values[:, channels.columns(field)]
        data[field + suffix] = column[:, 0] if column.shape[1] == 1 else column


def read_points(path: str | Path, channels: Channels) -> dict[str, torch.Tensor]:
    """Return the inputs in a ``.npz`` (coordinates, features, globals) or ``.npy`` file.

    Parameters
    ----------
    path : str or Path
        ``.npz`` with the arrays ``coordinates`` (N, d) and, as in training, ``features`` (N, f)
        and ``globals`` (g,); ``.npy`` with the coordinates alone.
    channels : Channels
        What the model was trained on.
    """
    path = Path(path)
    if path.suffix not in (".npy", ".npz"):
        raise ValueError(f"{path} must end in .npy or .npz")
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; give a file of points")
    with reading(path):
        loaded = np.load(path, allow_pickle=False)
        arrays = {"coordinates": loaded} if path.suffix == ".npy" else dict(loaded)
    names = {"features": channels.feature_names, "globals": channels.global_names}
    widths = {"coordinates": channels.coordinates, **{key: len(n) for key, n in names.items()}}
    sample = {}
    for key, width in widths.items():
        if width == 0:
            continue
        if key not in arrays:
            raise ValueError(
                f"{path} has no array {key!r}, which the model needs"
                f"{f' ({chr(44).join(names[key])})' if key in names else ''}; it has "
                f"{', '.join(arrays)}. Add it to a .npz file"
            )
        values = np.asarray(arrays[key], dtype=np.float32)
        expected = (width,) if key == "globals" else (len(arrays["coordinates"]), width)
        if values.shape != expected:
            raise ValueError(f"{path}: {key} has shape {values.shape}, expected {expected}")
        if not np.isfinite(values).all():
            raise ValueError(f"{path}: {key} holds NaN or infinite values; remove them")
        sample[key] = torch.from_numpy(values)
    return sample


def predict_points(run: Run, path: str | Path, *, progress: bool = True) -> pv.DataSet:
    """Predict the fields of a run at points of a file; see :func:`read_points`.

    Returns
    -------
    pyvista.DataSet
        The grid of the run if there are as many points, else a point cloud, with
        ``<field>_predicted`` as point data in the order of the file.
    """
    channels = run.channels
    sample = read_points(path, channels)
    values = physical_prediction(run, sample, progress=progress).numpy()
    coordinates = sample["coordinates"].numpy()
    whole = channels.grid is not None and len(coordinates) == np.prod(channels.grid)
    mesh = plot_mesh({"grid": channels.grid if whole else None}, coordinates)
    _add_fields(mesh.point_data, values, channels, SUFFIX_OF_PREDICTIONS)
    return mesh
