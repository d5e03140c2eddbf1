"""Draw trained runs: fields and errors, training curves, forces, routes and spectra."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from ..evaluation import (
    CaseErrors,
    Report,
    Run,
    chosen_case,
    draw_comparison,
    draw_gallery,
    draw_parity,
    draw_queries,
    draw_routing,
    draw_spectrum,
    draw_training,
    evaluate_run,
    export_case,
    force_settings,
    predict_with_all,
    read_case,
    stored_errors,
    target_settings,
)
from ..evaluation.errors import CHOICES
from ..evaluation.figures import FIGURES, file_name
from ..evaluation.predictions import find_case
from ..evaluation.routing_figures import has_routes
from ..evaluation.trained_run import distinct_names
from ..visualization import DARK, LIGHT, RenderingUnavailable, Theme, require_rendering
from ..visualization.interactive import require_html
from .arguments import force_overrides, load_chosen_run, on_surfaces


def usual_figures(runs: Sequence[Run]) -> tuple[str, ...]:
    """Return the figures that are drawn by default: forces where a run is on surfaces."""
    forces = ("parity",) if any(map(on_surfaces, runs)) else ()
    return ("comparison", "training", *forces, "routing", "spectrum")


def run(options: argparse.Namespace) -> list[Path]:
    """Draw the figures that the options choose.

    Where no OpenGL can be had, what needs none is drawn and exported, and the process ends with
    code 1.

    Returns
    -------
    list of Path
        The files written, without the exports for ParaView.
    """
    if options.html:
        require_html()
    work = _Work(options)
    paths: list[Path] = []
    for name in work.figures:
        print(f"drawing {name}", flush=True)
        paths += getattr(work, name)()
    print(f"figures: {work.directory}")
    if work.missing:
        raise SystemExit(f"not drawn: {', '.join(work.missing)}")
    return paths


@dataclass
class _Work:
    """What the figures of one command share; runs are loaded when a figure needs them."""

    options: argparse.Namespace
    missing: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.figures = self.options.figures or usual_figures(self.runs)
        self.directory = self.options.output or self.options.runs[0] / FIGURES
        self.labels = distinct_names(self.options.runs, self.options.labels)
        theme = DARK if self.options.dark else LIGHT
        if self.options.dpi is not None:
            theme = replace(theme, dpi=self.options.dpi)
        self.look: dict[str, Sequence[str] | Theme] = {
            "formats": self.options.formats,
            "theme": theme,
        }

    @cached_property
    def runs(self) -> list[Run]:
        return [load_chosen_run(path, self.options) for path in self.options.runs]

    @cached_property
    def errors(self) -> CaseErrors | None:
        """Of the first run, where they choose the case; evaluated once for all figures."""
        first, case = self.runs[0], self.options.case
        if case in first.case_ids or case not in CHOICES:
            return None
        if (left := stored_errors(first)) is not None:
            return left
        reports = self.reports if "parity" in self.figures else []
        reported = next((report.errors for run, _, report in reports if run is first), None)
        return evaluate_run(first).errors if reported is None else reported

    @cached_property
    def case(self) -> str:
        return chosen_case(self.runs[0], self.options.case, self.errors)

    def _can_render(self, figure: str) -> bool:
        try:
            require_rendering()
        except RenderingUnavailable as reason:
            if not self.missing:
                print(f"no figures of fields: {reason}")
            self.missing.append(figure)
            return False
        return True

    def comparison(self) -> list[Path]:
        case = self.case  # an unknown one is refused before anything is predicted
        if not self._can_render("comparison"):
            export_case(predict_with_all(self.runs, self.labels, case), self.directory)
            return []
        pictures = draw_comparison(
            self.runs,
            self.options.case,
            self.directory,
            fields=self.options.fields,
            labels=self.labels,
            errors=self.errors,
            html=self.options.html,
            **self.look,
        )
        return [path for picture in pictures for path in picture.paths]

    def gallery(self) -> list[Path]:
        if not self._can_render("gallery"):
            return []
        return list(draw_gallery(self.runs, self.directory, labels=self.labels, **self.look).paths)

    def training(self) -> list[Path]:
        drawn = draw_training(self.options.runs, self.directory, labels=self.labels, **self.look)
        return list(drawn.paths)

    @cached_property
    def reports(self) -> list[tuple[Run, str, Report]]:
        """Of the runs that have forces, with their labels.

        Where forces are only drawn by default, it is said of which runs there are none; where
        they were asked for, that is an error.
        """
        asked = self.options.figures is not None
        if self.options.no_forces and not asked:
            return []
        given, reports = force_overrides(self.options), []
        for run, label in zip(self.runs, self.labels, strict=True):
            try:
                settings = force_settings(run, given), target_settings(run, given)
                _ = read_case(run, 0).polygons  # told before all cases are predicted
            except ValueError as reason:
                if asked:
                    raise
                print(f"no parity of {label}: {reason}")
                continue
            report = evaluate_run(run, *settings)
            if report.forces is not None:
                reports.append((run, label, report))
            elif asked:
                raise ValueError(f"run {run.name}: {'; '.join(report.notes)}")
            else:
                print(f"no parity of {label}: {'; '.join(report.notes)}")
        return reports

    def parity(self) -> list[Path]:
        if not self.reports:
            return []
        _, labels, reports = zip(*self.reports, strict=True)
        return list(draw_parity(reports, self.directory, labels=labels, **self.look).paths)

    def _with_routes(self, figure: str) -> list[tuple[Run, str]]:
        """Return the runs whose models have routes with their labels, and name the others."""
        pairs = list(zip(self.runs, self.labels, strict=True))
        for run, label in pairs:
            if not has_routes(run):
                print(f"no {figure} of {label}: only FLARE and FLARE++ of this package have routes")
        return [(run, label) for run, label in pairs if has_routes(run)]

    def spectrum(self) -> list[Path]:
        chosen = self._with_routes("spectrum")
        if not chosen:
            return []
        runs, labels = zip(*chosen, strict=True)
        drawn = draw_spectrum(runs, self.case, self.directory, labels=labels, **self.look)
        return list(drawn.paths)

    def routing(self) -> list[Path]:
        chosen = self._with_routes("routing")
        if not chosen:
            return []
        other = self._other_case()
        rendered = self._can_render("routing")
        paths: list[Path] = []
        for number, (run, label) in enumerate(chosen):
            suffix = f"_{file_name(label)}" if number else ""
            look = self.look | {"label": label, "suffix": suffix}
            if rendered:
                maps, change = draw_routing(
                    run, self.case, self.directory, other_case=other, **look
                )
                paths += [*maps.paths, *(change.paths if change is not None else ())]
            elif other is not None:
                paths += draw_queries(run, (self.case, other), self.directory, **look).paths
        return paths

    def _other_case(self) -> str | None:
        """Return the second case of the queries: as named, or the first that is not shown."""
        named = self.options.other_case
        if named is None:
            return next((name for name in self.runs[0].case_ids if name != self.case), None)
        find_case(self.runs[0], named)
        if named == self.case:
            raise ValueError(f"--other-case {named} is the case that is shown; name another one")
        return named
