"""What evaluation tells: errors per case and field, forces, and what the training mean gives."""

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyvista as pv
import torch

from ..files import replace_text
from ..meshes.writing import polygon_mesh
from ..progress import progress_bar
from .cases import CasePrediction, field_relative_l2, predict_case
from .conventions import describe_settings, field_forces, force_surface
from .errors import CaseErrors
from .forces import ForceSettings, r_squared
from .trained_run import Run

COEFFICIENTS = ("Cd", "Cs", "Cl")
_REPORTED = ("Cd", "Cl")


@dataclass(frozen=True)
class ForceTable:
    """Coefficients of all cases, from predicted and from true fields.

    Parameters
    ----------
    predicted, true : numpy.ndarray
        (n_cases, 3): Cd, Cs, Cl.
    reference_areas : numpy.ndarray
        (n_cases,).
    """

    predicted: np.ndarray
    true: np.ndarray
    reference_areas: np.ndarray

    def r_squared(self, name: str) -> float:
        """Return the coefficient of determination of one coefficient over the cases."""
        column = COEFFICIENTS.index(name)
        return r_squared(self.predicted[:, column], self.true[:, column])


@dataclass(frozen=True)
class Report:
    """Evaluation of one run on its test cases.

    Parameters
    ----------
    name : str
        Name of the run.
    errors : CaseErrors
        Of the model.
    mean_errors : CaseErrors or None
        Of predicting the training mean; None where the normaliser does not hold a mean.
    forces : ForceTable or None
        Rows as in `errors`; None without surfaces.
    notes : tuple[str, ...]
        Conventions, and what makes numbers doubtful.
    """

    name: str
    errors: CaseErrors
    mean_errors: CaseErrors | None
    forces: ForceTable | None
    notes: tuple[str, ...]


def evaluate_run(
    run: Run, settings: ForceSettings | None = None, *, progress: bool = True
) -> Report:
    """Predict all test cases at full resolution and compare with their targets.

    Parameters
    ----------
    run : Run
        From :func:`~physicsnemo_flarepp.evaluation.load_run`.
    settings : ForceSettings, optional
        Conventions of the forces; None integrates none.
    progress : bool, optional
        Show a bar if stderr is a terminal.
    """
    ids = run.loaders.test.dataset.reader.case_ids
    has_mean = run.normalization_kind("fields") in ("gaussian", "per_point")
    errors, mean_errors, rows, notes = [], [], [], {}
    with progress_bar(f"evaluate {run.name}", len(ids), progress) as advance:
        for index in range(len(ids)):
            case = predict_case(run, index, progress=False)
            errors.append(case.errors)
            if has_mean:
                mean = _training_mean(run, case)
                mean_errors.append(field_relative_l2(mean, case.target, case.channels))
            if settings is not None:
                row = _case_forces(case, settings, notes)
                if row is not None:
                    rows.append(row)
            advance()
    if settings is not None and rows:
        notes = {describe_settings(settings): None, **notes}
    return Report(
        run.name,
        CaseErrors.of_rows(ids, errors),
        CaseErrors.of_rows(ids, mean_errors) if has_mean else None,
        ForceTable(*map(np.array, zip(*rows, strict=True))) if rows else None,
        tuple(notes),
    )


def report_runs(
    runs: Iterable[Run], settings: Callable[[Run], ForceSettings | None] | None = None
) -> list[Report]:
    """Evaluate runs one after the other, print their reports, and write one CSV file each.

    Parameters
    ----------
    runs : Iterable[Run]
        The runs; ``evaluation.csv`` goes to their directories.
    settings : Callable, optional
        Gives the conventions of a run's forces; without it none are integrated.
    """
    reports = []
    for run in runs:
        report = evaluate_run(run, None if settings is None else settings(run))
        path = run.directory / "evaluation.csv"
        write_report(report, path)
        print(format_report(report), f"cases: {path}", "", sep="\n")
        reports.append(report)
    if len(reports) > 1:
        print(format_comparison(reports))
    return reports


def _training_mean(run: Run, case: CasePrediction) -> np.ndarray:
    """Return the mean of the training fields at the tokens of a case, (N, O)."""
    zeros = torch.zeros(case.target.shape)
    return run.normalizer.inverse(zeros, torch.arange(len(zeros)), key="fields").numpy()


