"""Runs side by side: their names, the case they share, and how its data is shown."""

import csv
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyvista as pv

from ..datapipes import plot_mesh
from ..visualization import Preset, choose_case, preset_for
from ..visualization.cases import CHOICES
from ..visualization.scales import relative_l2
from .cases import CasePrediction, predict_case
from .errors import CaseErrors, case_errors
from .trained_run import Run


def directory_names(
    directories: Sequence[str | os.PathLike], labels: Sequence[str] | None = None
) -> list[str]:
    """Give each run directory a name of its own, in figures.

    Parameters
    ----------
    directories : sequence of path-like
        Run directories.
    labels : sequence of str, optional
        Names to use; by default those of the directories, and where these clash with the parents
        in which they differ.

    Examples
    --------
    >>> directory_names(["/a/first/flare", "/a/second/flare"])
    ['first/flare', 'second/flare']
    """
    if not directories:
        raise ValueError("runs is empty; give at least one run")
    found = [Path(directory).resolve() for directory in directories]
    names = list(labels) if labels is not None else [path.name for path in found]
    if labels is None and len(set(names)) < len(names):
        common = os.path.commonpath([path.parent for path in found])
        names = [path.relative_to(common).as_posix() for path in found]
    if len(names) != len(found) or len(set(names)) < len(names):
        raise ValueError(
            f"{len(found)} runs have the names {names}; give each run once, with a label of its own"
        )
    return names


def run_names(runs: Sequence[Run], labels: Sequence[str] | None = None) -> list[str]:
    """Give each run a name of its own: `labels`, or directory names, longer where they clash.

    Parameters
    ----------
    runs : sequence of Run
        The runs of a figure.
    labels : sequence of str, optional
        Names to use instead.
    """
    return directory_names([run.directory for run in runs], labels)


def preset_of(run: Run, case: CasePrediction) -> Preset:
    """Give how the data of a run is shown."""
    data = run.config.data
    name, builtin = data.get("benchmark") or data.get("builtin"), data.get("builtin")
    return preset_for(name, builtin=builtin is not None, dimension=case.coordinates.shape[1])


def require_surface(run: Run) -> None:
    """Raise unless the first test case of a run has faces, over which forces can be integrated."""
    sample, metadata = run.loaders.test.dataset.reader[0]
    mesh = plot_mesh(metadata, sample["coordinates"].numpy())
    if not isinstance(mesh, pv.PolyData) or mesh.GetPolys().GetNumberOfCells() == 0:
        raise ValueError(
            f"the cases of run {run.name} are points without a surface, over which no forces can "
            "be integrated"
        )


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
        if not np.array_equal(one.coordinates, other.coordinates):
            raise ValueError(
                f"case {case_id!r} has other coordinates in run {name!r} than in run {first!r}: "
                "they were trained on different data"
            )
        if not np.array_equal(one.target, other.target):
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
        raise ValueError(
            f"field {field!r} of case {case.case_id!r} is not known; choose among "
            f"{list(dict.fromkeys(known))}"
        )
    return np.linalg.norm(values[:, case.channels.columns(field)], axis=1)


def field_error(case: CasePrediction, field: str) -> float:
    """Give the relative L2 error of a channel, or of a whole field with all its channels.

    It is that of the tables, also where the tables of a run join all fields in one norm.
    """
    if field in case.field_names:
        column = case.field_names.index(field)
        columns = slice(column, column + 1)
    else:
        columns = case.channels.columns(field)
    prediction, target = (v[:, columns].astype(np.float64) for v in (case.prediction, case.target))
    return relative_l2(prediction.ravel(), target.ravel())


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
    try:
        if case not in CHOICES:
            choose_case(case, ids, np.zeros(len(ids)))  # says which there are
        table = case_errors(run, progress=False) if errors is None else errors
        return table.case_ids[choose_case(case, table.case_ids, table.per_case)]
    except ValueError as error:
        raise ValueError(f"run {run.name!r}: {error}") from None


def errors_for_choice(
    run: Run,
    case: str,
    *,
    stored: bool,
    known: Callable[[], CaseErrors | None] = lambda: None,
) -> CaseErrors | None:
    """Give the errors that :func:`chosen_case` needs for `case`; None if it needs none.

    Parameters
    ----------
    run : Run
        The run whose errors choose.
    case : str
        ``median``, ``worst``, ``best`` or an id.
    stored : bool
        Whether the errors that training left may be used: those of the final model on the run's
        own data. Where there are none, or of other cases, all test cases are predicted.
    known : Callable
        Asked before that: gives errors that are evaluated for something else, or None.
    """
    ids = run.loaders.test.dataset.reader.case_ids
    if case in ids or case not in CHOICES:
        return None
    left = stored_errors(run.directory) if stored else None
    if left is not None and set(left.case_ids) == set(ids):
        return left
    found = known()
    return case_errors(run) if found is None else found
