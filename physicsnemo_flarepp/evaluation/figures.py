"""Figures of trained runs: the pictures of ``visualization``, with the data of run directories."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from omegaconf import OmegaConf
from torch import Tensor

from .. import visualization as vis
from ..datapipes.config import load_yaml
from ..inference import routing_queries, routing_spectra, routing_weights
from ..meshes.export import export_mesh
from ..mixers import FlareMixer, FlarePPMixer, Mixer
from ..runs import read_metrics
from ..runs.directory import CONFIG, record_written
from ..runs.trained_run import Run, distinct_names, load_run
from ..texts import printable
from ..visualization import LIGHT, Camera, RenderingUnavailable, Theme, require_rendering
from ..visualization.canvases import is_volume, slice_volume
from ..visualization.pages import plain_label
from ..visualization.routing import effective_rank
from ..visualization.views import ALL_AROUND
from .predictions import (
    CHOICES,
    Case,
    CaseErrors,
    CasePrediction,
    case_mesh,
    find_case,
    predict_with_all,
    read_case,
    stored_errors,
)
from .reports import Report, evaluate_run

FIGURES = "figures"
_USUAL_ROUTES = 4
_CLASSES = {"measure": "wrong class", "constant": "the commonest class"}


def chosen_case(run: Run, case: str, errors: CaseErrors | None = None) -> str:
    """Return the id of the test case to show: ``median``, ``worst``, ``best``, or the given id.

    The errors of the run choose it, by default those that training left; without them all test
    cases are predicted.
    """
    if case in run.case_ids or case not in CHOICES:
        return run.case_ids[find_case(run, case)]
    if errors is None:
        errors = stored_errors(run) or evaluate_run(run, baselines=False).errors
    return errors.choose(case)


def preset_of(run: Run, case: Case) -> vis.Preset:
    """Return how the data of a run is shown."""
    data = run.config.data
    name, builtin = data.get("benchmark") or data.get("builtin"), data.get("builtin")
    return vis.preset_for(name, builtin=builtin is not None, dimension=case.coordinates.shape[1])


def draw_comparison(
    runs: Sequence[Run],
    case: str = "median",
    directory: str | os.PathLike | None = None,
    *,
    fields: Sequence[str] | None = None,
    labels: Sequence[str] | None = None,
    errors: CaseErrors | None = None,
    cameras: Sequence[str | Camera] | None = None,
    formats: Sequence[str] = ("png",),
    html: bool = False,
    theme: Theme = LIGHT,
) -> list[vis.Comparison]:
    """Draw one test case as all runs predict it, a figure per field, and write it for ParaView.

    Writes ``comparison_<case>_<field>.png`` (and further `formats`) and ``case_<id>.vtp`` or
    ``.vts``, with arrays as in :mod:`physicsnemo_flarepp.meshes.export`.

    Parameters
    ----------
    runs : sequence of Run
        From :func:`load_run`; the first one chooses the case.
    case : str
        ``median``, ``worst``, ``best`` by the first run's error, or an id.
    directory : path-like, optional
        Where to write; by default ``figures`` of the first run.
    fields : sequence of str, optional
        Fields or single channels; all fields by default. Vectors are shown by their magnitude;
        above a panel are the errors of the magnitude and of the vector, which is that of the
        tables. Of a volume the middle slice is drawn, and errors refer to the slice, but for those
        of vectors.
    labels : sequence of str, optional
        Names of the runs in the figure.
    errors : CaseErrors, optional
        Of the first run, as in :func:`chosen_case`.
    cameras : sequence of str or Camera, optional
        Views of a surface, instead of the usual four.
    formats : sequence of str
        ``png``, ``pdf``, ``svg``.
    html : bool
        Write interactive pages as well; needs the extra ``html``.
    theme : Theme
        Look of the figures.
    """
    names = distinct_names([run.directory for run in runs], labels)
    require_rendering()
    directory = Path(directory or runs[0].directory / FIGURES)
    case_id = chosen_case(runs[0], case, errors)
    found = predict_with_all(runs, names, case_id)
    one = found[names[0]]
    mesh, preset, place = one.mesh, preset_of(runs[0], one), one.association
    # The norm of training, in which its table gives errors.
    in_integrals = OmegaConf.select(runs[0].config, "training.norm") == "measure"
    weights = runs[0].test_set.read_measure(one.index) if in_integrals else None
    volume = is_volume(mesh)
    title = f"case {plain_label(case_id)}"
    title += f", {case} error of {names[0]}" if case != case_id else ""
    title += ", middle slice along y" if volume else ""
    drawn, stems = [], set()
    for name in fields or list(one.channels.fields):
        stem = file_name(f"comparison_{case}_{name}")
        while stem in stems:  # fields whose names differ in what is replaced only
            stem += "_"
        stems.add(stem)
        vector, label = name not in one.field_names, preset.labels.get(name, plain_label(name))
        arrays = [one.scalars(name, one.target)]
        arrays += [each.scalars(name, each.prediction) for each in found.values()]
        shown, shares = mesh, weights
        if volume:
            arrays += [] if weights is None else [weights]
            shown, cut = slice_volume(mesh, np.stack(arrays, axis=1), place)
            arrays = list(cut.T)
            shares = None if weights is None else arrays.pop()
        reference, predicted = arrays[0], dict(zip(found, arrays[1:], strict=True))
        off = {n: c.error(name, weights) for n, c in found.items()} if vector else None
        try:
            picture = vis.plot_comparison(
                shown,
                reference,
                predicted,
                field=f"|{label}|" if vector else label,
                units=preset.units.get(name),
                association=place,
                cameras=cameras,
                crop=preset.crop,
                vector_errors=off,
                weights=shares,
                title=title,
                theme=theme,
                path=figure_paths(directory, stem, formats),
            )
        except ValueError as error:
            told = f"{name} of case {case_id!r}, runs {', '.join(names)}: {error}"
            raise ValueError(told) from error
        drawn.append(picture)
        look = {"association": place, "limits": picture.field_limits, "theme": theme}
        for of, values in {"reference": reference, **predicted}.items() if html else ():
            vis.export_html(directory / f"{stem}_{file_name(of)}.html", shown, values, **look)
    export_case(found, directory)
    return drawn


def export_case(found: Mapping[str, CasePrediction], directory: str | os.PathLike) -> Path:
    """Write targets, predictions and errors of a case for ParaView; return ``case_<id>.vtp``.

    `found` is by the names of the runs; a grid is written as ``.vts``, a volume as ``.vtu``.
    """
    one = next(iter(found.values()))
    return export_mesh(case_mesh(found), Path(directory), file_name(f"case_{one.case_id}"))


def draw_gallery(
    runs: Sequence[Run],
    directory: str | os.PathLike,
    *,
    labels: Sequence[str] | None = None,
    formats: Sequence[str] = ("png",),
    theme: Theme = LIGHT,
) -> vis.Gallery:
    """Draw the first test case of a run per data set, input and target, to ``gallery.png``.

    Arguments are as in :func:`draw_comparison`; `labels` are the titles of the columns.
    """
    exhibits = []
    names = distinct_names([run.directory for run in runs], labels)
    for run, title in zip(runs, names, strict=True):
        case = read_case(run, 0)
        preset, name = preset_of(run, case), next(iter(case.channels.fields))
        label = preset.labels.get(name, plain_label(name))
        source, given = None, preset.source
        if given in case.feature_names:
            source = case.features[:, case.feature_names.index(given)]
        exhibit = vis.Exhibit(
            title=title,
            case=plain_label(case.case_id),
            mesh=case.mesh,
            target=case.scalars(name, case.target),
            target_label=vis.with_units(label, preset.units.get(name)),
            source=source,
            source_label=preset.labels.get(given, plain_label(given or "geometry")),
            association=case.association,
            crop=preset.crop,
        )
        exhibits.append(exhibit)
    return vis.plot_gallery(exhibits, theme=theme, path=figure_paths(directory, "gallery", formats))


def draw_training(
    directories: Sequence[str | os.PathLike],
    directory: str | os.PathLike,
    *,
    labels: Sequence[str] | None = None,
    formats: Sequence[str] = ("png",),
    theme: Theme = LIGHT,
) -> vis.TrainingCurves:
    """Draw the curves of run directories, finished or not, to ``training.png``.

    The other arguments are as in :func:`draw_comparison`.
    """
    names = distinct_names(directories, labels)
    histories = {name: read_metrics(run) for name, run in zip(names, directories, strict=True)}
    words = _CLASSES if all(map(classifies, directories)) else {}
    path = figure_paths(directory, "training", formats)
    return vis.plot_training(histories, **words, theme=theme, path=path)


def classifies(directory: str | os.PathLike) -> bool:
    """Return whether a run directory is of a classifier of sequences, which has no fields."""
    path = Path(directory) / CONFIG
    return path.is_file() and load_yaml(path).data.get("sequences") is not None


def draw_parity(
    reports: Sequence[Report],
    directory: str | os.PathLike,
    *,
    labels: Sequence[str] | None = None,
    formats: Sequence[str] = ("png",),
    theme: Theme = LIGHT,
) -> vis.Parity:
    """Draw predicted over true drag and lift coefficients to ``parity.png``.

    `reports` are from :func:`evaluate_run` with force settings, of runs on the same test cases. The
    other arguments are as in :func:`draw_comparison`.
    """
    names = list(labels) if labels is not None else [report.name for report in reports]
    if not reports or len(names) != len(reports) or len(set(names)) < len(names):
        raise ValueError(
            f"{len(reports)} reports have the names {names}; give each a label of its own"
        )
    for report in reports:
        if report.forces is None or report.errors.case_ids != reports[0].errors.case_ids:
            raise ValueError(
                f"the report of run {report.name!r} has no forces, or other cases than the first; "
                "evaluate all runs with force settings on the same surfaces"
            )
    symbols = {"drag coefficient": "Cd", "lift coefficient": "Cl"}
    truth = {name: reports[0].forces.column(symbol)[1] for name, symbol in symbols.items()}
    predictions = {
        label: {name: report.forces.column(symbol)[0] for name, symbol in symbols.items()}
        for label, report in zip(names, reports, strict=True)
    }
    path = figure_paths(directory, "parity", formats)
    return vis.plot_parity(truth, predictions, theme=theme, path=path)


def _case_inputs(run: Run, case: int | str) -> Mapping[str, Tensor]:
    arguments = run.inputs(run.test_set[find_case(run, case)][0])
    taken = ("fx", "embedding", "time", "token_weights")
    return {key: arguments[key] for key in taken if key in arguments}


def has_routes(run: Run) -> bool:
    """Return whether all mixers of a run's model are FLARE or FLARE++ of this package."""
    mixers = [module for module in run.model.modules() if isinstance(module, Mixer)]
    return bool(mixers) and all(isinstance(m, FlareMixer | FlarePPMixer) for m in mixers)


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
) -> vis.RoutingMaps:
    """Draw where routes draw from and return to on a test case to ``routing.png``.

    Parameters
    ----------
    run : Run
        With the mixer flarepp or flare.
    case : int or str
        Test case, by position or id.
    heads : sequence of (int, int), optional
        (block, head) to show, counted from 0; by default in each block the head of the highest
        effective rank, because the others average over the whole case.
    routes : int, optional
        Routes per head, of the greatest mass; by default 4, or all where there are fewer.
    label : str, optional
        Name of the run in the title; that of its directory by default.
    suffix : str
        Ends the name of the file, where several runs are drawn to one directory.
    directory, cameras, formats, theme
        As in :func:`draw_comparison`.
    """
    inputs, shown = _case_inputs(run, case), read_case(run, case)
    if heads is None or routes is None:
        spectra = routing_spectra(run.model, **inputs).cpu().numpy()
    if routes is None:
        routes = min(_USUAL_ROUTES, spectra.shape[-1])
    if heads is None:
        heads = [(block, int(np.argmax(effective_rank(s)))) for block, s in enumerate(spectra)]
    weights = [
        routing_weights(run.model, **inputs, block=block, head=head, routes=routes).cpu()
        for block, head in heads
    ]
    return vis.plot_routing(
        shown.mesh,
        weights,
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
) -> vis.QueryChange:
    """Draw how the queries of a run change between two test cases to ``queries.png``.

    Arguments are as in :func:`draw_routing`.
    """
    names = tuple(run.case_ids[find_case(run, case)] for case in cases)
    if len(set(names)) < 2:
        raise ValueError(f"queries of case {names[0]!r} are compared with themselves; name another")
    both = [routing_queries(run.model, **_case_inputs(run, name)) for name in names]
    return vis.plot_query_change(
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
) -> vis.Spectrum:
    """Draw the singular values of the routing matrices of runs on a case to ``spectrum.png``.

    Runs have the mixer flarepp or flare. Other arguments are as in :func:`draw_comparison`.
    """
    names = distinct_names([run.directory for run in runs], labels)
    spectra = {
        name: routing_spectra(run.model, **_case_inputs(run, case)).cpu().numpy()
        for name, run in zip(names, runs, strict=True)
    }
    title = f"case {plain_label(runs[0].case_ids[find_case(runs[0], case)])}"
    paths = figure_paths(directory, "spectrum", formats)
    return vis.plot_spectrum(spectra, title=title, theme=theme, path=paths)


