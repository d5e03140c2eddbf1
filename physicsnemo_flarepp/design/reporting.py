"""What an optimisation leaves behind: shape, table, curves and picture."""

from pathlib import Path

import numpy as np
from jaxtyping import Float
from matplotlib.ticker import MaxNLocator

from ..files import replace_text, whole_file
from ..meshes import save_mesh, to_pyvista
from ..meshes.export import add_arrays
from ..meshes.polygons import unit_vectors
from ..texts import csv_text
from ..visualization import LIGHT, RenderingUnavailable, Theme, plot_surfaces
from ..visualization.pages import Page, styled
from .optimization import Outcome, Problem, violation


def outcome_rows(outcome: Outcome) -> list[list[object]]:
    """Return a table of the given and the best shape: what, before, after, change."""
    before, after = outcome.start, outcome.best
    pairs = {"objective": (before["objective"], after["objective"])}
    for group in ("values", "measures"):
        pairs |= {name: (before[group][name], after[group][name]) for name in before[group]}
    if before["distance"] is not None:
        pairs["distance from training"] = before["distance"], after["distance"]
    header = ["", "before", "after", "change"]
    return [header, *([n, f"{a:.5g}", f"{b:.5g}", f"{b - a:+.5g}"] for n, (a, b) in pairs.items())]


def history_rows(outcome: Outcome) -> list[list[object]]:
    """Return a table with a row for every shape that was tried."""
    first = outcome.start
    names = [(group, name) for group in ("values", "measures") for name in first[group]]
    rows = [["shape", "objective", *(n for _, n in names), "distance", "violation", "stretch"]]
    for number, row in enumerate(outcome.rows):
        if "objective" not in row:  # it folds
            rows.append([number, *[""] * (len(names) + 3), row["stretch"]])
            continue
        values = [row[group][name] for group, name in names]
        ends = [row["distance"], violation(row), row["stretch"]]
        rows.append([number, row["objective"], *values, *ends])
    return rows


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
    outward = outward_part(problem, displacement)
    add_arrays(mesh, {"displacement": displacement, "outward_displacement": outward}, "point")
    paths = [directory / f"{stem}{suffix}" for suffix in (".vtp", ".stl")]
    save_mesh(mesh, paths[0])
    with whole_file(paths[1]) as draft:
        mesh.triangulate().save(draft)
    table = directory / "history.csv"
    replace_text(table, csv_text(history_rows(outcome)))
    paths += [table, _draw_history(outcome, directory / "history.png", theme)]
    picture = directory / "before_after.png"
    try:
        plot_surfaces(
            {"before": (start, None), "after": (mesh, outward)},
            "outward displacement",
            cameras=cameras,
            theme=theme,
            path=picture,
        )
    except RenderingUnavailable as reason:
        return paths, str(reason)
    return [*paths, picture], None


def outward_part(
    problem: Problem, displacement: Float[np.ndarray, "P 3"]
) -> Float[np.ndarray, " P"]:
    """Return displacements along the outward normals of the given shape."""
    normals = problem.shape.outward * unit_vectors(problem.shape.mesh.vertex_areas[0])
    return np.einsum("ij,ij->i", displacement, normals)


def _draw_history(outcome: Outcome, path: Path, theme: Theme) -> Path:
    """Draw objective, violation and distance over the shapes that were tried."""
    tried = [(i, row) for i, row in enumerate(outcome.rows) if "objective" in row]
    numbers = [number for number, _ in tried]
    curves = {"objective": [row["objective"] for _, row in tried]}
    curves["violation of limits"] = [violation(row) for _, row in tried]
    if outcome.start["distance"] is not None:
        curves["distance from training"] = [row["distance"] for _, row in tried]
    best = outcome.rows.index(outcome.best)
    with styled(theme):
        page = Page(theme, [2.4 * theme.dpi] * len(curves), [1.8 * theme.dpi])
        for axis, (label, values) in zip(page.axes[0], curves.items(), strict=True):
            axis.plot(numbers, values, marker="o", markersize=2.5, linewidth=0.8)
            axis.plot(best, values[numbers.index(best)], "*", markersize=8)
            axis.set(xlabel="shape", title=label)
            axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
            axis.grid(alpha=0.25, linewidth=0.5)
        page.note("star: the best shape within all limits")
        page.finish([path])
    return path
