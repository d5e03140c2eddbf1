"""One page per run: what was trained, its errors and figures, and a 3D view, in a single file."""

import base64
import hashlib
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment
from omegaconf import OmegaConf

from .. import __version__
from ..datapipes.config import load_yaml
from ..design import open_shape, shape_sensitivity
from ..evaluation import Bounds, ForceSettings, Report, figures, reports
from ..evaluation.bounds import bound_rows, stored_bounds
from ..evaluation.file_predictions import case_promise
from ..evaluation.predictions import CHOICES, predict_with_all, read_case, stored_errors
from ..files import replace_text
from ..progress import progress_bar
from ..runs import read_metrics
from ..runs.directory import CONFIG, record_written
from ..runs.trained_run import Run, distinct_names
from ..texts import number_columns, printable
from ..training.baselines import describe_baselines
from ..training.reporting import SPLIT_NAMES
from ..visualization import RenderingUnavailable, require_rendering
from ..visualization.canvases import error_limits
from ..visualization.views import ALL_AROUND
from .scene import Layer, band_layer, case_layers, make_scene

PAGE = "report.html"
# Tokens of all held-out cases that the end of a training predicts and draws again: about a minute
# on a CPU.
AFTER_TRAINING = 5_000_000
Forces = tuple[ForceSettings | None, ForceSettings | None]


def write_page(
    directories: Sequence[Path],
    open_run: Callable[[Path], Run],
    output: Path | None = None,
    *,
    forces: Callable[[Run], Forces] = lambda run: (None, None),
    drawn: Sequence[Path] = (),
    largest: float = float("inf"),
) -> Path:
    """Write everything about some runs to one HTML file, which needs no network; return it.

    By default that is ``report.html`` of the first run, which chooses the cases that are shown.
    Writes ``evaluation.csv`` of each run as well. `forces` returns the force conventions of a run
    and of its targets; `drawn` are figures that exist already, by the names that ``flarepp plot``
    gives them. With more than `largest` tokens in all cases, the page shows the errors that
    training measured and the median case only, and says so.
    """
    output = Path(output or directories[0] / PAGE)
    with tempfile.TemporaryDirectory() as folder:
        existing = {path.stem: path for path in drawn if path.suffix == ".png"}
        content = _Content(list(directories), open_run, forces, Path(folder), existing, largest)
        text = render_page(**content.gather())
    output.parent.mkdir(parents=True, exist_ok=True)
    replace_text(output, text)
    for directory in directories:
        record_written(directory, {directory / "evaluation.csv", output} & set(directory.iterdir()))
    return output


def render_page(**content: Any) -> str:
    """Return the page with this content; all of it is text to the browser, whatever it says."""
    here = files(__package__)
    script = (here / "viewer.js").read_text()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment = Environment(autoescape=True, trim_blocks=True)
    environment.filters["number_columns"] = number_columns
    template = environment.from_string((here / "page.html").read_text())
    empty = {"live": False, "scene": None, "warnings": [], "runs": [], "links": {}, "drops": False}
    return template.render(empty | content, script=script, digest=digest, version=__version__)


