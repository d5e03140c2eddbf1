"""Runs side by side: their names, the case they share, and how its data is shown."""

import csv
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..visualization import Preset, choose_case, preset_for
from .cases import CasePrediction, predict_case
from .errors import CaseErrors, case_errors
from .runs import Run


def run_names(runs: Sequence[Run], labels: Sequence[str] | None = None) -> list[str]:
    """Give each run a name of its own: `labels`, or directory names, longer where they clash.

    Parameters
    ----------
    runs : sequence of Run
        The runs of a figure.
    labels : sequence of str, optional
        Names to use instead.
    """
    if not runs:
        raise ValueError("runs is empty; give at least one run")
    names = list(labels) if labels is not None else [run.name for run in runs]
    if labels is None and len(set(names)) < len(names):
        names = [str(run.directory) for run in runs]
    if len(names) != len(runs) or len(set(names)) < len(names):
        raise ValueError(
            f"{len(runs)} runs have the names {names}; give each run once, with a label of its own"
        )
    return names


def preset_of(run: Run, case: CasePrediction) -> Preset:
    """Give how the data of a run is shown."""
    data = run.config.data
    name, builtin = data.get("benchmark") or data.get("builtin"), data.get("builtin")
    return preset_for(name, builtin=builtin is not None, dimension=case.coordinates.shape[1])


def predict_with_all(
    runs: Sequence[Run], names: Sequence[str], case_id: str
) -> dict[str, CasePrediction]:
    """Give the predictions of one case by all runs, or raise if it is not the same case in each.

    Parameters
    ----------
    runs : sequence of Run
        The runs.
    names : sequence of str
        Their names.
    case_id : str
        Id of the test case.
    """
    found = {
        n: predict_case(run, case_id, progress=False) for n, run in zip(names, runs, strict=True)
    }
    first, *others = names
    one = found[first]
    for name in others:
        other = found[name]
        for what, mine, theirs in (
            ("fields", one.field_names, other.field_names),
            ("association", one.association, other.association),
            ("number of tokens", len(one.coordinates), len(other.coordinates)),
        ):
            if mine != theirs:
                raise ValueError(
                    f"case {case_id!r} of run {name!r} has the {what} {theirs}, but run {first!r} "
                    f"has {mine}; compare runs that were trained on the same data"
                )
        size = np.ptp(one.coordinates, axis=0).max()
        if not np.allclose(one.coordinates, other.coordinates, atol=1e-4 * size):
            raise ValueError(
                f"case {case_id!r} has other coordinates in run {name!r} than in run {first!r}: "
                "they were trained on different data"
            )
        # Both targets went through a normaliser and back.
        scale = np.abs(one.target).max()
        if not np.allclose(one.target, other.target, rtol=1e-3, atol=1e-3 * scale):
            raise ValueError(
                f"case {case_id!r} has another target in run {name!r} than in run {first!r}: they "
                "were trained on different data"
            )
    return found


def field_values(case: CasePrediction, field: str, values: np.ndarray) -> np.ndarray:
    """Give one number per token for a field: its channel, or the length of a vector."""
    if field in case.field_names:
        return values[:, case.field_names.index(field)]
    if field not in case.channels.fields:
        known = [*case.channels.fields, *case.field_names]
        raise ValueError(f"field {field!r} is not known; choose among {list(dict.fromkeys(known))}")
    return np.linalg.norm(values[:, case.channels.columns(field)], axis=1)


def stored_errors(directory: str | os.PathLike) -> CaseErrors | None:
    """Give the errors that training left in ``errors.csv``; None if it left none.

    They are those of the final model at the resolution of the test loader, and spare a
    prediction of every test case at full resolution.

    Parameters
    ----------
    directory : path-like
        The run directory.
    """
    path = Path(directory) / "errors.csv"
    if not path.is_file():
        return None
    with open(path, newline="") as file:
        (_, *fields), *rows = csv.reader(file)
    values = np.array([[float(value) for value in row[1:]] for row in rows])
    return CaseErrors(tuple(row[0] for row in rows), tuple(fields), values)


def chosen_case(run: Run, case: str, errors: CaseErrors | None = None) -> str:
    """Give the id of the test case to show.

    Parameters
    ----------
    run : Run
        The run whose errors choose.
    case : str
        ``median``, ``worst``, ``best`` or an id.
    errors : CaseErrors, optional
        Of this run, if they are known already.
    """
    ids = run.loaders.test.dataset.reader.case_ids
    if case in ids:
        return case  # no need to evaluate all cases
    table = case_errors(run, progress=False) if errors is None else errors
    try:
        return table.case_ids[choose_case(case, table.case_ids, table.per_case)]
    except ValueError as error:
        raise ValueError(f"run {run.name!r}: {error}") from None
