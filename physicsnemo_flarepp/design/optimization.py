"""A surface changed by a lattice until a quantity is best, within limits and near the training set.

SciPy's SLSQP works on exact gradients. Each shape that it tries is a line of ``history.jsonl`` with
its derivatives: the same problem, started again, reads them instead of computing them, and
resumes where it was stopped.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.ticker import MaxNLocator
from scipy.optimize import minimize
from torch import Tensor

from ..evaluation.differences import Difference, change_bounds
from ..evaluation.file_predictions import training_ranges
from ..evaluation.forces import force_surface
from ..files import append_whole, reading, replace_text, whole_file
from ..meshes import save_mesh, to_pyvista
from ..meshes.export import add_arrays
from ..meshes.geometry import surface_tensors
from ..meshes.polygons import unit_vectors
from ..texts import csv_text
from ..visualization import LIGHT, RenderingUnavailable, Theme, plot_surfaces
from ..visualization.pages import Page
from .lattice import Lattice
from .shape_model import ShapeModel, check_quantity

HISTORY = "history.jsonl"
# Sizes of a shape over those of the given one, and how much higher its lowest point is.
MEASURES = ("volume", "length", "width", "height", "clearance")
Limits = Mapping[str, tuple[float | None, float | None]]

# Cells are not squeezed to less than this share of their volume of space.
_FOLDED = 0.05
_FEASIBLE = 1e-4
_SHORTEST = 1e-3
_FIRST_STEP = 0.25


@dataclass(frozen=True)
class Problem:
    """What is minimised, and within which limits.

    Inputs may leave the ranges of the training set by `trust`, a share of these; further only where
    the given shape does; None: as far as they go. With `trust`, and for runs with bounds, `gate`
    asks the latent state, too, to be as near to training as the farthest held-out case, or as the
    given shape.
    """

    shape: ShapeModel  #: the given shape, from :func:`open_shape`
    lattice: Lattice  #: what may move
    weights: Mapping[str, float]  #: of the sum of quantities; a negative weight maximises
    displacement: float  #: the largest, of a control point and so of a vertex, along each axis
    #: Lowest and highest value, or None, of quantities and of :data:`MEASURES`.
    limits: Limits = field(default_factory=dict)
    trust: float | None = 0.05
    gate: bool = True

    def __post_init__(self) -> None:
        for name in (*self.weights, *(name for name in self.limits if name not in MEASURES)):
            check_quantity(name, self.shape.run, self.shape.settings)
        if not self.weights or not self.displacement > 0:
            raise ValueError("name a quantity to minimise, and a positive displacement")
        if self.trust is not None and training_ranges(self.shape.run) is None:
            raise ValueError(
                f"run {self.shape.run.name} did not store the ranges of its training set, so there "
                "is no trust region; give --anywhere"
            )

    def describe(self) -> dict[str, object]:
        """Return what makes this problem this one, as JSON holds it."""
        lattice, digest = self.lattice, hashlib.sha256(self.shape.points.numpy().tobytes())
        for parameter in self.shape.run.model.parameters():
            digest.update(parameter.detach().cpu().numpy().tobytes())
        return {
            "surface and model": digest.hexdigest(),
            "weights": dict(self.weights),
            "displacement": self.displacement,
            "limits": {name: list(ends) for name, ends in self.limits.items()},
            "trust": self.trust,
            "farthest": self.farthest,
            "lattice": [*lattice.origin.tolist(), *lattice.extent.tolist()],
            "free": lattice.free.flatten().int().tolist(),
            "reference": [self.shape.reference_area, self.shape.moving_area],
        }

    @cached_property
    def farthest(self) -> float | None:
        """Latent distance that is allowed: 1, or the given shape's; None where it is not asked."""
        if self.trust is None or not self.gate or isinstance(self.shape.bounds, str):
            return None
        return max(1.0, self.latent_distance(self.shape.points))

    def latent_distance(self, points: Float[Tensor, "P 3"]) -> float | None:
        """Return the distance of a shape's latent state from training, in the same measure."""
        distance = self.shape.promise(points).distance
        return None if distance is None else distance / float(self.shape.bounds.distances.max())

    def points(self, x: Float[np.ndarray, " n"] | Sequence[float]) -> Float[Tensor, "P 3"]:
        """Return the vertices of a shape; variables are displacements over the largest one."""
        moved = torch.as_tensor(x, dtype=torch.float64) * self.displacement
        return self.lattice.deform(self.shape.points, self.lattice.displacements(moved))

    def evaluate(self, x: Float[np.ndarray, " n"]) -> dict[str, object]:
        """Return what the history keeps of a shape: values, and derivatives by the variables."""
        variables = torch.as_tensor(x).requires_grad_()
        control = self.lattice.displacements(variables * self.displacement)
        row: dict[str, object] = {"x": x.tolist()}
        row["stretch"] = self.lattice.smallest_stretch(self.shape.points, control.detach())
        if row["stretch"] < _FOLDED:
            return row
        points = self.lattice.deform(self.shape.points, control)
        row["latent_distance"] = self.latent_distance(points.detach())
        if self.farthest is not None and row["latent_distance"] > self.farthest:
            return row

        def slope(value: Tensor, above: Tensor | None = None) -> list[float]:
            return torch.autograd.grad(value, variables, above, retain_graph=True)[0].tolist()

        values, gradient = self.shape.gradient(points.detach(), self.weights)
        row["values"] = {n: values[n] for n in dict.fromkeys((*self.weights, *self.limits))
                         if n in values}  # fmt: skip
        row["objective"] = sum(weight * values[name] for name, weight in self.weights.items())
        row["gradient"] = slope(points, gradient)
        measures = self._measures(points)
        row["measures"] = {name: value.item() for name, value in measures.items()}
        room: list[tuple[float, list[float]]] = []
        for name, ends in self.limits.items():
            if name in MEASURES:
                value, by = measures[name].item(), np.array(slope(measures[name]))
            else:
                by = np.array(slope(points, self.shape.gradient(points.detach(), {name: 1.0})[1]))
                value = values[name]
            for end, sign in zip(ends, (1.0, -1.0), strict=True):
                if end is not None:
                    room.append((sign * (value - end), (sign * by).tolist()))
        outside = self._outside(points)
        row["distance"] = None if outside is None else outside.max().item()
        if self.trust is not None:
            start = self._outside(self.shape.points)
            left = torch.clamp(start, min=self.trust) - outside
            room += [(value.item(), slope(value)) for value in left]
        row["room"], row["room_gradient"] = [list(x) for x in zip(*room, strict=True)] or [[], []]
        return row

    def _measures(self, points: Tensor) -> dict[str, Tensor]:
        mesh, start = self.shape.mesh, self.shape.points
        sizes, volumes = [], []
        for vertices in (points, start):
            sizes.append(vertices.amax(0) - vertices.amin(0))
            surface = surface_tensors(vertices - start.mean(0), mesh.connectivity, mesh.offsets)
            volumes.append((surface.positions * surface.vectors).sum() / 3)
        lowest = points[:, 2].amin() - start[:, 2].amin()
        ratios = [volumes[0] / volumes[1], *(sizes[0] / sizes[1]), lowest]
        return dict(zip(MEASURES, ratios, strict=True))

    def _outside(self, points: Tensor) -> Tensor | None:
        """Return how far tokens leave the training ranges, in these ranges; negative inside."""
        if (known := training_ranges(self.shape.run)) is None:
            return None
        mesh, place = self.shape.mesh, self.shape.run.channels.association
        tokens = surface_tensors(points, mesh.connectivity, mesh.offsets, place).positions
        low, high = tokens.amin(0), tokens.amax(0)
        floor, ceiling, smallest, largest = (
            torch.as_tensor(np.asarray(known[key][end], float))
            for key in ("coordinates", "extent")
            for end in ("min", "max")
        )
        span, size = (ceiling - floor).clamp(min=1e-12), high - low
        beyond = [floor - low, high - ceiling, smallest - size, size - largest]
        return torch.cat([distance / span for distance in beyond])