@dataclass
class _Content:
    """What a page shows of some runs; what cannot be shown is a warning on it."""

    directories: list[Path]
    open_run: Callable[[Path], Run]
    forces: Callable[[Run], Forces]
    folder: Path
    drawn: Mapping[str, Path]
    largest: float
    warnings: list[str] = field(default_factory=list)

    def gather(self) -> dict[str, Any]:
        """Return the content of the template."""
        self.names = distinct_names(self.directories)
        of_fields = not any(map(figures.classifies, self.directories))
        steps = [self._curves]
        if of_fields:
            steps += [self._reports, self._scene, self._cases]
            steps += [] if self._is_large else [self._parity, self._routes]
        found: dict[str, Any] = {}
        with progress_bar("report", len(steps), True) as advance:
            for step in steps:
                try:
                    found |= step()
                except RenderingUnavailable as reason:
                    self._warn(f"Some figures are missing: {reason}")
                advance()
        told: list[Report | None] = found.pop("reports", [None] * len(self.names))
        runs = [
            self._about(directory, name) | (_tables(report) if report else {})
            for directory, name, report in zip(self.directories, self.names, told, strict=True)
        ]
        title = ", ".join(self.names)
        return {
            "title": f"Run {title}" if len(runs) == 1 else f"Runs {title}",
            "subtitle": f"written {datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
            "runs": runs,
            "warnings": self.warnings,
            "csv": "errors.csv" if of_fields and self._is_large else "evaluation.csv",
            "links": {case["id"]: case["anchor"] for case in found.get("cases", [])},
            **found,
        }

    def _warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)

    @cached_property
    def runs(self) -> list[Run]:
        """The runs, opened when they are first needed."""
        return [self.open_run(directory) for directory in self.directories]

    @cached_property
    def _is_large(self) -> bool:
        run = self.runs[0]
        if np.isinf(self.largest) or stored_errors(run) is None:
            return False
        tokens = len(run.case_ids) * len(read_case(run, 0).coordinates)
        if tokens > self.largest:
            self._warn(
                f"The held-out cases have about {tokens:,} points, so this page shows the errors "
                f"that training measured, and one case. flarepp report {run.directory} adds forces "
                "and errors at full resolution, further cases, routes and sensitivities."
            )
        return tokens > self.largest

    @cached_property
    def _comparable(self) -> int:
        """How many runs, from the first, can be shown side by side: all, or one."""
        if len(self.runs) == 1:
            return 1
        try:
            predict_with_all(self.runs, self.names, self.runs[0].case_ids[0])
        except ValueError as reason:
            self._warn(f"Figures show {self.names[0]} only: {reason}")
            return 1
        return len(self.runs)

    @cached_property
    def _conventions(self) -> list[tuple[ForceSettings | None, ForceSettings | None]]:
        return [self.forces(run) for run in self.runs]  # once: it prints why there are none

    def _reports(self) -> dict[str, Any]:
        self.reports = []
        for number, (run, name) in enumerate(zip(self.runs, self.names, strict=True)):
            if self._is_large:
                self.reports.append(Report(name, stored_errors(run), None, None, None, ()))
                continue
            report = reports.evaluate_run(run, *self._conventions[number], progress=False)
            reports.write_report(report, run.directory / "evaluation.csv")
            self.reports.append(report)
            if report.verdict:
                self._warn(f"{name}: {report.verdict}")
        return {
            "reports": self.reports,
            "comparison": reports.comparison_rows(self.reports) if len(self.runs) > 1 else None,
        }

    def _scene(self) -> dict[str, Any]:
        run, count = self.runs[0], self._comparable
        case_id = figures.chosen_case(run, "median", self.reports[0].errors)
        found = predict_with_all(self.runs[:count], self.names[:count], case_id)
        one = next(iter(found.values()))
        layers, promise = case_layers(found, figures.preset_of(run, one)), case_promise(run, one)
        notes = promise.lines()
        if promise.bounds is not None:
            values = (one.coordinates, one.prediction, one.channels.fields)
            bands = promise.bounds.bands(*values, promise.level, promise.distance)
            for several, band in zip(layers.values(), bands.values(), strict=True):
                several.append(band_layer(band, promise.level))
        settings = self._conventions[0][0]
        try:
            if settings is not None and not self._is_large:
                layers |= _sensitivities(run, one.metadata["source"], one.association, settings)
        except (OSError, ValueError) as reason:  # it is one quantity of many
            notes.append(f"No sensitivities: {reason}")
        settings = settings or ForceSettings("", None, 1, 1.0)
        up = "xyz"[int(np.argmax(np.abs(settings.lift_axis)))]
        title = f"case {case_id}, the median error of {self.names[0]}"
        scene = make_scene(title, one.mesh, one.association, layers, up=up, notes=notes)
        return {"scene": scene}

    def _cases(self) -> dict[str, Any]:
        require_rendering()
        run, count, shown = self.runs[0], self._comparable, {}
        errors = self.reports[0].errors
        for choice in CHOICES[:1] if self._is_large else CHOICES:
            case_id = figures.chosen_case(run, choice, errors)
            if case_id in shown:  # of very few cases
                continue
            fields = list(run.channels.fields)
            stems = {name: figures.file_name(f"comparison_{choice}_{name}") for name in fields}
            missing = [name for name in fields if stems[name] not in self.drawn]
            if missing:
                of = {"fields": missing, "labels": self.names[:count], "errors": errors}
                figures.draw_comparison(self.runs[:count], choice, self.folder, **of)
            alt = (
                f" of case {case_id}, the {choice} of {self.names[0]}: reference, prediction and "
                "error, with the relative L2 error above each panel."
            )
            shown[case_id] = {
                "id": case_id,
                "anchor": f"{choice}-case",
                "title": f"{choice.capitalize()} case: {case_id}",
                "pictures": [self._picture(stems[name], name + alt) for name in fields],
            }
        return {"cases": list(shown.values())}

    def _parity(self) -> dict[str, Any]:
        having = [(n, r) for n, r in zip(self.names, self.reports, strict=True) if r.forces]
        same = [(n, r) for n, r in having if r.errors.case_ids == having[0][1].errors.case_ids]
        if not same:
            return {"parity": []}
        names, of = zip(*same, strict=True)
        figures.draw_parity(of, self.folder, labels=names)
        alt = "Drag and lift from predicted fields over those from the reference, a dot per case."
        return {"parity": [self._picture("parity", alt)]}

    def _routes(self) -> dict[str, Any]:
        case = figures.chosen_case(self.runs[0], "median", self.reports[0].errors)
        pairs = zip(self.runs, self.names, strict=True)
        pairs = [(r, n) for r, n in pairs if figures.has_routes(r) and case in r.case_ids]
        if not pairs:
            return {"routes": []}
        runs, names = zip(*pairs, strict=True)
        figures.draw_spectrum(runs, case, self.folder, labels=names)
        spectrum = "Singular values of the routing matrices of each block, mean over heads."
        shown = [self._picture("spectrum", f"{spectrum} Case {case}.")]
        require_rendering()
        figures.draw_routing(runs[0], case, self.folder, cameras=ALL_AROUND, label=names[0])
        alt = f"Where the heaviest routes of {names[0]} draw from and return to on case {case}."
        return {"routes": [self._picture("routing", alt), *shown]}

    def _curves(self) -> dict[str, Any]:
        if "training" not in self.drawn:
            try:
                figures.draw_training(self.directories, self.folder)
            except (OSError, ValueError) as reason:
                self._warn(f"No training curves: {reason}")
                return {}
        alt = "Loss and validation error over the steps of training."
        return {"curves": [self._picture("training", alt)]}

    def _picture(self, stem: str, alt: str) -> dict[str, str]:
        path = self.drawn.get(stem, self.folder / f"{stem}.png")
        return {"data": base64.b64encode(path.read_bytes()).decode(), "alt": printable(alt)}

    def _about(self, directory: Path, name: str) -> dict[str, Any]:
        config, bounds = load_yaml(directory / CONFIG), None
        model = OmegaConf.select(config, "model._target_") or "?"
        about: dict[str, object] = {"model": str(model).rpartition(".")[2]}
        if not figures.classifies(directory):
            run = self.runs[self.names.index(name)]
            count = sum(parameter.numel() for parameter in run.model.parameters())
            about["parameters"] = f"{count:,}"
            about["fields"] = ", ".join(run.channels.fields)
            inputs = ["coordinates", *run.channels.features, *run.channels.globals]
            about["inputs"] = ", ".join(inputs)
            cases = (run.training_set or {}).get("cases")
            about["training cases"] = "?" if cases is None else f"{cases:,}"
            known = stored_bounds([run])
            bounds = known if isinstance(known, Bounds) else None
        sources = [config.data.get(k) for k in ("builtin", "benchmark", "root", "sequences")]
        about["data"] = str(next(filter(None, sources), "memory"))
        counts = {split: config.data.get(f"n_{split}") for split in ("train", "val", "test")}
        about |= {f"configured cases, {split}": str(n) for split, n in counts.items() if n}
        about |= _costs(directory)
        versions, command = directory / "versions.json", directory / "command.txt"
        if command.is_file():
            about["command"] = command.read_text().strip()
        packages = json.loads(versions.read_text()) if versions.is_file() else {}
        return {
            "name": name,
            "bounds": bounds and bound_rows(bounds),
            "bound_notes": bounds.remarks if bounds else (),
            "about": [["what", "value"], *map(list, about.items())],
            "config": OmegaConf.to_yaml(config),
            "versions": [["package", "version"], *([k, str(v)] for k, v in packages.items())],
        }


