"""How many of its M routes a mixer uses: singular values of its routing matrices."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from .curves import colors_by_name, log_numbers
from .pages import Drawing, Page, Paths, check_paths, styled
from .theme import LIGHT, Theme

# Singular values below this share of the largest are noise of fp32 weights.
_FLOOR = 1e-8
_LARGEST_SHARE = 0.99
_BAND = "line: geometric mean of the heads; band: from the least to the greatest head"
_AT_THE_FLOOR = "values below 10$^{-8}$, which single precision does not resolve, are drawn there"


@dataclass(frozen=True)
class Spectrum(Drawing):
    """The figure and, per model and block, how many routes carry the matrix.

    Parameters
    ----------
    image : numpy.ndarray
        The page, (height, width, 3).
    paths : tuple of Path
        Files written.
    effective_rank : dict
        For each model the mean over heads of the least number of singular values that hold 99 %
        of the squared sum, one number per block.
    """

    effective_rank: dict[str, tuple[float, ...]]


def effective_rank(values: Float[np.ndarray, "... M"]) -> np.ndarray:
    """Return how many of the largest singular values hold 99 % of the sum of squares.

    >>> effective_rank(np.array([[1.0, 0.0, 0.0], [1.0, 1.0, 1.0]])).tolist()
    [1, 3]
    """
    energy = np.cumsum(np.asarray(values, float) ** 2, axis=-1)
    return (energy < _LARGEST_SHARE * energy[..., -1:] * (1 - 1e-12)).sum(-1) + 1


def plot_spectrum(
    spectra: Mapping[str, Float[np.ndarray, "blocks heads M"]],
    *,
    title: str | None = None,
    theme: Theme = LIGHT,
    path: Paths = None,
) -> Spectrum:
    """Draw singular values of routing matrices over their number relative to M, block by block.

    Lines are the geometric mean over heads, bands reach from the least to the greatest head;
    values below 1e-8 of the largest are drawn at 1e-8. The figure says so.

    Parameters
    ----------
    spectra : Mapping[str, numpy.ndarray]
        For each model an array (blocks, heads, M), the largest first, such as
        ``inference.routing_spectra`` gives.
    title, theme, path
        As in :func:`plot_comparison`.

    Examples
    --------
    >>> values = np.geomspace(1, 1e-2, 16) * np.ones((2, 4, 1))
    >>> plot_spectrum({"FLARE++": values}, theme=Theme(dpi=50)).effective_rank
    {'FLARE++': (8.0, 8.0)}
    """
    paths = check_paths(path)
    spectra = {name: _checked_spectrum(name, values) for name, values in spectra.items()}
    if not spectra:
        raise ValueError("spectra is empty; give at least one array by the name of its model")
    n_blocks = max(len(values) for values in spectra.values())
    shares = {name: values / values[..., :1] for name, values in spectra.items()}
    lowest = min(float(values.min()) for values in shares.values())
    ranks = {n: tuple(effective_rank(v).mean(-1).tolist()) for n, v in spectra.items()}
    with styled(theme):
        width = 2.2 if n_blocks > 1 else 3.8
        page = Page(theme, [width * theme.dpi] * n_blocks, [2.2 * theme.dpi])
        axes, colors = page.axes[0], colors_by_name(spectra, theme)
        for name, values in shares.items():
            n_routes = values.shape[-1]
            place = np.arange(1, n_routes + 1) / n_routes
            for axis, heads in zip(axes, np.maximum(values, _FLOOR), strict=False):
                axis.plot(place, np.exp(np.log(heads).mean(0)), color=colors[name])
                low, high = heads.min(0), heads.max(0)
                axis.fill_between(place, low, high, color=colors[name], alpha=0.2, linewidth=0)
        for block, axis in enumerate(axes):
            axis.set_xlim(0, 1)
            axis.set_ylim(min(0.5, max(lowest, _FLOOR)) * 0.7, 1.5)
            log_numbers(axis)
            axis.set_title(f"block {block + 1}")
            axis.set_xlabel("index of the value / M")
        axes[0].set_ylabel("singular value / largest")
        key = {f"{n}, M = {v.shape[-1]}": {"color": colors[n]} for n, v in spectra.items()}
        page.key(key, title)
        page.note(f"{_BAND}\n{_AT_THE_FLOOR}" if lowest < _FLOOR else _BAND)
        image, paths = page.finish(paths)
    return Spectrum(image, paths, ranks)


def _checked_spectrum(name: str, values: np.ndarray) -> np.ndarray:
    values = np.asarray(values, float)
    if values.ndim != 3 or 0 in values.shape:
        raise ValueError(
            f"the spectrum of {name!r} has shape {values.shape}, expected (blocks, heads, M)"
        )
    sound = np.isfinite(values).all() and (values >= 0).all() and (values[..., 0] > 0).all()
    if not sound or (np.diff(values, axis=-1) > 1e-9 * values[..., :1]).any():
        raise ValueError(
            f"the spectrum of {name!r} must hold finite singular values, the largest first and "
            "positive"
        )
    return values
