"""The figures that ``flarepp plot`` draws of some runs, with what they share computed once."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from ..runs.trained_run import Run, distinct_names
from ..texts import printable
from ..visualization import LIGHT, Camera, RenderingUnavailable, Theme, require_rendering
from ..visualization.pages import Drawing
from ..visualization.views import ALL_AROUND
from . import figures
from .forces import force_settings, target_settings
from .predictions import CHOICES, CaseErrors, find_case, predict_with_all, read_case, stored_errors
from .reports import Report, evaluate_run


@dataclass
class FigureSet:
    """Figures of some run directories, a method each.

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
        self.directory = self.output or self.directories[0] / figures.FIGURES
        self.names = distinct_names(self.directories, self.labels)
        self.look = {"formats": self.formats, "theme": self.theme}
        self._figures: Sequence[str] = ()

    def draw(self, names: Sequence[str]) -> list[Path]:
        """Draw these figures and return the files, without the exports for ParaView."""
        self._figures, paths = names, []
        for name in names:
            print(f"drawing {name}", flush=True)
            paths += [path for each in getattr(self, f"_{name}")() for path in each.paths]
        return paths

    @cached_property
    def runs(self) -> list[Run]:
        """The runs, opened when the first figure needs them."""
        return [self.open_run(directory) for directory in self.directories]

    @cached_property
    def errors(self) -> CaseErrors | None:
        """Of the first run, if they choose the case; evaluated once for all figures."""
        if self.case not in CHOICES:
            return None
        if (left := stored_errors(self.runs[0])) is not None:
            return left
        reports = self.reports if "parity" in self._figures else []
        reported = [report.errors for run, _, report in reports if run is self.runs[0]]
        return reported[0] if reported else evaluate_run(self.runs[0], baselines=False).errors

    @cached_property
    def shown_case(self) -> str:
        """Id of the case."""
        return figures.chosen_case(self.runs[0], self.case, self.errors)

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
        return figure not in self.missing

    def _with_routes(self, figure: str) -> list[tuple[Run, str]]:
        """Return the runs whose models have routes with their names, and print the others."""
        pairs = list(zip(self.runs, self.names, strict=True))
        for run, name in pairs:
            if not figures.has_routes(run):
                print(f"no {figure} of {name}: only FLARE and FLARE++ of this package have routes")
        return [(run, name) for run, name in pairs if figures.has_routes(run)]

    def _comparison(self) -> list[Drawing]:
        case = self.shown_case  # an unknown one is refused before anything is predicted
        if not self._can_render("comparison"):
            figures.export_case(predict_with_all(self.runs, self.names, case), self.directory)
            return []
        more = {name: getattr(self, name) for name in ("fields", "errors", "html", "cameras")}
        more |= {"labels": self.names, **self.look}
        return figures.draw_comparison(self.runs, self.case, self.directory, **more)

    def _gallery(self) -> list[Drawing]:
        if not self._can_render("gallery"):
            return []
        return [figures.draw_gallery(self.runs, self.directory, labels=self.names, **self.look)]

    def _training(self) -> list[Drawing]:
        runs = self.directories
        return [figures.draw_training(runs, self.directory, labels=self.names, **self.look)]

    def _parity(self) -> list[Drawing]:
        if not self.reports:
            return []
        _, names, reports = zip(*self.reports, strict=True)
        return [figures.draw_parity(reports, self.directory, labels=names, **self.look)]

    def _spectrum(self) -> list[Drawing]:
        if not (chosen := self._with_routes("spectrum")):
            return []
        runs, names = zip(*chosen, strict=True)
        place = self.shown_case, self.directory
        return [figures.draw_spectrum(runs, *place, labels=names, **self.look)]

    def _routing(self) -> list[Drawing]:
        if not (chosen := self._with_routes("routing")):
            return []
        case, other = self.shown_case, self._second_case()
        rendered = self._can_render("routing")
        drawn, cameras = [], self.routing_cameras or ALL_AROUND
        for number, (run, name) in enumerate(chosen):
            suffix = f"_{figures.file_name(name)}" if number else ""
            more = self.look | {"label": name, "suffix": suffix}
            if rendered:
                routing = figures.draw_routing(run, case, self.directory, cameras=cameras, **more)
                drawn.append(routing)
            if other is not None:
                drawn.append(figures.draw_queries(run, (case, other), self.directory, **more))
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
