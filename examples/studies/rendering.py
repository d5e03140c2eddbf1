"""Render the ledger: a page of tables with every published cell beside ours, and figures."""

import itertools
import statistics
import string
from collections.abc import Mapping, Sequence
from pathlib import Path

from engine import Grid, Labels, Study, read_ledger
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter

from physicsnemo_flarepp.files import replace_text
from physicsnemo_flarepp.texts import format_table

NOT_RUN = "not run"
HEAD = """# Results

Written by `python examples/studies/run.py --render` from [ledger.jsonl](ledger.jsonl), which has
a line for every finished run: command, commit, machine, CPU time, curve. Never edited by hand.

Errors are relative L2 errors on the test set in percent, of the averaged weights of the last epoch:
mean ± standard deviation, and the number of seeds in brackets. "Best on test" is the lowest of the
evaluated epochs, which is how the published numbers were chosen. "Reduced" columns are of small
models on our built-in sets: they compare models with each other, not with the published numbers.
Long Range Arena has accuracies instead, of the weights that are best on the dev split.

CPU seconds of different machines cannot be compared. Where a study ran on several, a letter after
the seconds and in the figure says on which.
"""


def spread(values: Sequence[float]) -> str:
    """Return mean, standard deviation and number of values.

    >>> spread([2.0, 3.0]), spread([2.0])
    ('2.50 ± 0.71 (2)', '2.00 (1)')
    """
    deviation = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{deviation} ({len(values)})"


def machine_marks(lines: Sequence[dict]) -> dict[str, str]:
    """Return a letter for each machine, or nothing if there is one."""
    machines = list(dict.fromkeys(line["machine"] for line in lines))
    letters = string.ascii_lowercase if len(machines) > 1 else [""]
    return dict(zip(machines, letters[: len(machines)], strict=True))


def mark_of(lines: Sequence[dict], marks: Mapping[str, str]) -> str:
    """Return the letters of the machines that some runs were timed on, behind a space."""
    letters = sorted({marks[line["machine"]] for line in lines if line["cpu_seconds"]})
    return f" {''.join(letters)}".rstrip()


def cell_row(
    labels: Labels,
    published: float | None,
    found: Mapping[str, list[dict]],
    classes: bool,
    marks: Mapping[str, str],
) -> list[str]:
    """Return a row of the table: labels, published value, both sizes, best or dev, cost."""

    def shown(error: float) -> float:
        return 100 - error if classes else error

    row = [*labels, "" if published is None else f"{shown(published):.2f}"]
    for size in ("paper", "reduced"):
        lines = found.get(size, [])
        row.append(spread([shown(line["last"]) for line in lines]) if lines else NOT_RUN)
    lines = found.get("reduced") or found.get("paper") or []
    if not lines:
        return [*row, "", "", "", ""]
    seconds = [line["cpu_seconds"] for line in lines if line["cpu_seconds"]]
    second = "val" if classes else "best"
    return [
        *row,
        f"{statistics.mean(shown(line[second]) for line in lines):.2f}",
        f"{lines[0]['steps']:,}",
        f"{lines[0]['parameters']:,}",
        f"{statistics.mean(seconds):.0f}{mark_of(lines, marks)}" if seconds else "",
    ]


def training_table(study: Study, lines: Sequence[dict]) -> str:
    """Return every cell that was run or published, and how many others there are."""
    grids: Sequence[Grid] = (study.reduced, study.paper)
    cells = itertools.chain(study.published, *(grid.cells() for grid in grids))
    found: dict[Labels, dict[str, list[dict]]] = {labels: {} for labels in sorted(set(cells))}
    for line in lines:
        if "measured" not in line:
            labels = tuple(line["cell"].values())
            found.setdefault(labels, {}).setdefault(line["size"], []).append(line)
    order = sorted(found.items(), key=lambda item: (not item[1], item[0]))  # what was run first
    marks = machine_marks(lines)
    rows = [
        cell_row(labels, study.published.get(labels), sizes, study.classes, marks)
        for labels, sizes in order
        if sizes or labels in study.published
    ]
    missing = [
        f"{sum(size not in found[labels] for labels in grid.cells())} of {len(grid.cells())} "
        f"{'reduced cells' if size == 'reduced' else 'cells at the size of the paper'}"
        for size, grid in zip(("reduced", "paper"), grids, strict=True)
    ]
    columns = (
        "published",
        "paper size",
        "reduced",
        "dev" if study.classes else "best on test",
        "steps",
        "parameters",
        "CPU, s",
    )
    head = [*study.reduced.axes, *columns]
    table = [format_table([head, *rows], markdown=True)] if rows else []
    return "\n\n".join([*table, f"Not run: {' and '.join(missing)}."])


def measured_table(lines: Sequence[dict]) -> str:
    """Return what scripts measured, one row each."""
    rows = [line["cell"] | {k: _short(v) for k, v in line["measured"].items()} for line in lines]
    return format_table([list(rows[0]), *(list(row.values()) for row in rows)], markdown=True)


def _short(text: str) -> str:
    try:
        return text if text.lstrip("-").isdigit() else f"{float(text):.4g}"
    except ValueError:
        return text


