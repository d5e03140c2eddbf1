"""How the routes of a trained model lie on a case: maps, queries, spectra."""

import os
from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from ..inference import routing_queries, routing_spectra, routing_weights
from ..mixers import FlareMixer, FlarePPMixer, Mixer
from ..runs.trained_run import Run, distinct_names
from ..visualization import (
    LIGHT,
    QueryChange,
    RoutingMaps,
    Spectrum,
    Theme,
    plot_query_change,
    plot_routing,
    plot_spectrum,
)
from ..visualization.pages import plain_label
from ..visualization.routing import effective_rank
from ..visualization.views import ALL_AROUND, Camera
from .figures import figure_paths, preset_of
from .predictions import find_case, read_case

_USUAL_ROUTES = 4


def _case_inputs(run: Run, case: int | str) -> Mapping[str, Tensor]:
    """Return what the model of a run is called with on a test case."""
    sample, _ = run.test_set[find_case(run, case)]
    arguments = run.inputs(sample)
    taken = ("fx", "embedding", "time", "token_weights")
    return {key: arguments[key] for key in taken if key in arguments}


def has_routes(run: Run) -> bool:
    """Return whether all mixers of a run's model are FLARE or FLARE++ of this package."""
    mixers = [module for module in run.model.modules() if isinstance(module, Mixer)]
    return bool(mixers) and all(isinstance(m, FlareMixer | FlarePPMixer) for m in mixers)


def n_routes(run: Run) -> int:
    """Return the number of routes of each head, the least of all blocks."""
    mixers = [m for m in run.model.modules() if isinstance(m, FlareMixer | FlarePPMixer)]
    return min((m.seeds if isinstance(m, FlarePPMixer) else m.queries).shape[1] for m in mixers)


def telling_heads(spectra: np.ndarray) -> list[tuple[int, int]]:
    """Return (block, head) of the head of each block that spreads over the most routes.

    >>> spectra = np.array([[[1.0, 0.0], [1.0, 1.0]], [[1.0, 0.9], [1.0, 0.0]]])
    >>> telling_heads(spectra)
    [(0, 1), (1, 0)]
    """
    return [(block, int(np.argmax(effective_rank(heads)))) for block, heads in enumerate(spectra)]


def draw_routing(
    run: Run,
    case: int | str,
    directory: str | os.PathLike,
    *,
    heads: Sequence[tuple[int, int]] | None = None,
    routes: int | None = None,
    cameras: Sequence[str | Camera] = ALL_AROUND,
    label: str | None = None,
    suffix: str = "",
    formats: Sequence[str] = ("png",),
    theme: Theme = LIGHT,
) -> RoutingMaps:
    """Draw where routes draw from and return to on a test case to ``routing.png``.

    Parameters
    ----------
    run : Run
        With the mixer flarepp or flare.
    case : int or str
        Test case, by position or id.
    directory : path-like
        Where to write.
    heads : sequence of (int, int), optional
        (block, head) to show, counted from 0; by default in each block the head of the highest
        effective rank, because the others average over the whole case.
    routes : int, optional
        Routes per head, of the greatest mass; by default 4, or all where there are fewer.
    cameras : sequence of str or Camera
        Views of a surface.
    label : str, optional
        Name of the run in the title; that of its directory by default.
    suffix : str
        Ends the name of the file, where several runs are drawn to one directory.
    formats, theme
        As in :func:`draw_comparison`.
    """
    inputs, shown = _case_inputs(run, case), read_case(run, case)
    if routes is None:
        routes = min(_USUAL_ROUTES, n_routes(run))
    if heads is None:
        heads = telling_heads(routing_spectra(run.model, **inputs).cpu().numpy())
    return plot_routing(
        shown.mesh,
        [
            routing_weights(run.model, **inputs, block=block, head=head, routes=routes).cpu()
            for block, head in heads
        ],
        association=shown.association,
        cameras=cameras,
        crop=preset_of(run, shown).crop,
        title=f"{label or run.name}, case {plain_label(shown.case_id)}",
        theme=theme,
        path=figure_paths(directory, f"routing{suffix}", formats),
    )


def draw_queries(
    run: Run,
    cases: tuple[int | str, int | str],
    directory: str | os.PathLike,
    *,
    label: str | None = None,
    suffix: str = "",
    formats: Sequence[str] = ("png",),
    theme: Theme = LIGHT,
) -> QueryChange:
    """Draw how the queries of a run change between two test cases to ``queries.png``.

    Parameters
    ----------
    run : Run
        With the mixer flarepp or flare.
    cases : tuple of int or str
        Test cases, by position or id.
    directory, label, suffix, formats, theme
        As in :func:`draw_routing`.
    """
    names = tuple(run.case_ids[find_case(run, case)] for case in cases)
    if len(set(names)) < 2:
        raise ValueError(f"queries of case {names[0]!r} are compared with themselves; name another")
    both = [routing_queries(run.model, **_case_inputs(run, name)) for name in names]
    return plot_query_change(
        *(queries.cpu().numpy() for queries in both),
        cases=tuple(map(plain_label, names)),
        title=label or run.name,
        theme=theme,
        path=figure_paths(directory, f"queries{suffix}", formats),
    )


def draw_spectrum(
    runs: Sequence[Run],
    case: int | str,
    directory: str | os.PathLike,
    *,
    labels: Sequence[str] | None = None,
    formats: Sequence[str] = ("png",),
    theme: Theme = LIGHT,
) -> Spectrum:
    """Draw the singular values of the routing matrices of runs on a case to ``spectrum.png``.

    Parameters
    ----------
    runs : sequence of Run
        With the mixer flarepp or flare.
    case, directory
        As in :func:`draw_routing`.
    labels, formats, theme
        As in :func:`draw_comparison`.
    """
    names = distinct_names([run.directory for run in runs], labels)
    spectra = {
        name: routing_spectra(run.model, **_case_inputs(run, case)).cpu().numpy()
        for name, run in zip(names, runs, strict=True)
    }
    case_id = runs[0].case_ids[find_case(runs[0], case)]
    paths = figure_paths(directory, "spectrum", formats)
    return plot_spectrum(spectra, title=f"case {plain_label(case_id)}", theme=theme, path=paths)
