"""Loss and errors of runs as they trained."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from .curves import UNTITLED, axes_in_a_row, few_ticks, log_numbers
from .files import Paths, check_paths
from .sheets import styled
from .theme import LIGHT, Theme

_SMOOTHED_TO = 200  # points of a loss curve
_STYLES = {"val": {"marker": "."}, "test": {"marker": ".", "linestyle": "--"}}
_SPLIT_NAMES = {"val": "validation", "test": "test"}


@dataclass(frozen=True)
class TrainingCurves:
    """The figure and the last numbers of each run.

    Parameters
    ----------
    image : numpy.ndarray
        The page, (height, width, 3).
    final_error, best_error : dict
        Error of each run at its last evaluation and at its best, as fractions: on validation cases
        or, where none were evaluated, on test cases.
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
    """Draw training loss and validation or test error of one or several runs.

    Parameters
    ----------
    histories : Mapping[str, sequence of Mapping]
        For each curve, by its name, rows in the order of steps: ``{"kind": "step", "step": 1,
        "loss": 0.9}`` and ``{"kind": "evaluation", "split": "val", "step": 1, "error": 0.8}``, the
        latter with ``mean_predictor_error`` where it is known, and ``{"kind": "result", ...}`` with
        the same entries after the last step. Without a ``split`` an error is that of test cases.
    title, theme, path
        As in :func:`plot_comparison`.

    Returns
    -------
    TrainingCurves
        Loss curves are means over equal numbers of steps where a run has many; the dotted line is
        the error of predicting the training mean. Errors on validation cases are lines with dots,
        those on test cases dashed lines, and a star is the result.

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
    final, best, drawn = {}, {}, {}
    with styled(theme):
        colors = theme.line_colors()
        key = {name: {"color": colors[i % len(colors)]} for i, name in enumerate(histories)}
        # Of what the curve shows, and of the result where there is no curve.
        kinds = {n: {r["kind"] for r in rows} & {"evaluation"} for n, rows in histories.items()}
        floors = [
            _series(records, *(kinds[name] or {"result"}), "mean_predictor_error")
            for name, records in histories.items()
        ]
        # Runs on the same data share it.
        levels = {round(100 * float(floor[-1, 1]), 3) for floor in floors if len(floor)}
        mean = {"color": theme.foreground, "linestyle": ":", "linewidth": 0.8}
        named = key | ({"predicting the training mean": mean} if levels else {})
        sheet, (losses, errors) = axes_in_a_row(2, theme, above=UNTITLED, title=title, key=named)
        for name, records in histories.items():
            steps = _series(records, "step", "loss")
            found = {s: _series(records, "evaluation", "error", s) for s in _STYLES}
            found = {split: series for split, series in found.items() if len(series)}
            result = _series(records, "result", "error")
            if not len(steps) and not found:
                raise ValueError(f"run {name!r} has logged neither a loss nor an error yet")
            losses.plot(*_thinned(steps).T, **key[name])
            for split, series in found.items():
                errors.plot(*(series * (1, 100)).T, **key[name], **_STYLES[split])
                drawn[split] = None
            # Open, so that it hides no dot.
            hollow = {"marker": "*", "markersize": 9, "markerfacecolor": "none", "linestyle": ""}
            errors.plot(*(result * (1, 100)).T, **key[name], **hollow)
            for series in [*found.values(), result][:1]:
                if len(series):
                    final[name], best[name] = float(series[-1, 1]), float(series[:, 1].min())
        for level in levels:
            errors.axhline(level, **mean)
        # One evaluation alone would be drawn on a range of a few steps around it.
        ranges = np.array([axis.get_xlim() for axis in (losses, errors) if axis.has_data()])
        losses.set_xlim(ranges[:, 0].min(), ranges[:, 1].max())
        errors.sharex(losses)
        drawn = [split for split in _STYLES if split in drawn]
        shown = " and ".join(_SPLIT_NAMES[split] for split in drawn) or "test"
        shown += " (dashed)" if len(drawn) > 1 else ""
        results = {r.get("split") for rows in histories.values() for r in rows}
        star = "; star: test" if "val" in drawn and "test" in results - {*drawn} else ""
        shown = f"{shown} error, rel. L2 [%]{star}"
        for axis, label in ((losses, "training loss"), (errors, shown)):
            log_numbers(axis)
            few_ticks(axis)
            axis.set_xlabel("step")
            axis.set_ylabel(label)
            axis.grid(alpha=0.25, linewidth=0.5, which="both")
        image, paths = sheet.finish(paths)
    return TrainingCurves(image, final, best, paths)


def _series(
    records: Sequence[Mapping[str, Any]], kind: str, key: str, split: str | None = None
) -> np.ndarray:
    """Return steps and finite values, (n, 2), of one split or of all."""
    pairs = [
        (r["step"], r[key])
        for r in records
        if r["kind"] == kind
        and r.get(key) is not None
        and (split is None or r.get("split", "test") == split)
    ]
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