@dataclass(frozen=True)
class Outcome:
    """Every shape that was tried, in order, and the best of those within all limits."""

    rows: list[dict]
    best: dict
    interrupted: bool

    start = property(lambda self: self.rows[0])  # the given shape


class _Refused(Exception):
    pass


class _Enough(Exception):
    pass


def optimize(
    problem: Problem,
    directory: str | Path,
    *,
    evaluations: int = 40,
    report: Callable[[dict, int], None] | None = None,
) -> Outcome:
    """Return the shapes tried and the best; resumes from the history in `directory`.

    Ctrl-C ends it with the best so far. A lattice that folds space, or leads too far from the
    training cases, ends the step: SLSQP starts again from the best shape, with half the way to go.
    At most so many `evaluations` are made, those of the history included; `report` is called with
    the row of each new shape and its number.
    """
    path = Path(directory) / HISTORY
    rows = _read_history(path, problem.describe())
    known = {tuple(row["x"]): row for row in rows}
    # A resumed run starts again from the best of these, as the first did.
    seen: dict[tuple, dict] = {}
    n = int(problem.lattice.free.sum())

    def row_of(x: np.ndarray) -> dict:
        if (row := known.get(tuple(x.tolist()))) is None:
            if len(rows) >= evaluations:
                raise _Enough
            row = known[tuple(x.tolist())] = problem.evaluate(x)
            append_whole(path, (json.dumps(row) + "\n").encode())
            rows.append(row)
            if report is not None:
                report(row, len(rows))
        seen[tuple(row["x"])] = row
        if "objective" not in row:
            raise _Refused
        return row

    interrupted, reach = False, 1.0
    try:
        start = row_of(np.zeros(n))
        # The first step of SLSQP is as long as the gradient.
        scale = max(max(map(abs, start["gradient"])), 1e-12) / _FIRST_STEP
        middle = np.zeros(n)
        while reach > _SHORTEST:
            try:
                minimize(
                    lambda x: row_of(x)["objective"] / scale,
                    middle,
                    jac=lambda x: np.array(row_of(x)["gradient"]) / scale,
                    bounds=[(max(-1.0, m - reach), min(1.0, m + reach)) for m in middle],
                    constraints={
                        "type": "ineq",
                        "fun": lambda x: np.array(row_of(x)["room"]),
                        "jac": lambda x: np.array(row_of(x)["room_gradient"]).reshape(-1, n),
                    },
                    method="SLSQP",
                    options={"maxiter": evaluations, "ftol": 1e-5},
                )
                break
            except _Refused:
                reach, middle = reach / 2, np.array(best_row(list(seen.values()))["x"])
    except _Enough:
        pass
    except KeyboardInterrupt:
        if not rows:
            raise
        interrupted = True
    return Outcome(rows, best_row(rows), interrupted)


