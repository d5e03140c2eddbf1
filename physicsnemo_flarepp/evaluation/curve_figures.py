"""Figures of runs that need no picture of a mesh: training curves, drag and lift."""

import os
from collections.abc import Sequence
from pathlib import Path

from ..visualization import LIGHT, Parity, Theme, TrainingCurves, plot_parity, plot_training
from .reports import Report
from .shown_cases import directory_names


def draw_training(
    directories: Sequence[str | os.PathLike],
    directory: str | os.PathLike,
    *,
    labels: Sequence[str] | None = None,
    formats: Sequence[str] = ("png",),
    theme: Theme = LIGHT,
) -> TrainingCurves:
    """Draw the curves of run directories to ``training.png``; finished or not.

    Parameters
    ----------
    directories : sequence of path-like
        Run directories.
    directory : path-like
        Where to write.
    labels, formats, theme
        As in :func:`draw_comparison`.
    """
    return plot_training(
        dict(zip(directory_names(directories, labels), directories, strict=True)),
        theme=theme,
        path=[Path(directory) / f"training.{suffix}" for suffix in formats],
    )


def draw_parity(
    reports: Sequence[Report],
    directory: str | os.PathLike,
    *,
    labels: Sequence[str] | None = None,
    formats: Sequence[str] = ("png",),
    theme: Theme = LIGHT,
) -> Parity:
    """Draw predicted over true drag and lift coefficients to ``parity.png``.

    Parameters
    ----------
    reports : sequence of Report
        From :func:`evaluate_run` with force settings, of runs on the same test cases.
    directory : path-like
        Where to write.
    labels : sequence of str, optional
        Names of the runs in the figure; by default those of the reports.
    formats, theme
        As in :func:`draw_comparison`.
    """
    if not reports:
        raise ValueError("reports is empty; give the report of at least one run")
    names = list(labels) if labels is not None else [report.name for report in reports]
    if len(names) != len(reports) or len(set(names)) < len(names):
        raise ValueError(
            f"{len(reports)} reports have the names {names}; give each a label of its own"
        )
    for report in reports:
        if report.forces is None:
            raise ValueError(
                f"the report of run {report.name!r} holds no forces; evaluate it with force "
                "settings, on surfaces"
            )
        if report.errors.case_ids != reports[0].errors.case_ids:
            raise ValueError(
                f"run {report.name!r} was evaluated on other cases than {reports[0].name!r}"
            )
    columns = {"drag coefficient": 0, "lift coefficient": 2}
    return plot_parity(
        {name: reports[0].forces.true[:, i] for name, i in columns.items()},
        {
            label: {name: report.forces.predicted[:, i] for name, i in columns.items()}
            for label, report in zip(names, reports, strict=True)
        },
        theme=theme,
        path=[Path(directory) / f"parity.{suffix}" for suffix in formats],
    )
