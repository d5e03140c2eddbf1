"""Figures of trained runs: the pictures of ``visualization``, with the data of run directories."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ..training.run_manifest import record_written
from ..visualization import (
    LIGHT,
    Comparison,
    Exhibit,
    Gallery,
    RenderingUnavailable,
    Theme,
    export_fields,
    export_html,
    fields_of_comparison,
    plot_comparison,
    plot_gallery,
    require_rendering,
    with_units,
)
from ..visualization.canvases import is_flat
from .cases import CasePrediction, predict_case
from .curve_figures import draw_training
from .errors import CaseErrors
from .shown_cases import (
    chosen_case,
    errors_for_choice,
    field_error,
    field_values,
    predict_with_all,
    preset_of,
    run_names,
)
from .trained_run import Run, load_run

FIGURES = "figures"


def draw_comparison(
    runs: Sequence[Run],
    case: str = "median",
    directory: str | os.PathLike | None = None,
    *,
    fields: Sequence[str] | None = None,
    labels: Sequence[str] | None = None,
    errors: CaseErrors | None = None,
    cameras: Sequence[str] | None = None,
    formats: Sequence[str] = ("png",),
    html: bool = False,
    theme: Theme = LIGHT,
) -> list[Comparison]:
    """Draw one test case as all runs predict it, and write its fields for ParaView.

    Writes ``comparison_<case>_<field>.png`` (and further `formats`) and ``case_<id>.vtp`` or
    ``.vtu``.

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
        above a panel are the errors of both, that of the vector being that of the tables.
    labels : sequence of str, optional
        Names of the runs in the figure.
    errors : CaseErrors, optional
        Of the first run, if they are known already (:func:`stored_errors`); otherwise all test
        cases are predicted at full resolution, unless `case` is an id.
    cameras : sequence of str, optional
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
    names = run_names(runs, labels)
    require_rendering()
    directory = Path(directory or runs[0].directory / FIGURES)
    case_id = chosen_case(runs[0], case, errors)
    found = predict_with_all(runs, names, case_id)
    one = found[names[0]]
    preset, mesh = preset_of(runs[0], one), one.mesh
    reason = "" if case == case_id else f", {case} error of {names[0]}"
    drawn = []
    for field in fields or list(one.channels.fields):
        stem = file_name(f"comparison_{case}_{field}")
        reference = field_values(one, field, one.target)
        shown = {n: field_values(c, field, c.prediction) for n, c in found.items()}
        vector = field not in one.field_names
        vector_errors = {n: field_error(c, field) for n, c in found.items()} if vector else None
        if cameras is None:
            cameras = None if is_flat(mesh) else preset.cameras
        label = preset.labels.get(field, field)
        try:
            picture = plot_comparison(
                mesh,
                reference,
                shown,
                field=f"|{label}|" if vector else label,
                units=preset.units.get(field),
                association=one.association,
                cameras=cameras,
                crop=preset.crop,
                vector_errors=vector_errors,
                title=f"case {case_id}{reason}",
                theme=theme,
                path=[directory / f"{stem}.{suffix}" for suffix in formats],
            )
        except ValueError as error:
            raise ValueError(
                f"{field} of case {case_id!r}, runs {', '.join(names)}: {error}"
            ) from error
        drawn.append(picture)
        if html:
            for name, values in {"reference": reference, **shown}.items():
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
    """Write targets, predictions and errors of a case, all fields, for ParaView.

    Parameters
    ----------
    found : Mapping[str, CasePrediction]
        The case as predicted by each run, by the names of the runs.
    directory : path-like
        Where ``case_<id>.vtp`` or ``.vtu`` goes.
    """
    one = next(iter(found.values()))
    arrays: dict[str, np.ndarray] = {}
    for field in one.channels.fields:
        columns = one.channels.columns(field)
        arrays |= fields_of_comparison(
            field, one.target[:, columns], {n: c.prediction[:, columns] for n, c in found.items()}
        )
    for i, name in enumerate(one.feature_names):
        arrays.setdefault(name, one.features[:, i])
    path = Path(directory) / file_name(f"case_{one.case_id}")
    return export_fields(path, one.mesh, arrays, association=one.association)


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
    for run, name in zip(runs, run_names(runs, labels), strict=True):
        case = predict_case(run, 0, progress=False)
        preset = preset_of(run, case)
        field = next(iter(case.channels.fields))
        source = None
        if preset.source in case.feature_names:
            source = case.features[:, case.feature_names.index(preset.source)]
        exhibits.append(
            Exhibit(
                title=name,
                case=case.case_id,
                mesh=case.mesh,
                target=field_values(case, field, case.target),
                target_label=with_units(preset.labels.get(field, field), preset.units.get(field)),
                source=source,
                source_label=preset.labels.get(preset.source, preset.source or "geometry"),
                association=case.association,
                crop=preset.crop,
            )
        )
    paths = [Path(directory) / f"gallery.{suffix}" for suffix in formats]
    return plot_gallery(exhibits, theme=theme, path=paths)


def draw_run(directory: str | os.PathLike) -> list[Path]:
    """Draw what a finished run leaves in its ``figures``: training curves and the median case.

    Where no OpenGL can be had, the curves are drawn, and a message says why the rest is missing.
    So it is with any figure that fails: the run is trained all the same.

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
        require_rendering()
        run = load_run(directory, trust=True)  # what it names, the training has just imported
        errors = errors_for_choice(run, "median", stored=True)
        for picture in draw_comparison([run], "median", target, errors=errors):
            written += picture.paths
    except RenderingUnavailable as reason:
        print(f"no figures of fields: {reason}")
    except Exception as reason:  # whatever it is, the results of the training stand
        print(f"figures of {directory} failed: {reason}; draw again with flarepp plot {directory}")
    if written:
        record_written(directory, set(target.rglob("*")) - before)
        print(f"figures: {target}")
    return written


def file_name(words: str) -> str:
    """Give words as a name of a file, with what is not safe there replaced.

    Examples
    --------
    >>> file_name("first/FLARE++, 1.5")
    'first_FLARE++__1.5'
    """
    return "".join(c if c.isalnum() or c in "._-+" else "_" for c in words)
