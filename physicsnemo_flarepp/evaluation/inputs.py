"""From what lies in a file of cases or points to the inputs of a run."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..datapipes.channels import Channels
from ..datapipes.readers.base import MEASURE, NO_WEIGHTS, TokenTable, point_areas
from ..datapipes.readers.case_tables import make_table
from ..datapipes.readers.contents import Contents, Wanted, open_body, open_file
from ..datapipes.readers.names import Pick
from ..datapipes.readers.parameters import reference_values_beside
from ..files import reading
from .trained_run import Run

GlobalValues = Mapping[str, float | Sequence[float]]


def input_table(
    run: Run, contents: Contents, association: str | None, global_values: Mapping[str, np.ndarray]
) -> TokenTable:
    """Return a case of own files without its fields, with the values of the case as given."""
    picks = {name: Pick(name) for name in global_values}
    names = replace(run.names, fields={}, globals=picks, association=association)
    return make_table(replace(contents, values=global_values), names)


def table_sample(run: Run, table: TokenTable, case_id: str) -> dict[str, Tensor]:
    """Return the inputs at all tokens of a table, in physical units."""
    channels, rows = run.channels, slice(0, table.n_tokens)
    sample = {"coordinates": table.read("coordinates", rows)}
    if table.features:
        sample["features"] = table.read("features", rows)
    if table.global_values:
        sample["globals"] = table.read_globals()
    if channels.weights != NO_WEIGHTS:
        weights = table.read_weights(channels.weights, rows, case_id)
        sample["weights"] = weights.astype(np.float32)
    return {key: torch.from_numpy(value) for key, value in sample.items()}


def open_inputs(run: Run, path: Path, body: Path | None = None) -> Contents:
    """Return what a run on own files uses of a file; fields that it holds are read as well."""
    names = run.names
    reader = run.data.get("reader") or {}
    volumes = names.weights == MEASURE or "volumes" in names.features
    wanted = Wanted(names.stored(), sizes=volumes, boundary=reader.get("boundary"))
    stored = [pick.array for pick in (names.coordinates or {}).values()]
    contents = open_file(path, wanted, stored[0] if stored else None)
    return contents if body is None else replace(contents, body=open_body(body))


def find_globals(
    run: Run, source: Path | str, stored: Mapping[str, np.ndarray], given: GlobalValues
) -> dict[str, np.ndarray]:
    """Return the values of the whole case that a run takes: given, in the file, or beside it.

    Parameters
    ----------
    run : Run
        Whose globals.
    source : Path or str
        The file, to look for a ``geo_ref_*.csv`` beside it and to name in errors.
    stored : Mapping[str, numpy.ndarray]
        Values of the case in the file, by the names that they have there.
    given : Mapping
        By the names of the run; they come first.
    """
    wanted = run.channels.globals
    unknown = sorted(set(given) - set(wanted))
    if unknown:
        raise ValueError(
            f"run {run.name} has no global value {', '.join(unknown)}; its global values are "
            f"{', '.join(wanted) or 'none'}"
        )
    reader = run.data.get("reader") or {}
    values = {**reference_values_beside(source), **(reader.get("constants") or {})}
    picks = {} if run.names is None else run.names.globals
    for name in wanted:
        pick = picks.get(name, Pick(name))
        if pick.array in stored:
            values[name] = np.asarray(stored[pick.array][...]).reshape(-1)[
                pick.columns or slice(None)
            ]
    values |= given
    absent = [name for name in wanted if name not in values]
    if absent:
        raise ValueError(
            f"run {run.name} needs the global values {', '.join(absent)}, which are neither given "
            f"nor in {source} nor in a geo_ref_*.csv beside it; give each with --global "
            f"{absent[0]}=<number>"
        )
    arrays = {name: np.asarray(values[name], dtype=np.float64) for name in wanted}
    for name, array in arrays.items():
        if array.size != wanted[name]:
            raise ValueError(
                f"global value {name} has {array.size} numbers, but run {run.name} takes "
                f"{wanted[name]}; give a vector as --global {name}=1,0,0"
            )
    return arrays


def read_points(path: str | Path, channels: Channels) -> dict[str, Tensor]:
    """Return the inputs in a ``.npz`` (coordinates, features, globals) or ``.npy`` file.

    Parameters
    ----------
    path : str or Path
        ``.npz`` with the arrays ``coordinates`` (N, d) and, as in training, ``features`` (N, f)
        and ``globals`` (g,); ``.npy`` with the coordinates alone. A model with weighted tokens
        takes their ``weights`` (N,), or else the areas that points of a plane stand for.
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
    if channels.weights != NO_WEIGHTS:
        sample["weights"] = torch.from_numpy(_point_weights(path, channels, arrays))
    return sample


def _point_weights(
    path: Path, channels: Channels, arrays: Mapping[str, np.ndarray]
) -> Float[np.ndarray, " N"]:
    """Return the weights in a file of points, or the areas of its points."""
    points = arrays["coordinates"]
    columns = {name: arrays[name] for name in ("weights",) if name in arrays}
    if not columns and channels.weights == MEASURE and channels.coordinates == 2:
        columns = {MEASURE: point_areas({"": points}, len(points), whole_grid(channels, points))}
    if not columns:
        raise ValueError(
            f"{path} has no array 'weights', but the model weighs tokens by {channels.weights!r}; "
            "add what each point stands for to a .npz file"
        )
    table = TokenTable(path, len(points), {}, {}, weights=columns)
    name = next(iter(columns))
    return table.read_weights(name, slice(0, len(points)), path.stem).astype(np.float32)


def whole_grid(channels: Channels, points: Float[np.ndarray, "N d"]) -> tuple[int, ...] | None:
    """Return the grid of the run if there are as many points."""
    whole = channels.grid is not None and len(points) == np.prod(channels.grid)
    return channels.grid if whole else None