def section(name: str, study: Study, lines: Sequence[dict]) -> str:
    """Return a study's part of the page."""
    measured = [line for line in lines if "measured" in line]
    runs = [line for line in lines if "measured" not in line]
    parts = [f"## {name}", study.question, f"The paper: {study.claim}"]
    shared = set.intersection(*(set(cell.items()) for cell in study.reduced.cells().values()))
    if shared:
        settings = (f"{key}={value}" for key, value in sorted(shared))
        parts.append(f"Reduced: `{' '.join(settings)}`")
    if study.reduced.script is None:
        parts.append(training_table(study, lines))
    if measured:
        parts.append(measured_table(measured))
    elif study.reduced.script:
        parts.append(NOT_RUN.capitalize() + ".")
    if runs:
        parts.append(f"![test errors]({name}.png)")
    where = [
        f"{letter} {machine}".lstrip()
        + "".join(
            f", `{c}`" for c in sorted({x["commit"] for x in lines if x["machine"] == machine})
        )
        for machine, letter in machine_marks(lines).items()
    ]
    if where:
        parts.append(f"Machine and commits: {'; '.join(where)}")
    return "\n\n".join(parts)


def draw(lines: Sequence[dict], path: Path, marks: Mapping[str, str], over_sizes: bool) -> None:
    """Draw the mean test error over CPU seconds, one line per cell, ends with their spread.

    Cells that differ in their first label, such as the set, have panels of their own. With
    `over_sizes`, whose runs take equally long, errors are drawn over the second label instead.
    """
    panels: dict[str, dict[str, list[dict]]] = {}
    for line in lines:
        first, *rest = line["cell"].values()
        if line["cpu_seconds"]:
            cells = panels.setdefault(first if rest else "", {})
            cells.setdefault("/".join(rest or [first]), []).append(line)
    # Shorter names first, which are smaller numbers, too.
    panels = dict(sorted(panels.items(), key=lambda panel: (len(panel[0]), panel[0])))
    if over_sizes:
        names = [name.partition("/")[2] for name in itertools.chain(*panels.values())]
    else:
        names = list(itertools.chain(*panels.values()))
    styles = {name: number for number, name in enumerate(dict.fromkeys(names))}
    figure = Figure(figsize=(4 + 4 * len(panels), 4.2), dpi=150, layout="constrained")
    every = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (title, cells) in zip(every, panels.items(), strict=True):
        axes.set(title=title, ylabel="test error, %")
        if over_sizes:
            _draw_sizes(axes, cells, styles)
        else:
            for name, runs in cells.items():
                _draw_cell(axes, name, runs, styles[name], mark_of(runs, marks))
            axes.set(xlabel="CPU seconds", yscale="log")
            axes.yaxis.set_major_formatter(ScalarFormatter())
            axes.yaxis.set_minor_formatter(ScalarFormatter())
        axes.grid(alpha=0.3, which="both")
        axes.spines[["top", "right"]].set_visible(False)
    handles = {
        h.get_label(): h for axes in every for h in axes.get_lines() if h.get_label()[0] != "_"
    }
    figure.legend(handles=[handles[name] for name in styles], loc="outside right upper",
                  frameon=False, fontsize="small")  # fmt: skip
    figure.savefig(path)


def _style(number: int) -> dict:
    return {
        "color": f"C{number % 10}", "marker": "os^DvPX"[number % 7], "ms": 4, "lw": 1.2,
        "ls": ("-", "--", ":")[number // 10 % 3],
    }  # fmt: skip


def _draw_sizes(axes: Axes, cells: Mapping[str, Sequence[dict]], styles: Mapping[str, int]) -> None:
    """Draw the last errors of each model over the sizes, with their spread."""
    sizes: dict[str, dict[str, list[float]]] = {}
    for name, runs in cells.items():
        size, _, model = name.partition("/")
        sizes.setdefault(size, {})[model] = [run["last"] for run in runs]
    for model, number in styles.items():
        found = [(at, sizes[size][model]) for at, size in enumerate(sizes) if model in sizes[size]]
        middle = [statistics.mean(errors) for _, errors in found]
        spreads = [
            [abs(edge(errors) - mean) for (_, errors), mean in zip(found, middle, strict=True)]
            for edge in (min, max)
        ]
        axes.errorbar([at for at, _ in found], middle, spreads, capsize=3, **_style(number))
        axes.plot([], [], label=model, **_style(number))
    axes.set_xticks(range(len(sizes)), list(sizes))
    axes.set_xlabel("blocks and channels, equal training time")
    axes.set_ylim(bottom=0)


def _draw_cell(axes: Axes, name: str, runs: Sequence[dict], number: int, mark: str) -> None:
    seconds = statistics.mean(run["cpu_seconds"] for run in runs)
    points = list(zip(*(run["curve"] for run in runs), strict=False))
    times = [seconds * point[0][0] / runs[0]["steps"] for point in points]
    errors = [[error for _, error in point] for point in points]
    middle = [statistics.mean(at) for at in errors]
    style = _style(number)
    axes.plot(times, middle, label=name, markevery=[-1], **style)
    low, high = min(errors[-1]), max(errors[-1])
    axes.errorbar(times[-1], middle[-1], [[middle[-1] - low], [high - middle[-1]]],
                  fmt="none", capsize=3, ecolor=style["color"])  # fmt: skip
    axes.annotate(mark, (times[-1], middle[-1]), xytext=(2, -3), textcoords="offset points",
                  color=style["color"], fontsize="small")  # fmt: skip


def render(studies: Mapping[str, Study], ledger: Path, figures: bool = True) -> None:
    """Write README.md and the figures beside a ledger."""
    parts = []
    for name, study in studies.items():
        lines = [line for line in read_ledger(ledger) if line["study"] == name]
        parts.append(section(name, study, lines))
        runs = [line for line in lines if "measured" not in line]
        if figures and runs:
            sized = study.reduced.equal_time and "size" in study.reduced.axes
            draw(runs, ledger.with_name(f"{name}.png"), machine_marks(lines), sized)
    replace_text(ledger.with_name("README.md"), "\n\n".join([HEAD.rstrip(), *parts]) + "\n")