def _costs(directory: Path) -> dict[str, str]:
    try:
        rows = read_metrics(directory)
    except FileNotFoundError:
        return {}
    found = {"steps": f"{max((row['step'] for row in rows), default=0):,}"}
    for key, name, form, pick in (
        ("seconds_per_step", "median time of a step", "{:.3g} s", np.median),
        ("tokens_per_second", "median tokens per second", "{:,.0f}", np.median),
        ("memory_mb", "peak memory", "{:,.0f} MB", max),
    ):
        if values := [float(row[key]) for row in rows if row.get(key) is not None]:
            found[name] = form.format(pick(values))
    return found


def _tables(report: Report) -> dict[str, Any]:
    """Return a report and its tables, the worst case first."""
    errors, header, *rows = report.errors, *reports.case_rows(report)
    order = np.argsort(-errors.per_case, kind="stable")
    counts, edges = np.histogram(errors.per_case, bins=min(24, max(4, len(rows) // 4)))
    return {
        "report": report,
        "split": SPLIT_NAMES[report.split],
        "errors": reports.error_rows(report),
        "baselines": describe_baselines(report.baselines) if report.baselines else None,
        "cases": [header, *(rows[i] for i in order)],
        "worst": errors.case_ids[order[0]],
        "worst_error": errors.per_case[order[0]],
        "forces": reports.force_rows(report) if report.forces is not None else None,
        "counts": counts.tolist(),
        "edges": [f"{100 * edge:.3g} %" for edge in edges],
    }


def _sensitivities(
    run: Run, path: str, association: str, settings: ForceSettings
) -> dict[str, list[Layer]]:
    """Return how drag and lift change with the shape, at the tokens of a surface."""
    shape = open_shape(run, path, settings=settings, progress=False)
    layers = []
    for quantity in ("drag", "lift"):
        values = shape_sensitivity(shape, quantity).per_area
        if association == "cell":
            mesh = shape.mesh
            sums = np.add.reduceat(values[mesh.connectivity], mesh.offsets[:-1])
            values = sums / np.diff(mesh.offsets)
        limits = error_limits({quantity: values})
        layers.append(Layer(f"of {quantity}, per outward displacement and area", values, limits,
                            "errors"))  # fmt: skip
    return {"sensitivity": layers}