def violation(row: Mapping) -> float:
    """Return by how much a shape breaks its worst limit, 0 if it keeps all."""
    return max(0.0, -min(row["room"], default=0.0))


def best_row(rows: Sequence[Mapping]) -> dict:
    """Return the lowest objective within the limits, or what breaks them least."""
    tried = [row for row in rows if "objective" in row]
    kept = [row for row in tried if violation(row) <= _FEASIBLE]
    return min(kept, key=lambda r: r["objective"]) if kept else min(tried, key=violation)


def _read_history(path: Path, problem: dict) -> list[dict]:
    """Return the rows of a history of this problem, a new one without any."""
    problem = json.loads(json.dumps(problem))  # tuples are lists there
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, json.dumps(problem) + "\n")
        return []
    with reading(path):
        first, *lines = path.read_text().split("\n")
        stored = json.loads(first)
        rows = [json.loads(line) for line in lines[:-1]]
    if differ := [key for key in {**problem, **stored} if stored.get(key) != problem.get(key)]:
        raise ValueError(
            f"{path} is the history of another problem ({', '.join(differ)} differ); choose "
            "another --output, or remove it"
        )
    if lines[-1]:  # a last line that a kill cut has no end
        replace_text(path, "\n".join([first, *lines[:-1], ""]))
    return rows


def outcome_rows(outcome: Outcome) -> list[list[object]]:
    """Return a table of the given and the best shape: what, before, after, change."""
    before, after = outcome.start, outcome.best
    pairs = {"objective": (before["objective"], after["objective"])}
    for group in ("values", "measures"):
        pairs |= {name: (before[group][name], after[group][name]) for name in before[group]}
    named = {"distance": "beyond the ranges", "latent_distance": "latent distance"}
    pairs |= {text: (before[k], after[k]) for k, text in named.items() if before[k] is not None}
    header = ["", "before", "after", "change"]
    return [header, *([n, f"{a:.5g}", f"{b:.5g}", f"{b - a:+.5g}"] for n, (a, b) in pairs.items())]


def _history_rows(outcome: Outcome) -> list[list[object]]:
    """Return a table with a row for every shape that was tried."""
    names = [(group, n) for group in ("values", "measures") for n in outcome.start[group]]
    last = ["distance", "violation", "latent_distance", "stretch"]
    rows = [["shape", "objective", *(n for _, n in names), *last]]
    for number, row in enumerate(outcome.rows, 1):
        values = [""] * (len(names) + 3)
        if "objective" in row:  # neither folded nor too far
            values = [row["objective"], *(row[group][name] for group, name in names)]
            values += [row["distance"], violation(row)]
        rows.append([number, *values, row.get("latent_distance", ""), row["stretch"]])
    return rows


