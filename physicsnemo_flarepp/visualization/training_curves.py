"""Loss and test error of runs as they trained."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from .curves import axes_in_a_row, few_ticks, log_numbers
from .files import Paths, check_paths
from .sheets import styled
from .theme import LIGHT, Theme

_SMOOTHED_TO = 200  # points of a loss curve


@dataclass(frozen=True)
class TrainingCurves:
    """The figure and the last numbers of each run.

    Parameters
    ----------
    image : numpy.ndarray
        The page, (height, width, 3).
    final_error, best_error : dict
        Test error of each run at its last evaluation and at its best, as fractions.
    paths : tuple of Path
        Files written.
    """

    image: UInt8[np.ndarray, "height width 3"]
    final_error: dict[str, float]
    best_error: dict[str, float]
    paths: tuple[Path, ...]


def plot_training(
    histories: Mapping[str, Sequence[Mapping[str, Any]]],
    *,
    title: str | None = None,
    theme: Theme = LIGHT,
    path: Paths = None,
) -> TrainingCurves:
    """Draw training loss and test error of one or several runs.

    Parameters
    ----------
    histories : Mapping[str, sequence of Mapping]
        For each curve, by its name, rows in the order of steps: ``{"kind": "step", "step": 1,
        "loss": 0.9}`` and ``{"kind": "evaluation", "step": 1, "error": 0.8}``, the latter with
        ``mean_predictor_error`` where it is known.
    title, theme, path
        As in :func:`plot_comparison`.

    Returns
    -------
    TrainingCurves
        Loss curves are means over equal numbers of steps where a run has many; the dotted line is
        the error of predicting the training mean.

    Examples
    --------
    >>> rows = [{"kind": "step", "step": 1, "loss": 0.9}]
    >>> rows.append({"kind": "evaluation", "step": 1, "error": 0.25})
    >>> plot_training({"FLARE++": rows}, theme=Theme(dpi=50)).final_error
    {'FLARE++': 0.25}
    """
    paths = check_paths(path)
    if not histories:
        raise ValueError("histories is empty; give the rows of at least one run by its name")
    final, best = {}, {}
    with styled(theme):
        colors = theme.line_colors()
        key = {name: {"color": colors[i % len(colors)]} for i, name in enumerate(histories)}
        floors = [_series(r, "evaluation", "mean_predictor_error") for r in histories.values()]
        # Runs on the same data share it.
        levels = {round(100 * float(floor[-1, 1]), 3) for floor in floors if len(floor)}
        mean = {"color": theme.foreground, "linestyle": ":", "linewidth": 0.8}
        named = key | ({"predicting the training mean": mean} if levels else {})
        sheet, (losses, errors) = axes_in_a_row(2, theme, title=title, key=named)
        for name, records in histories.items():
            steps = _series(records, "step", "loss")
            tests = _series(records, "evaluation", "error")
            if not len(steps) and not len(tests):
                raise ValueError(f"run {name!r} has logged neither a loss nor an error yet")
            losses.plot(*_thinned(steps).T, **key[name])
            errors.plot(*(tests * (1, 100)).T, **key[name], marker=".")
            if len(tests):
                final[name], best[name] = float(tests[-1, 1]), float(tests[:, 1].min())
        for level in levels:
            errors.axhline(level, **mean)
        for axis, label in ((losses, "training loss"), (errors, "test error, rel. L2 [%]")):
            log_numbers(axis)
            few_ticks(axis)
            axis.set_xlabel("step")
            axis.set_ylabel(label)
            axis.grid(alpha=0.25, linewidth=0.5, which="both")
        image, paths = sheet.finish(paths)
    return TrainingCurves(image, final, best, paths)


def _series(records: Sequence[Mapping[str, Any]], kind: str, key: str) -> np.ndarray:
    """Return steps and finite values, (n, 2)."""
    pairs = [(r["step"], r[key]) for r in records if r["kind"] == kind and r.get(key) is not None]
    series = np.array(pairs, float).reshape(-1, 2)
    return series[np.isfinite(series).all(1)]


def _thinned(series: np.ndarray) -> np.ndarray:
    """Return means over consecutive steps, at most about 200 of them."""
    n = max(1, len(series) // _SMOOTHED_TO)
    starts = np.arange(0, len(series), n)
    if not len(starts):
        return series
    counts = np.diff(np.append(starts, len(series)))[:, None]
    return np.add.reduceat(series, starts) / counts