def _case_forces(
    case: CasePrediction, settings: ForceSettings, notes: dict[str, None]
) -> tuple[np.ndarray, np.ndarray, float] | None:
    mesh = case.mesh
    if not isinstance(mesh, pv.PolyData) or mesh.GetPolys().GetNumberOfCells() == 0:
        notes["the cases are points without a surface: no forces"] = None
        return None
    polygons = polygon_mesh(mesh, case.metadata["source"])
    surface = force_surface(polygons, case.association, settings)
    notes[f"reference area: {surface.area_source}"] = None
    notes.update(dict.fromkeys(surface.areas.warnings))
    predicted, true = (
        field_forces(surface, values, case.channels, settings).total
        for values in (case.prediction, case.target)
    )
    return predicted, true, surface.reference_area


def format_report(report: Report) -> str:
    """Return a report as text: errors in percent per field, then forces, then notes."""
    errors, mean = report.errors, report.mean_errors
    columns = {field: errors.values[:, i] for i, field in enumerate(errors.fields)}
    references = {} if mean is None else dict(zip(mean.fields, mean.values.T, strict=True))
    if len(columns) > 1:
        columns["all fields"] = errors.per_case
        if mean is not None:
            references["all fields"] = mean.per_case
    rows = [["relative L2 error, %", "mean", "median", "worst", "(case)", "training mean"]]
    for name, values in columns.items():
        worst = int(np.argmax(values))
        reference = f"{100 * references[name].mean():.2f}" if name in references else "-"
        numbers = (values.mean(), np.median(values), values[worst])
        rows.append([name, *(f"{100 * x:.2f}" for x in numbers), errors.case_ids[worst], reference])
    blocks = [f"{report.name}: {len(errors.case_ids)} test cases", _table(rows)]
    if report.forces is not None:
        blocks.append(_table(_force_rows(report)))
    blocks += [f"note: {note}" for note in report.notes]
    return "\n".join(blocks)


def _force_rows(report: Report) -> list[list[str]]:
    rows = [["coefficient", "R^2", "mean true", "mean |error|", "worst", "(case)"]]
    for name in _REPORTED:
        column = COEFFICIENTS.index(name)
        true = report.forces.true[:, column]
        off = np.abs(report.forces.predicted[:, column] - true)
        worst = int(np.argmax(off))
        numbers = (report.forces.r_squared(name), true.mean(), off.mean(), off[worst])
        rows.append([name, *(f"{x:.4g}" for x in numbers), report.errors.case_ids[worst]])
    return rows


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Align columns, the first to the left.

    Examples
    --------
    >>> print(_table([["field", "mean"], ["p", "1.25"]]))
    field   mean
    p       1.25
    """
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "   ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def format_comparison(reports: Sequence[Report]) -> str:
    """Return one line per run: mean error over cases and fields, and R^2 of drag and lift."""
    with_forces = any(report.forces is not None for report in reports)
    rows = [["run", "mean error, %", "training mean, %", *(_REPORTED if with_forces else ())]]
    if with_forces:
        rows[0][-2:] = [f"R^2 of {name}" for name in _REPORTED]
    for report in reports:
        mean = "-" if report.mean_errors is None else f"{100 * report.mean_errors.mean:.2f}"
        row = [report.name, f"{100 * report.errors.mean:.2f}", mean]
        if with_forces:
            scores = [
                "-" if report.forces is None else f"{report.forces.r_squared(name):.4g}"
                for name in _REPORTED
            ]
            row += scores
        rows.append(row)
    return _table(rows)


def write_report(report: Report, path: str | Path) -> None:
    """Write one line per case as CSV: errors as fractions, forces from both fields."""
    path = Path(path)
    header = ["case", *report.errors.fields]
    columns = [report.errors.case_ids, *report.errors.values.T]
    if report.forces is not None:
        for i, name in enumerate(COEFFICIENTS):
            header += [f"{name}_predicted", f"{name}_true"]
            columns += [report.forces.predicted[:, i], report.forces.true[:, i]]
        header.append("reference_area")
        columns.append(report.forces.reference_areas)
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(header)
    writer.writerows(zip(*columns, strict=True))
    replace_text(path, text.getvalue())