def predicted_change(problem: Problem, outcome: Outcome, level: float | None = None) -> Difference:
    """Return the change of the coefficients with its bounds, as ``flarepp delta`` has them.

    Each shape is referred to its own frontal area unless an area was given. An optimum is chosen by
    its prediction, so the level of the bounds does not hold for it.
    """
    names, shape, found = {"drag": "Cd", "side": "Cs", "lift": "Cl"}, problem.shape, []
    both = [problem.points(row["x"]) for row in (outcome.start, outcome.best)]
    promises = [shape.promise(points, level) for points in both]
    for points in both if shape.settings is not None else ():
        mesh = replace(shape.mesh, points=points.numpy())
        area = force_surface(mesh, shape.run.channels.association, shape.settings).reference_area
        values = replace(shape, reference_area=area, moving_area=False).values(points)
        found.append({short: values[name] for name, short in names.items()})
    before, after = found or ({}, {})
    bounds = change_bounds(promises, after, shape.settings)
    told = zip(("the given shape", "the best shape"), promises, strict=True)
    reasons = [f"{which}: {promise.no_bounds}" for which, promise in told if promise.no_bounds]
    reason = shape.bounds if isinstance(shape.bounds, str) else next(iter(reasons), None)
    return Difference(
        to_pyvista(shape.mesh), before, after, bounds, {}, 1.0, promises[1].level, reason
    )


def write_outcome(
    problem: Problem, outcome: Outcome, directory: Path, *, cameras=None, theme: Theme = LIGHT
) -> tuple[list[Path], str | None]:
    """Write the best shape (.stl, .vtp), the history and pictures; return files and a reason.

    The reason is why there is no picture of the shapes, None if there is one.
    """
    stem = f"{Path(problem.shape.mesh.source).stem}_optimized"
    start = to_pyvista(problem.shape.mesh)
    moved = problem.points(np.array(outcome.best["x"])).numpy()
    mesh = start.copy()
    mesh.clear_data()
    mesh.points = moved
    displacement = moved - np.asarray(problem.shape.mesh.points, float)
    normals = problem.shape.outward * unit_vectors(problem.shape.mesh.vertex_areas[0])
    outward = np.einsum("ij,ij->i", displacement, normals)
    add_arrays(mesh, {"displacement": displacement, "outward_displacement": outward}, "point")
    paths = [directory / f"{stem}{suffix}" for suffix in (".vtp", ".stl")]
    save_mesh(mesh, paths[0])
    with whole_file(paths[1]) as draft:
        mesh.triangulate().save(draft)
    paths += [directory / "history.csv", directory / "history.png"]
    replace_text(paths[2], csv_text(_history_rows(outcome)))
    _draw_history(outcome, paths[3], theme)
    picture = directory / "before_after.png"
    shapes = {"before": (start, None), "after": (mesh, outward)}
    try:
        plot_surfaces(shapes, "outward displacement", cameras=cameras, theme=theme, path=picture)
    except RenderingUnavailable as reason:
        return paths, str(reason)
    return [*paths, picture], None


def _draw_history(outcome: Outcome, path: Path, theme: Theme) -> None:
    rows = list(enumerate(outcome.rows, 1))
    keys = {"objective": "objective", "violation of limits": "", "beyond the ranges": "distance"}
    curves = {
        label: {i: row[key] if key else violation(row) for i, row in rows if "objective" in row}
        for label, key in keys.items()
        if not key or outcome.start[key] is not None
    }
    away = {i: row["latent_distance"] for i, row in rows if "latent_distance" in row}
    if outcome.start["latent_distance"] is not None:
        curves["latent distance"] = away
    best = 1 + outcome.rows.index(outcome.best)
    with Page(theme, [2.4 * theme.dpi] * len(curves), [1.8 * theme.dpi], path) as page:
        for axis, (label, values) in zip(page.axes[0], curves.items(), strict=True):
            axis.plot(*zip(*values.items(), strict=True), marker="o", markersize=2.5, linewidth=0.8)
            axis.plot(best, values[best], "*", markersize=8)
            if label == "latent distance":
                axis.axhline(1.0, linestyle="--", linewidth=0.6)
            axis.set(xlabel="shape", title=label)
            axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
            axis.grid(alpha=0.25, linewidth=0.5)
        note = "star: the best shape within all limits"
        if "latent distance" in curves:
            note += "; dashed: the farthest held-out case"
        page.note(note)
