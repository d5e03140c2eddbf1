"""Figures of trained runs: the pictures of ``visualization``, with the data of run directories."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from omegaconf import OmegaConf

from ..datapipes.config import load_yaml
from ..meshes.export import export_mesh
from ..runs import read_metrics
from ..runs.directory import CONFIG, record_written
from ..runs.trained_run import Run, distinct_names, load_run
from ..texts import printable
from ..visualization import (
    LIGHT,
    Camera,
    Comparison,
    Exhibit,
    Gallery,
    Parity,
    Preset,
    RenderingUnavailable,
    Theme,
    TrainingCurves,
    export_html,
    plot_comparison,
    plot_gallery,
    plot_parity,
    plot_training,
    preset_for,
    require_rendering,
    with_units,
)
from ..visualization.canvases import is_flat, is_volume, slice_volume
from ..visualization.pages import plain_label
from .predictions import (
    CHOICES,
    Case,
    CaseErrors,
    CasePrediction,
    case_mesh,
    predict_with_all,
    read_case,
    stored_errors,
)
from .reports import COEFFICIENTS, Report, evaluate_run

FIGURES = "figures"


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


def preset_of(run: Run, case: Case) -> Preset:
    """Return how the data of a run is shown."""
    data = run.config.data
    name, builtin = data.get("benchmark") or data.get("builtin"), data.get("builtin")
    return preset_for(name, builtin=builtin is not None, dimension=case.coordinates.shape[1])


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
) -> list[Comparison]:
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
    # The norm of training, in which its table gives errors.
    in_integrals = OmegaConf.select(runs[0].config, "training.norm") == "measure"
    weights = runs[0].test_set.read_measure(one.index) if in_integrals else None
    preset, title = preset_of(runs[0], one), f"case {plain_label(case_id)}"
    if case != case_id:
        title += f", {case} error of {names[0]}"
    drawn, stems = [], set()
    for field in fields or list(one.channels.fields):
        stem = file_name(f"comparison_{case}_{field}")
        while stem in stems:  # fields whose names differ in what is replaced only
            stem += "_"
        stems.add(stem)
        vector = field not in one.field_names
        label = preset.labels.get(field, plain_label(field))
        mesh, arrays = one.mesh, [one.scalars(field, one.target)]
        arrays += [each.scalars(field, each.prediction) for each in found.values()]
        shares, volume = weights, is_volume(mesh)
        if volume:
            arrays += [] if weights is None else [weights]
            numbered = {f"array {number}": values for number, values in enumerate(arrays)}
            mesh, cut = slice_volume(mesh, numbered, one.association)
            arrays = list(cut.values())
            shares = None if weights is None else arrays.pop()
        reference, predicted = arrays[0], dict(zip(found, arrays[1:], strict=True))
        try:
            picture = plot_comparison(
                mesh,
                reference,
                predicted,
                field=f"|{label}|" if vector else label,
                units=preset.units.get(field),
                association=one.association,
                cameras=preset.cameras if cameras is None and not is_flat(mesh) else cameras,
                crop=preset.crop,
                vector_errors={n: c.error(field, weights) for n, c in found.items()}
                if vector
                else None,
                weights=shares,
                title=title + (", middle slice along y" if volume else ""),
                theme=theme,
                path=figure_paths(directory, stem, formats),
            )
        except ValueError as error:
            raise ValueError(
                f"{field} of case {case_id!r}, runs {', '.join(names)}: {error}"
            ) from error
        drawn.append(picture)
        for name, values in {"reference": reference, **predicted}.items() if html else ():
            export_html(
                directory / f"{stem}_{file_name(name)}.html",
                mesh,
                values,
                association=one.association,
                limits=picture.field_limits,
                theme=theme,
            )
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
) -> Gallery:
    """Draw input and target of a test case for each data set to ``gallery.png``.

    Parameters
    ----------
    runs : sequence of Run
        One per data set; its first test case and first field are shown.
    directory : path-like
        Where to write.
    labels : sequence of str, optional
        Titles of the columns; the names of the runs by default.
    formats, theme
        As in :func:`draw_comparison`.
    """
    exhibits = []
    names = distinct_names([run.directory for run in runs], labels)
    for run, name in zip(runs, names, strict=True):
        case = read_case(run, 0)
        preset = preset_of(run, case)
        field = next(iter(case.channels.fields))
        source = None
        if preset.source in case.feature_names:
            source = case.features[:, case.feature_names.index(preset.source)]
        exhibits.append(
            Exhibit(
                title=name,
                case=plain_label(case.case_id),
                mesh=case.mesh,
                target=case.scalars(field, case.target),
                target_label=with_units(
                    preset.labels.get(field, plain_label(field)), preset.units.get(field)
                ),
                source=source,
                source_label=preset.labels.get(
                    preset.source, plain_label(preset.source or "geometry")
                ),
                association=case.association,
                crop=preset.crop,
            )
        )
    return plot_gallery(exhibits, theme=theme, path=figure_paths(directory, "gallery", formats))


def draw_training(
    directories: Sequence[str | os.PathLike],
    directory: str | os.PathLike,
    *,
    labels: Sequence[str] | None = None,
    formats: Sequence[str] = ("png",),
    theme: Theme = LIGHT,
) -> TrainingCurves:
    """Draw the curves of runs, finished or not, to ``training.png``.

    Parameters
    ----------
    directories : sequence of path-like
        Run directories.
    directory : path-like
        Where to write.
    labels, formats, theme
        As in :func:`draw_comparison`.
    """
    names = distinct_names(directories, labels)
    classes = {"measure": "wrong class", "constant": "the commonest class"}
    return plot_training(
        {name: read_metrics(run) for name, run in zip(names, directories, strict=True)},
        **(classes if all(map(classifies, directories)) else {}),
        theme=theme,
        path=figure_paths(directory, "training", formats),
    )


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
) -> Parity:
    """Draw predicted over true drag and lift coefficients to ``parity.png``.

    Parameters
    ----------
    reports : sequence of Report
        From :func:`evaluate_run` with force settings, of runs on the same test cases.
    directory : path-like
        Where to write.
    labels : sequence of str, optional
        Names of the runs in the figure; by default the names in the reports.
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
    columns = {
        f"{name} coefficient": COEFFICIENTS.index(symbol)
        for name, symbol in (("drag", "Cd"), ("lift", "Cl"))
    }
    return plot_parity(
        {name: reports[0].forces.true[:, i] for name, i in columns.items()},
        {
            label: {name: report.forces.predicted[:, i] for name, i in columns.items()}
            for label, report in zip(names, reports, strict=True)
        },
        theme=theme,
        path=figure_paths(directory, "parity", formats),
    )


def draw_run(directory: str | os.PathLike) -> list[Path]:
    """Draw what a finished run leaves in its ``figures``: training curves and the median case.

    If OpenGL is unavailable or a figure fails, a message says why it is missing.

    Parameters
    ----------
    directory : path-like
        The run directory.

    Returns
    -------
    list of Path
        The files written.
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