def draw_run(directory: str | os.PathLike) -> list[Path]:
    """Draw what a finished run leaves in its ``figures``: training curves and the median case.

    Returns the files. If OpenGL is unavailable or a figure fails, a message says why.
    """
    directory = Path(directory)
    target = directory / FIGURES
    before = set(target.rglob("*"))
    written: list[Path] = []
    try:
        written += draw_training([directory], target).paths
        if not classifies(directory):
            require_rendering()
            run = load_run(directory, trust=True)  # what it names, the training has just imported
            for picture in draw_comparison([run], "median", target):
                written += picture.paths
    except RenderingUnavailable as reason:
        print(f"no figures of fields: {reason}")
    except Exception as reason:  # whatever it is, the results of the training stand
        told = f"figures of {directory} failed: {reason}; draw again with flarepp plot {directory}"
        print(printable(told))
    if written:
        record_written(directory, set(target.rglob("*")) - before)
        print(f"figures: {target}")
    return written


def figure_paths(directory: str | os.PathLike, stem: str, formats: Sequence[str]) -> list[Path]:
    """Return the files of a figure, one per format."""
    return [Path(directory) / f"{stem}.{suffix}" for suffix in formats]


def file_name(words: str) -> str:
    """Return words as a name of a file, with what is not safe there replaced."""
    return "".join(c if c.isalnum() or c in "._-+" else "_" for c in words)
