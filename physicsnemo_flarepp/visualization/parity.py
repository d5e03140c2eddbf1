"""Predicted against true numbers, such as drag and lift."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, UInt8
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from ..ops.errors import r_squared
from .curves import TITLED, UNTITLED, axes_in_a_row
from .files import Paths, check_paths
from .sheets import Sheet, styled
from .theme import LIGHT, Theme

_MARKERS = "osD^vP"
_SIDE = 2.2  # inches of axes, and of a line of text
_LINE = 0.16


@dataclass(frozen=True)
class Parity:
    """The figure and the coefficients of determination.

    Parameters
    ----------
    image : numpy.ndarray
        The page, (height, width, 3).
    r_squared : dict
        For each model and quantity, one minus the squared errors over the squared deviations from
        the mean; NaN for a single case and where all true values are equal.
    paths : tuple of Path
        Files written.
    """

    image: UInt8[np.ndarray, "height width 3"]
    r_squared: dict[str, dict[str, float]]
    paths: tuple[Path, ...]


def plot_parity(
    truth: Mapping[str, Float[np.ndarray, " n"]],
    predictions: Mapping[str, Mapping[str, Float[np.ndarray, " n"]]],
    *,
    title: str | None = None,
    theme: Theme = LIGHT,
    path: Paths = None,
) -> Parity:
    """Draw predicted over true values, one panel per quantity, one mark per case.

    Parameters
    ----------
    truth : Mapping[str, numpy.ndarray]
        True values of each quantity over the cases, such as ``{"drag": ..., "lift": ...}``.
    predictions : Mapping[str, Mapping[str, numpy.ndarray]]
        The same of each model.
    title, theme, path
        As in :func:`plot_comparison`.

    Examples
    --------
    >>> truth = {"drag": np.array([0.2, 0.3, 0.4])}
    >>> drawn = plot_parity(truth, {"FLARE++": truth}, theme=Theme(dpi=50))
    >>> drawn.r_squared
    {'FLARE++': {'drag': 1.0}}
    """
    paths = check_paths(path)
    if not truth or not predictions:
        raise ValueError("truth and predictions must each name at least one array")
    truth = {name: _checked(f"true {name}", values, None) for name, values in truth.items()}
    scores: dict[str, dict[str, float]] = {}
    with styled(theme):
        names = _LINE * len(predictions)
        above = names + (UNTITLED if title is None else TITLED)
        sheet, axes = axes_in_a_row(len(truth), theme, width=_SIDE, height=_SIDE, above=above)
        colors = theme.line_colors()
        for axis, (quantity, true) in zip(axes, truth.items(), strict=True):
            seen = [true]
            for number, (model, values) in enumerate(predictions.items()):
                if quantity not in values:
                    raise ValueError(f"{model!r} predicts {sorted(values)}, not {quantity!r}")
                predicted = _checked(f"{quantity} of {model!r}", values[quantity], len(true))
                score = r_squared(torch.from_numpy(predicted), torch.from_numpy(true))
                scores.setdefault(model, {})[quantity] = score
                seen.append(predicted)
                axis.plot(
                    true,
                    predicted,
                    linestyle="none",
                    marker=_MARKERS[number % len(_MARKERS)],
                    markersize=3.5,
                    markeredgewidth=0,
                    alpha=0.85,
                    color=colors[number % len(colors)],
                )
                _name(sheet, axis, model, score, number, len(predictions))
            low, high = min(s.min() for s in seen), max(s.max() for s in seen)
            margin = 0.08 * (high - low) or 0.05 * max(abs(high), 1e-12)
            limits = low - margin, high + margin
            axis.plot(limits, limits, color=theme.foreground, linewidth=0.6, zorder=0)
            axis.set(xlim=limits, ylim=limits, xlabel=f"true {quantity}", aspect="equal")
            axis.set_ylabel(f"predicted {quantity}")
            for direction in (axis.xaxis, axis.yaxis):
                direction.set_major_locator(MaxNLocator(5))
        axes[0].set_title(title or "", loc="left", pad=72 * names + 6)
        image, paths = sheet.finish(paths)
    return Parity(image, scores, paths)


def _name(sheet: Sheet, axis: Axes, model: str, score: float, number: int, of: int) -> None:
    """Write a model's name and score above the axes, where no case is."""
    height = 0.08 + _LINE * (of - 1 - number)  # inches above the axes
    (mark,) = axis.get_lines()[-1:]
    axis.plot(
        [0.03],
        [1 + (height + 0.04) / _SIDE],
        transform=axis.transAxes,
        clip_on=False,
        marker=mark.get_marker(),
        markersize=mark.get_markersize(),
        markeredgewidth=0,
        color=mark.get_color(),
    )
    box, dpi = axis.get_position(), sheet.theme.dpi
    sheet.text(
        model,
        box.x0 * sheet.width + 0.13 * dpi,
        (1 - box.y1) * sheet.height - height * dpi,
        room=(_SIDE - 0.13) * dpi,
        size=sheet.theme.font_size - 1,
        align="left",
        valign="baseline",
        tail=f", R² = {score:.3f}",
    )


def _checked(name: str, values: np.ndarray, n: int | None) -> np.ndarray:
    values = np.asarray(values, float)
    if values.ndim != 1 or len(values) != (len(values) if n is None else n) or not len(values):
        expected = "(cases,)" if n is None else f"({n},)"
        raise ValueError(f"{name} has shape {values.shape}, expected {expected}: one per case")
    if not np.isfinite(values).all():
        case = int(np.flatnonzero(~np.isfinite(values))[0])
        raise ValueError(f"{name} holds {values[case]} for case number {case}")
    return values
