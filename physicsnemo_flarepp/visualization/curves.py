"""Figures of lines and points: training curves and parity of predicted numbers."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.ticker import (
    LogFormatterSciNotation,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    StrMethodFormatter,
)

from ..ops.errors import r_squared
from .canvases import check_values
from .pages import LIGHT, Drawing, Page, Paths, Theme

_SMOOTHED_TO = 200  # points of a loss curve
_STYLES = {"val": {"marker": "."}, "test": {"marker": ".", "linestyle": "--"}}
_SPLIT_NAMES = {"val": "validation", "test": "test"}
# Open, so that it hides no dot.
_STAR = {"marker": "*", "markersize": 9, "markerfacecolor": "none", "linestyle": ""}
_MARKERS = "osD^vP"


@dataclass(frozen=True)
class TrainingCurves(Drawing):
    """The figure, and the error of each run at its last evaluation and at its best.

    Errors are fractions, on validation cases or, where none were evaluated, on test cases.
    """

    final_error: dict[str, float]
    best_error: dict[str, float]


def plot_training(
    histories: Mapping[str, Sequence[Mapping[str, Any]]],
    *,
    title: str | None = None,
    measure: str = "rel. L2",
    constant: str = "the training mean",
    theme: Theme = LIGHT,
    path: Paths = None,
) -> TrainingCurves:
    """Draw training loss and validation or test error of one or several runs.

    Loss curves are means over equal numbers of steps where a run has many; the dotted line is the
    error of predicting the training mean. Errors on validation cases are lines with dots, errors
    on test cases dashed lines, and a star is the result.

    Parameters
    ----------
    histories : Mapping[str, sequence of Mapping]
        For each curve, by its name, rows in the order of steps: ``{"kind": "step", "step": 1,
        "loss": 0.9}`` and ``{"kind": "evaluation", "split": "val", "step": 1, "error": 0.8}``, the
        latter with ``mean_predictor_error`` where it is known, and ``{"kind": "result", ...}`` with
        the same entries after the last step. Without a ``split`` an error is that of test cases.
    measure, constant : str
        What errors are, and what the prediction is whose error is ``mean_predictor_error``.
    title, theme, path
        As in :func:`plot_comparison`.

    Examples
    --------
    >>> rows = [{"kind": "step", "step": 1, "loss": 0.9}]
    >>> rows.append({"kind": "evaluation", "step": 1, "error": 0.25})
    >>> plot_training({"FLARE++": rows}, theme=Theme(dpi=50)).final_error
    {'FLARE++': 0.25}
    """
    if not histories:
        raise ValueError("histories is empty; give the rows of at least one run by its name")
    final, best, splits = {}, {}, set()
    with Page(theme, [3.0 * theme.dpi] * 2, [2.2 * theme.dpi], path) as page:
        losses, errors = page.axes[0]
        key = {name: {"color": color} for name, color in colors_by_name(histories, theme).items()}
        levels = set()  # of predicting the mean; runs on the same data share it
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
            splits |= set(found)
            errors.plot(*(result * (1, 100)).T, **key[name], **_STAR)
            first = next(iter([*found.values(), result]))
            if len(first):
                final[name], best[name] = float(first[-1, 1]), float(first[:, 1].min())
            # Of what the curve shows, and of the result where there is no curve.
            kind = "evaluation" if any(r["kind"] == "evaluation" for r in records) else "result"
            floor = _series(records, kind, "mean_predictor_error")[-1:, 1]
            levels |= {round(100 * float(level), 3) for level in floor}
        mean = {"color": theme.foreground, "linestyle": ":", "linewidth": 0.8}
        for level in levels:
            errors.axhline(level, **mean)
        page.key(key | ({f"predicting {constant}": mean} if levels else {}), title)
        # One evaluation alone would be drawn on a range of a few steps around it.
        ranges = np.array([axis.get_xlim() for axis in (losses, errors) if axis.has_data()])
        losses.set_xlim(ranges[:, 0].min(), ranges[:, 1].max())
        errors.sharex(losses)
        drawn = [split for split in _STYLES if split in splits]
        shown = " and ".join(_SPLIT_NAMES[split] for split in drawn) or "test"
        shown += " (dashed)" if len(drawn) > 1 else ""
        results = {r.get("split") for rows in histories.values() for r in rows}
        star = "; star: test" if "val" in drawn and "test" in results - {*drawn} else ""
        labels = {losses: "training loss", errors: f"{shown} error, {measure} [%]{star}"}
        for axis, label in labels.items():
            log_numbers(axis)
            axis.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))
            axis.set_xlabel("step")
            page.beside(axis, label)
            axis.grid(alpha=0.25, linewidth=0.5, which="both")
    return TrainingCurves(*page.drawn, final, best)


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
    n = max(1, len(series) // _SMOOTHED_TO)
    means = [series[start : start + n].mean(0) for start in range(0, len(series), n)]
    return np.reshape(means, (-1, 2))


def colors_by_name(names: Mapping[str, Any], theme: Theme) -> dict[str, str]:
    """Return the colour of each curve."""
    colors = theme.line_colors()
    return {name: colors[number % len(colors)] for number, name in enumerate(names)}


def log_numbers(axis: Axes) -> None:
    """Make the y axis logarithmic with enough plain numbers to read values."""
    # Draw curves and set limits before; an axis without a curve stays as it is.
    if not any(np.size(line.get_ydata()) for line in axis.lines):
        return
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    decades = np.log10(high / low)
    if decades < 1:
        places = MaxNLocator(7, steps=[1, 2, 5, 10])
    else:
        places = LogLocator(subs=(1, 2, 5) if decades < 2.5 else (1,), numticks=9)
    axis.yaxis.set_major_locator(places)
    plain = StrMethodFormatter("{x:g}")
    powers = LogFormatterSciNotation(minor_thresholds=(np.inf, np.inf))
    axis.yaxis.set_major_formatter(plain if 1e-4 < low and high < 1e5 else powers)
    axis.yaxis.set_minor_formatter(NullFormatter())


@dataclass(frozen=True)
class Parity(Drawing):
    """The figure and the coefficient of determination of each model and quantity.

    It is NaN for a single case and where all true values are equal.
    """

    r_squared: dict[str, dict[str, float]]


def plot_parity(
    truth: Mapping[str, Float[np.ndarray, " n"]],
    predictions: Mapping[str, Mapping[str, Float[np.ndarray, " n"]]],
    *,
    title: str | None = None,
    theme: Theme = LIGHT,
    path: Paths = None,
) -> Parity:
    """Draw predicted over true values, one panel per quantity, one mark per case.

    `truth` has the values of each quantity over the cases, such as ``{"drag": ..., "lift": ...}``,
    `predictions` the same of each model. Other arguments are as in :func:`plot_comparison`.

    Examples
    --------
    >>> truth = {"drag": np.array([0.2, 0.3, 0.4])}
    >>> drawn = plot_parity(truth, {"FLARE++": truth}, theme=Theme(dpi=50))
    >>> drawn.r_squared
    {'FLARE++': {'drag': 1.0}}
    """
    if not truth or not predictions:
        raise ValueError("truth and predictions must each name at least one array")
    scores: dict[str, dict[str, float]] = {model: {} for model in predictions}
    look = {"linestyle": "none", "markersize": 3.5, "markeredgewidth": 0, "alpha": 0.85}
    side = 2.2 * theme.dpi
    with Page(theme, [side] * len(truth), [side], path) as page:
        colors = colors_by_name(predictions, theme)
        for axis, (quantity, values) in zip(page.axes[0], truth.items(), strict=True):
            true = check_values(f"true {quantity}", values, len(values), what="case")
            for number, (model, found) in enumerate(predictions.items()):
                if quantity not in found:
                    raise ValueError(f"{model!r} predicts {sorted(found)}, not {quantity!r}")
                name = f"{quantity} of {model!r}"
                predicted = check_values(name, found[quantity], len(true), what="case")
                score = r_squared(torch.from_numpy(predicted), torch.from_numpy(true))
                scores[model][quantity] = score
                label = f"{model}, R² = {'-' if math.isnan(score) else f'{score:.3f}'}"
                mark = {"marker": _MARKERS[number % len(_MARKERS)], "color": colors[model]}
                axis.plot(true, predicted, label=label, **mark, **look)
            seen = np.concatenate([true, *(line.get_ydata() for line in axis.lines)])
            low, high = seen.min(), seen.max()
            margin = 0.08 * (high - low) or 0.05 * max(abs(high), 1e-12)
            limits = low - margin, high + margin
            axis.plot(limits, limits, color=theme.foreground, linewidth=0.6, zorder=0)
            axis.set(xlim=limits, ylim=limits, xlabel=f"true {quantity}")
            page.beside(axis, f"predicted {quantity}")
            for direction in (axis.xaxis, axis.yaxis):
                direction.set_major_locator(MaxNLocator(5))
            # Above the axes, where no case is.
            place = {"loc": "lower left", "bbox_to_anchor": (0, 1), "borderpad": 0}
            legend = axis.legend(**place, handletextpad=0)
            for text, model in zip(legend.get_texts(), predictions, strict=True):
                page.fit(text, 0.85 * side, text.get_text().removeprefix(model))
        page.title(title)
    return Parity(*page.drawn, scores)
