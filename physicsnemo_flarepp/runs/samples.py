"""From a file, a mesh or points to the inputs that a trained run takes, made as in training."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyvista as pv
import torch
from physicsnemo.mesh import DomainMesh, Mesh
from torch import Tensor

from ..datapipes.channels import Channels
from ..datapipes.readers.base import MEASURE, NO_WEIGHTS, TokenTable
from ..datapipes.readers.case_files import reference_values_beside
from ..datapipes.readers.case_tables import make_table
from ..datapipes.readers.contents import Contents, Wanted
from ..datapipes.readers.memory import as_array, contents_of
from ..datapipes.readers.names import Names, Pick
from ..datapipes.validation import check_finite

if TYPE_CHECKING:
    from .trained_run import Run

# Arrays of a file that holds a sample, named as the entries of one are.
SAMPLE = ("coordinates", "features", "globals", "weights")
GlobalValues = Mapping[str, float | Sequence[float]]
# Where what is in memory is said to be: no folder, in which reference values would be looked for.
_SOURCE = "memory/given"


def sample_of(run: "Run", given: Any, values: GlobalValues) -> dict[str, Tensor]:
    """Return the sample of a mesh, of points or of a mapping, with what can be computed for it."""
    if isinstance(given, pv.DataSet | Mesh | DomainMesh):
        boundary = (run.data.get("reader") or {}).get("boundary")
        wanted = Wanted(sizes=measures(run.channels), boundary=boundary)
        contents = contents_of(given, _SOURCE, wanted)
        return run.transform(input_sample(run, contents, run.channels.association, values))
    entries = dict(given.items()) if hasattr(given, "items") else {"coordinates": given}
    if "coordinates" not in entries:
        raise ValueError(
            f"the sample has {', '.join(entries) or 'nothing'}, but no coordinates; give a mesh, "
            "points (N, d), or a mapping with coordinates"
        )
    if values or (run.channels.globals and "globals" not in entries):
        found = find_globals(run, Contents(_SOURCE), values)
        entries["globals"] = np.concatenate([value.reshape(-1) for value in found.values()])
    known = run.channels.weights == MEASURE and run.channels.coordinates == 2
    if (known and "weights" not in entries) or not all(
        isinstance(value, Tensor) for value in entries.values()
    ):
        arrays = {name: as_array(value) for name, value in entries.items() if name in SAMPLE}
        for name in ("coordinates", "features"):  # of a grid, row by row
            if name in arrays and arrays[name].ndim > 2:
                arrays[name] = arrays[name].reshape(-1, arrays[name].shape[-1])
        contents = Contents(_SOURCE, arrays)
        made = input_sample(run, contents, run.channels.association)
        entries = {name: torch.as_tensor(value) for name, value in entries.items()} | made
    return entries if hasattr(given, "items") else run.transform(entries)


def measures(channels: Channels) -> bool:
    """Return whether a run takes the sizes of cells."""
    return channels.weights == MEASURE or "volumes" in channels.features


def whole_grid(channels: Channels, n_points: int) -> tuple[int, ...] | None:
    """Return the grid of training, if so many points fill it."""
    grid = channels.grid
    return grid if grid is not None and n_points == np.prod(grid) else None


def input_sample(
    run: "Run", contents: Contents, association: str, global_values: GlobalValues | None = None
) -> dict[str, Tensor]:
    """Return the inputs of a run at all tokens of a file, in physical units and not transformed."""
    channels, path = run.channels, Path(contents.source)
    # A file may name its arrays as the entries of a sample are named.
    plain = path.suffix in (".npz", "") and "coordinates" in contents.arrays.keys() <= {*SAMPLE}
    if contents.mesh is None and (run.names is None or plain):
        names, values = _sample_names(run, contents), {}
    else:
        names = run.names or Names(
            features={name: Pick(name) for name in channels.features}, weights=channels.weights
        )
        values = find_globals(run, contents, global_values or {})
        names = replace(names, globals={name: Pick(name) for name in values})
    names = replace(names, fields={}, association=association)
    table = make_table(replace(contents, values=values), names)
    return _whole_sample(run, table, names.weights, path)


def _sample_names(run: "Run", contents: Contents) -> Names:
    """Return the names of a file whose arrays are entries of a sample."""
    channels, arrays = run.channels, contents.arrays
    needed = {"coordinates": "xyz", "features": channels.feature_names}
    needed |= {"globals": channels.global_names}
    for key, parts in needed.items():
        if parts and key in contents.unreadable:
            raise ValueError(f"{contents.unreadable[key]}. Repair the file")
        if parts and key not in arrays:
            raise ValueError(
                f"{contents.source} has no array {key!r}, which run {run.name} needs "
                f"({', '.join(parts)}); it has {', '.join(arrays) or 'none'}. Add it to a .npz file"
            )
    picks = {key: {key: Pick(key)} if parts else {} for key, parts in needed.items()}
    weights = channels.weights
    if weights != NO_WEIGHTS and "weights" in arrays:
        weights = "weights"
    elif weights != NO_WEIGHTS and not (weights == MEASURE and channels.coordinates == 2):
        raise ValueError(
            f"{contents.source} has no array 'weights', but run {run.name} weighs tokens by "
            f"{weights!r}; add what each point stands for to a .npz file"
        )
    grid = whole_grid(channels, arrays["coordinates"].shape[0])
    return Names(**picks, weights=weights, grid=grid)


def _whole_sample(run: "Run", table: TokenTable, weights: str, path: Path) -> dict[str, Tensor]:
    """Return all rows of a table, which must have the channels of the run and finite values."""
    channels, rows = run.channels, slice(0, table.n_tokens)
    sample = {"coordinates": table.read("coordinates", rows)}
    if table.features:
        sample["features"] = table.read("features", rows)
    if table.global_values:
        sample["globals"] = table.read_globals()
    named = {"features": channels.feature_names, "globals": channels.global_names}
    for key, values in sample.items():
        width = len(named[key]) if key in named else channels.coordinates
        expected = (width,) if key == "globals" else (table.n_tokens, width)
        if values.shape != expected:
            raise ValueError(f"{path}: {key} has shape {values.shape}, expected {expected}")
        check_finite(path, path.stem, key, values, named.get(key, "xyz"))
    if channels.weights != NO_WEIGHTS:
        sample["weights"] = table.read_weights(weights, rows, path.stem).astype(np.float32)
    return {key: torch.from_numpy(value) for key, value in sample.items()}


def find_globals(run: "Run", contents: Contents, given: GlobalValues) -> dict[str, np.ndarray]:
    """Return the values of the whole case that a run takes: given, in the file, or beside it."""
    wanted, source = run.channels.globals, contents.source
    unknown = sorted(set(given) - set(wanted))
    if unknown:
        raise ValueError(
            f"run {run.name} has no global value {', '.join(unknown)}; its global values are "
            f"{', '.join(wanted) or 'none'}"
        )
    reader = run.data.get("reader") or {}
    values = {**reference_values_beside(source), **(reader.get("constants") or {})}
    picks = {} if run.names is None else run.names.globals
    stored = {**contents.arrays, **contents.values}
    for name in wanted:
        pick = picks.get(name, Pick(name))
        if pick.array in stored:
            read = np.asarray(stored[pick.array][...]).reshape(-1)
            values[name] = read[pick.columns or slice(None)]
    values |= given
    absent = [name for name in wanted if name not in values]
    if absent:
        raise ValueError(
            f"run {run.name} needs the global values {', '.join(absent)}, which are neither given "
            f"nor in {source} nor in a geo_ref_*.csv beside it; give each with --global "
            f"{absent[0]}=<number>, in Python as run.predict(..., {absent[0]}=<number>)"
        )
    arrays = {name: np.asarray(values[name], dtype=np.float64) for name in wanted}
    for name, array in arrays.items():
        if array.size != wanted[name]:
            raise ValueError(
                f"global value {name} has {array.size} numbers, but run {run.name} takes "
                f"{wanted[name]}; give a vector as --global {name}=1,0,0"
            )
    return arrays
