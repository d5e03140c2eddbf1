"""Evaluation of runs on all of their test cases: errors, forces, and what has to be beaten."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from ..datapipes.normalization import centres_fields
from ..files import replace_text
from ..ops.errors import r_squared
from ..progress import progress_bar
from ..runs.trained_run import Run
from ..texts import csv_text, format_table, printable
from ..training.baselines import baseline_errors, describe_baselines, verdict
from ..training.reporting import SPLIT_NAMES
from ..training.trainer import Selection
from .forces import COEFFICIENTS, Forces, ForceSettings, SurfaceAreas, field_forces, force_surface
from .predictions import CaseErrors, CasePrediction, predict_case, relative_l2

_REPORTED = ("Cd", "Cl")


@dataclass(frozen=True)
class ForceTable:
    """Coefficients (n_cases, 3) from predicted and true fields, and reference areas (n_cases,)."""

    predicted: np.ndarray
    true: np.ndarray
    reference_areas: np.ndarray

    def column(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the predicted and true values of one coefficient over the cases."""
        return tuple(x[:, COEFFICIENTS.index(name)] for x in (self.predicted, self.true))

    def r_squared(self, name: str) -> float:
        """Return the coefficient of determination of one coefficient over the cases."""
        return r_squared(*map(torch.from_numpy, self.column(name)))


@dataclass(frozen=True)
class Report:
    """Evaluation of one run on its test cases."""

    name: str
    errors: CaseErrors  #: in norms that are sums over tokens
    integral_errors: CaseErrors | None  #: in integrals by weights or areas; None if unknown
    mean_errors: CaseErrors | None  #: of predicting the training mean, if the normaliser has it
    forces: ForceTable | None  #: rows as in `errors`; None without surfaces
    notes: tuple[str, ...]  #: conventions, and what makes numbers doubtful
    split: str = "test"  #: the cases: ``test`` or ``val``
    #: Mean errors of predictors that need no network; empty without the training cases.
    baselines: Mapping[str, float] = field(default_factory=dict)
    verdict: str | None = None  #: what to try if one of them is better than the model


def evaluate_run(
    run: Run,
    settings: ForceSettings | None = None,
    target_settings: ForceSettings | None = None,
    *,
    progress: bool = True,
    baselines: bool = True,
) -> Report:
    """Return the errors and forces of all test cases, predicted at full resolution.

    Parameters
    ----------
    run : Run
        From :func:`~physicsnemo_flarepp.evaluation.load_run`.
    settings : ForceSettings, optional
        Conventions of the forces; None integrates none. If they cannot be computed, a note says
        why.
    target_settings : ForceSettings, optional
        Conventions of the targets, if they differ from the training data's.
    progress : bool, optional
        Show a bar if stderr is a terminal.
    baselines : bool, optional
        Read the training cases, to compare with predictors that need no network.
    """
    ids, data = run.case_ids, run.config.data
    rows: dict[str, list] = {"model": [], "integral": [], "mean": []}
    forces, notes, no_forces = [], {}, None
    with progress_bar(f"evaluate {run.name}", len(ids), progress) as advance:
        for index in range(len(ids)):
            case = predict_case(run, index, progress=False)
            rows["model"].append(case.errors)
            if (measure := run.test_set.read_measure(index)) is not None:
                rows["integral"].append(case.errors_in(measure))
            if centres_fields(data):
                mean = _training_mean(run, case)
                rows["mean"].append(relative_l2(mean, case.target, case.channels.norms))
            if settings is not None and no_forces is None:
                try:
                    surface, *both = compare_forces(case, settings, target_settings or settings)
                    forces.append((*both, surface.reference_area))
                    notes[f"reference area: {surface.area_source}"] = None
                    notes.update(dict.fromkeys(surface.warnings))
                except ValueError as reason:  # the errors stand
                    no_forces = f"no forces: {reason}"
            advance()
    found = {k: CaseErrors.of_rows(ids, v) if len(v) == len(ids) else None for k, v in rows.items()}
    table, told = None, [] if no_forces is None else [no_forces]
    if settings is not None and no_forces is None:
        *both, areas = zip(*forces, strict=True)
        totals = (np.array([found.total for found in several]) for several in both)
        table = ForceTable(*totals, np.array(areas))
        told = [*_force_notes(both[1], settings, target_settings or settings), *notes]
    if (selected := run.selected) is not None and selected["select"] != "last":
        chosen = Selection(**{name: selected[name] for name in Selection.__dataclass_fields__})
        # A run that was extended has more epochs than the config it started with.
        epochs = selected.get("epochs", run.config.training.epochs)
        told.insert(0, chosen.describe(epochs, run.split))
    simple = {}
    try:
        if baselines:
            known = (run.training_cases(), run.test_set, run.normalizer)
            fitted = baseline_errors(*known, tuple(run.channels.norms.values()))
            simple = {name: values.mean().item() for name, values in fitted.items()}
    except (OSError, ValueError) as reason:
        told.append(f"no comparison with simple predictors: {reason}")
    lost = verdict(found["model"].mean, simple, data.get("baseline", "none"))
    return Report(run.name, *found.values(), table, tuple(told), run.split, simple, lost)


def _training_mean(run: Run, case: CasePrediction) -> np.ndarray:
    """Return the mean of the training fields at the tokens of a case, (N, O)."""
    zeros = torch.zeros(case.target.shape)
    return run.normalizer.inverse(zeros, torch.arange(len(zeros)), key="fields").numpy()


