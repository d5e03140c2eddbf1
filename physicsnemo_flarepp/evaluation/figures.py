"""Figures of trained runs: the pictures of ``visualization``, with the data of run directories."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
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
from ..visualization.canvases import is_flat, is_volume, slice_volume
from ..visualization.pages import plain_label
from ..visualization.routing import effective_rank
from ..visualization.views import ALL_AROUND
from .forces import force_settings, target_settings
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
    """Return the id of the test case to show.

    Parameters
    ----------
    run : Run
        The run whose errors choose.
    case : str
        ``median``, ``worst``, ``best`` or an id.
    errors : CaseErrors, optional
        Errors of this run. By default those that training left; without them all test cases are
        predicted.
    """
    ids = run.case_ids
    if case in ids:
        return case
    if case not in CHOICES:
        some = ", ".join(ids[:20]) + (", ..." if len(ids) > 20 else "")
        raise ValueError(
            f"run {run.name!r}: case {case!r} is not known; choose one of {CHOICES} or one of the "
            f"{len(ids)} ids {some}"
        )
    if errors is None:
        errors = stored_errors(run) or evaluate_run(run, baselines=False).errors
    try:
        return errors.choose(case)
    except ValueError as error:
        raise ValueError(f"run {run.name!r}: {error}") from None


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
    """Draw one test case as all runs predict it, and write its fields for ParaView.

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
        above a panel are the errors of both, that of the vector being that of the tables. Of a
        volume the middle slice is drawn, and errors of magnitudes and scalars refer to the slice.
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

    Returns
    -------
    list of Comparison
        One per field.
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
                cameras=preset.cameras if cameras is None and not is_flat(shown) else cameras,
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
    """Write targets, predictions and errors of a case for ParaView; return the file.

    Parameters
    ----------
    found : Mapping[str, CasePrediction]
        The case as predicted by each run, by the names of the runs.
    directory : path-like
        Where ``case_<id>.vtp`` or ``.vts`` goes.
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
    """Draw input and target of a test case for each data set to ``gallery.png``.

    Parameters
    ----------
    runs : sequence of Run
        One per data set; its first test case and first field are shown.
    directory, labels, formats, theme
        As in :func:`draw_comparison`; labels are the titles of the columns.
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
    """Draw the curves of runs, finished or not, to ``training.png``.

    Parameters
    ----------
    directories : sequence of path-like
        Run directories.
    directory, labels, formats, theme
        As in :func:`draw_comparison`.
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

    Parameters
    ----------
    reports : sequence of Report
        From :func:`evaluate_run` with force settings, of runs on the same test cases.
    labels : sequence of str, optional
        Names of the runs in the figure; by default the names in the reports.
    directory, formats, theme
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

    Parameters
    ----------
    runs : sequence of Run
        With the mixer flarepp or flare.
    case : int or str
        Test case, by position or id.
    directory, labels, formats, theme
        As in :func:`draw_comparison`.
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

    If OpenGL is unavailable or a figure fails, a message says why it is missing.

    Parameters
    ----------
    directory : path-like
        The run directory; the files written are returned.
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
    """Return words as a name of a file, with what is not safe there replaced.

    >>> file_name("first/FLARE++, 1.5")
    'first_FLARE++__1.5'
    """
    return "".join(c if c.isalnum() or c in "._-+" else "_" for c in words)


@dataclass
class FigureSet:
    """Figures of some run directories, a method each, with what they share computed once.

    What cannot be drawn is printed; `missing` names the figures that need OpenGL and lack it.
    """

    directories: Sequence[Path]
    open_run: Callable[[Path], Run]
    output: Path | None = None
    labels: Sequence[str] | None = None
    case: str = "median"
    other_case: str | None = None
    fields: Sequence[str] | None = None
    formats: Sequence[str] = ("png",)
    theme: Theme = LIGHT
    html: bool = False
    cameras: Sequence[Camera] | None = None  # of surfaces
    routing_cameras: Sequence[Camera] | None = None
    forces: Mapping[str, object] = field(default_factory=dict)  # given conventions
    forces_asked: bool = False  # runs without forces are then an error
    missing: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.directory = self.output or self.directories[0] / FIGURES
        self.names = distinct_names(self.directories, self.labels)
        self.look = {"formats": self.formats, "theme": self.theme}
        self._figures: Sequence[str] = ()

    def draw(self, figures: Sequence[str]) -> list[Path]:
        """Draw these figures and return the files, without the exports for ParaView."""
        self._figures, paths = figures, []
        for figure in figures:
            print(f"drawing {figure}", flush=True)
            paths += [path for each in getattr(self, f"_{figure}")() for path in each.paths]
        return paths

    @cached_property
    def runs(self) -> list[Run]:
        """The runs, opened when the first figure needs them."""
        return [self.open_run(directory) for directory in self.directories]

    @cached_property
    def errors(self) -> CaseErrors | None:
        """Of the first run, if they choose the case; evaluated once for all figures."""
        first = self.runs[0]
        if self.case in first.case_ids or self.case not in CHOICES:
            return None
        if (left := stored_errors(first)) is not None:
            return left
        reports = self.reports if "parity" in self._figures else []
        reported = next((report.errors for run, _, report in reports if run is first), None)
        return evaluate_run(first, baselines=False).errors if reported is None else reported

    @cached_property
    def shown_case(self) -> str:
        """Id of the case."""
        return chosen_case(self.runs[0], self.case, self.errors)

    @cached_property
    def reports(self) -> list[tuple[Run, str, Report]]:
        """Reports of the runs that have forces, with their names."""
        reports = []
        for run, name in zip(self.runs, self.names, strict=True):
            try:
                settings = force_settings(run, self.forces), target_settings(run, self.forces)
                _ = read_case(run, 0).polygons  # raises before all cases are predicted
                report = evaluate_run(run, *settings, baselines=False)
                if report.forces is None:
                    raise ValueError(f"run {run.name}: {'; '.join(report.notes)}")
            except ValueError as reason:
                if self.forces_asked:
                    raise
                print(printable(f"no parity of {name}: {reason}"))
                continue
            reports.append((run, name, report))
        return reports

    def _can_render(self, figure: str) -> bool:
        try:
            require_rendering()
        except RenderingUnavailable as reason:
            if not self.missing:
                print(f"no figures of fields: {reason}")
            self.missing.append(figure)
            return False
        return True

    def _with_routes(self, figure: str) -> list[tuple[Run, str]]:
        """Return the runs whose models have routes with their names, and print the others."""
        pairs = list(zip(self.runs, self.names, strict=True))
        for run, name in pairs:
            if not has_routes(run):
                print(f"no {figure} of {name}: only FLARE and FLARE++ of this package have routes")
        return [(run, name) for run, name in pairs if has_routes(run)]

    def _comparison(self) -> list[vis.Comparison]:
        case = self.shown_case  # an unknown one is refused before anything is predicted
        if not self._can_render("comparison"):
            export_case(predict_with_all(self.runs, self.names, case), self.directory)
            return []
        more = {name: getattr(self, name) for name in ("fields", "errors", "html", "cameras")}
        more |= {"labels": self.names, **self.look}
        return draw_comparison(self.runs, self.case, self.directory, **more)

    def _gallery(self) -> list[vis.Gallery]:
        if not self._can_render("gallery"):
            return []
        return [draw_gallery(self.runs, self.directory, labels=self.names, **self.look)]

    def _training(self) -> list[vis.TrainingCurves]:
        return [draw_training(self.directories, self.directory, labels=self.names, **self.look)]

    def _parity(self) -> list[vis.Parity]:
        if not self.reports:
            return []
        _, names, reports = zip(*self.reports, strict=True)
        return [draw_parity(reports, self.directory, labels=names, **self.look)]

    def _spectrum(self) -> list[vis.Spectrum]:
        chosen = self._with_routes("spectrum")
        if not chosen:
            return []
        runs, names = zip(*chosen, strict=True)
        return [draw_spectrum(runs, self.shown_case, self.directory, labels=names, **self.look)]

    def _routing(self) -> list[vis.RoutingMaps | vis.QueryChange]:
        chosen = self._with_routes("routing")
        if not chosen:
            return []
        case, other = self.shown_case, self._second_case()
        rendered = self._can_render("routing")
        drawn, cameras = [], self.routing_cameras or ALL_AROUND
        for number, (run, name) in enumerate(chosen):
            suffix = f"_{file_name(name)}" if number else ""
            look = self.look | {"label": name, "suffix": suffix}
            if rendered:
                drawn.append(draw_routing(run, case, self.directory, cameras=cameras, **look))
            if other is not None:
                drawn.append(draw_queries(run, (case, other), self.directory, **look))
        return drawn

    def _second_case(self) -> str | None:
        """Return the second case of the queries: as named, or the first that is not shown."""
        named = self.other_case
        if named is None:
            return next((name for name in self.runs[0].case_ids if name != self.shown_case), None)
        find_case(self.runs[0], named)
        if named == self.shown_case:
            raise ValueError(f"--other-case {named} is the case that is shown; name another one")
        return named
