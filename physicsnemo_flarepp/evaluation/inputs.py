"""From what lies in a file to the inputs of a run, as training made them of its own files."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..datapipes.readers.base import MEASURE, NO_WEIGHTS, TokenTable
from ..datapipes.readers.case_tables import make_table
from ..datapipes.readers.contents import Contents, Wanted, open_body, open_file
from ..datapipes.readers.names import Pick
from ..datapipes.readers.surfaces import reference_values_beside
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