def compare_forces(
    case: CasePrediction, settings: ForceSettings, target_settings: ForceSettings
) -> tuple[SurfaceAreas, Forces, Forces]:
    """Return the surface of a case and its forces from predicted and from true fields."""
    surface = force_surface(case.polygons, case.association, settings)
    predicted = field_forces(surface, case.prediction, case.channels, settings)
    return surface, predicted, field_forces(surface, case.target, case.channels, target_settings)


def _force_notes(
    true: Sequence[Forces], settings: ForceSettings, target_settings: ForceSettings
) -> list[str]:
    notes = [str(settings)]
    if target_settings != settings:
        notes.append(f"the targets follow another convention than training: {target_settings}")
    friction = [forces.shear[0] for forces in true if forces.shear is not None]
    if friction and (odd := target_settings.sign_doubt(float(np.mean(friction)))):
        notes.append(odd)
    return notes


def report_runs(
    runs: Iterable[Run],
    settings: Callable[[Run], tuple[ForceSettings | None, ForceSettings | None]] | None = None,
) -> list[Report]:
    """Evaluate runs one after the other, print their reports, and write ``evaluation.csv`` of each.

    `settings` returns the conventions of a run's forces and of its targets; without it no forces
    are integrated.
    """
    reports = []
    for run in runs:
        report = evaluate_run(run, *((None, None) if settings is None else settings(run)))
        path = run.directory / "evaluation.csv"
        write_report(report, path)
        print(format_report(report), f"cases: {path}", "", sep="\n")
        reports.append(report)
    if len(reports) > 1:
        print(format_table(comparison_rows(reports)))
    return reports


def error_rows(report: Report) -> list[list[str]]:
    """Return the table of errors in percent, a row per field."""
    errors = report.errors
    rows = [["relative L2 error, %", "mean", "median", "worst", "(case)"]]
    for name, values in _columns(errors).items():
        worst = int(np.argmax(values))
        numbers = (values.mean(), np.median(values), values[worst])
        rows.append([name, *map(_percent, numbers), errors.case_ids[worst]])
    further = {"training mean": report.mean_errors, "as an integral": report.integral_errors}
    for header, other in further.items():
        if other is not None:
            column = [header, *(_percent(v.mean()) for v in _columns(other).values())]
            rows = [[*row, text] for row, text in zip(rows, column, strict=True)]
    return rows


def format_report(report: Report) -> str:
    """Return a report as text: errors in percent per field, then forces, then notes."""
    blocks = [] if report.verdict is None else [report.verdict]
    blocks.append(f"{report.name}: {_count(report)} cases")
    blocks.append(format_table(error_rows(report)))
    if report.baselines:
        blocks.append(describe_baselines(report.baselines))
    if report.forces is not None:
        blocks.append(format_table(force_rows(report)))
    return "\n".join([*blocks, *(f"note: {printable(note)}" for note in report.notes)])


def _count(report: Report) -> str:
    return f"{len(report.errors.case_ids)} {SPLIT_NAMES[report.split]}"


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.2f}"


def _columns(errors: CaseErrors) -> dict[str, np.ndarray]:
    """Return the errors of all cases by field, and their mean if there are several fields."""
    columns = dict(zip(errors.fields, errors.values.T, strict=True))
    return columns if len(columns) == 1 else {**columns, "all fields": errors.per_case}


def force_rows(report: Report) -> list[list[str]]:
    """Return the table of force coefficients."""
    rows = [["coefficient", "R^2", "mean true", "mean |error|", "worst", "(case)"]]
    for name in _REPORTED:
        predicted, true = report.forces.column(name)
        off = np.abs(predicted - true)
        worst = int(np.argmax(off))
        numbers = [f"{x:.4g}" for x in (true.mean(), off.mean(), off[worst])]
        rows.append([name, _score(report, name), *numbers, report.errors.case_ids[worst]])
    return rows


def _score(report: Report, name: str) -> str:
    """Return an R^2, which one case does not have."""
    value = np.nan if report.forces is None else report.forces.r_squared(name)
    return "-" if np.isnan(value) else f"{value:.4g}"


def comparison_rows(reports: Sequence[Report]) -> list[list[str]]:
    """Return the table of runs; columns without numbers are left out."""
    means = ["-" if r.mean_errors is None else _percent(r.mean_errors.mean) for r in reports]
    columns = {
        "run": [report.name for report in reports],
        "cases": [_count(report) for report in reports],
        "mean error, %": [_percent(report.errors.mean) for report in reports],
        "training mean, %": means,
        **{f"R^2 of {name}": [_score(r, name) for r in reports] for name in _REPORTED},
    }
    shown = {name: texts for name, texts in columns.items() if set(texts) != {"-"}}
    return [list(shown), *map(list, zip(*shown.values(), strict=True))]


def case_rows(report: Report) -> list[Sequence[object]]:
    """Return the table of cases: errors as fractions, forces from both fields."""
    columns = [("case", report.errors.case_ids)]  # a list: a field may be called "case" too
    columns += zip(report.errors.fields, report.errors.values.T, strict=True)
    if (integrals := report.integral_errors) is not None:
        names = [f"{name}_integral" for name in integrals.fields]
        columns += zip(names, integrals.values.T, strict=True)
    if report.forces is not None:
        for name in COEFFICIENTS:
            kinds = (f"{name}_predicted", f"{name}_true")
            columns += zip(kinds, report.forces.column(name), strict=True)
        columns.append(("reference_area", report.forces.reference_areas))
    header, values = zip(*columns, strict=True)
    return [header, *zip(*values, strict=True)]


def write_report(report: Report, path: str | Path) -> None:
    """Write one line per case as CSV: errors as fractions, forces from both fields."""
    replace_text(Path(path), csv_text(case_rows(report)))
