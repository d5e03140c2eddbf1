"""Turn grids of overrides into runs, ledger lines, tables and figures.

A run is named by its command, so studies that contain the same run share it, and what the ledger
holds is not run again. A run that was stopped resumes.
"""

import csv
import datetime
import hashlib
import itertools
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

from physicsnemo_flarepp.files import append_whole, replace_text
from physicsnemo_flarepp.progress import progress_bar

ROOT = Path(__file__).parents[2]
Labels = tuple[str, ...]
Overrides = Mapping[str, object]
# What changes no number of a run, but how fast it is and what it writes.
QUIET = {
    "training.watch_test": True,  # nothing is chosen by it
    "training.keep_checkpoints": 1,
    "training.log_every": 50,
    "training.checkpoint_every": 500,
}


@dataclass(frozen=True)
class Grid:
    """The cells of a study at one size: a product of axes, each value with its overrides.

    With ``equal_time``, ``training.steps`` are counted in the time of the first cell's steps: other
    cells get as many as take the same time. With a ``script``, a cell is one call of it, and
    overrides are its options. ``after`` are the options of ``refinement.py``, which measures all
    runs together.
    """

    shared: Overrides
    axes: Mapping[str, Mapping[str, Overrides]]
    seeds: int = 1
    equal_time: bool = False
    script: str | None = None
    after: Overrides | None = None

    def cells(self) -> dict[Labels, dict]:
        """Return the overrides of each cell by its labels; later axes win."""
        found = {}
        for values in itertools.product(*(axis.items() for axis in self.axes.values())):
            labels, own = zip(*values, strict=True)
            found[labels] = dict(self.shared)
            for overrides in own:
                found[labels] |= overrides
        return found


@dataclass(frozen=True)
class Study:
    """A question, what the paper answers, its numbers by cell, and grids of two sizes.

    Numbers are errors in percent. Those of ``classes`` are the share of wrong ones, and are shown
    as accuracies, on the validation split too.
    """

    question: str
    claim: str
    reduced: Grid
    paper: Grid
    published: Mapping[Labels, float] = field(default_factory=dict)
    classes: bool = False


@dataclass(frozen=True)
class Job:
    """One run of one cell."""

    study: str
    size: str
    axes: Labels
    labels: Labels
    seed: int
    overrides: Overrides
    published: float | None

    @property
    def command(self) -> str:
        """The command that repeats the run, and its name."""
        settings = {"experiment": None, "model": None} | self.overrides | {"seed": self.seed}
        return "flarepp train " + " ".join(f"{k}={v}" for k, v in settings.items())

    def directory(self, runs: Path) -> Path:
        """Return the place of the run; scripts that measure runs read the name."""
        weights = "-weights" if self.overrides.get("data.weights") == "measure" else ""
        model = self.overrides.get("model", "flarepp")
        rest = {k: v for k, v in self.overrides.items() if k != "data.weights"}
        digest = hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()[:10]
        return runs / f"{model}-{digest}{weights}-seed{self.seed}"


def list_jobs(name: str, study: Study, size: str, runs: Path, seeds: int | None) -> list[Job]:
    """Return the runs of a study, all cells with one seed before any with the next."""
    grid: Grid = getattr(study, size)
    cells = grid.cells()
    if grid.equal_time:
        seconds = step_seconds(cells, runs / f"seconds-{name}-{size}.json")
        first = seconds["/".join(next(iter(cells)))]
        for labels, own in cells.items():
            own["training.steps"] *= first / seconds["/".join(labels)]
            own["training.steps"] = round(own["training.steps"])
    return [
        Job(name, size, tuple(grid.axes), labels, seed, dict(sorted(own.items())),
            study.published.get(labels))
        for seed in range(seeds or grid.seeds)
        for labels, own in cells.items()
    ]  # fmt: skip


def config_of(overrides: Overrides, directory: Path | str, seed: int = 0):
    """Compose the config of a run."""
    from physicsnemo_flarepp.commands.configs import compose_config

    experiment = str(overrides["experiment"])
    label = experiment.rpartition("/")[2]
    settings = {**overrides, **QUIET, "label": label, "seed": seed, "run_dir": directory}
    if not experiment.startswith("lra/"):  # sequences are in memory
        settings["data.num_workers"] = 0
    return compose_config("train", [f"{key}={value}" for key, value in settings.items()])


def step_seconds(
    cells: Mapping[Labels, Overrides], path: Path, rounds: int = 30
) -> dict[str, float]:
    """Return the time of a step of each cell, measured once and kept in a file.

    Steps of all cells alternate, so that what else the machine does falls on all alike.
    """
    if path.is_file():
        return json.loads(path.read_text())
    import torch

    from physicsnemo_flarepp.training.config import check_config
    from physicsnemo_flarepp.training.run import assemble, load_data, start_ranks

    clock = time.perf_counter if torch.cuda.is_available() else time.process_time
    steps = {}
    for labels, overrides in cells.items():
        cfg = check_config(config_of({**overrides, "training.steps": 1000}, "unused"))
        ranks = start_ranks(cfg)
        assembly = assemble(cfg, ranks, load_data(cfg, ranks))
        steps["/".join(labels)] = assembly.step, next(iter(assembly.loaders.train))
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, (step, batch) in steps.items():
            start = clock()
            step((batch,)).item()  # waits for the device
            times[name].append(clock() - start)
    seconds = {name: statistics.median(found[3:]) for name, found in times.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, json.dumps(seconds))
    return seconds


def train_job(job: Job, runs: Path) -> dict:
    """Train a run, or resume it, and return its line of the ledger."""
    import torch

    from physicsnemo_flarepp.runs import read_metrics
    from physicsnemo_flarepp.training.comparison import ComparedRun, train_compared

    directory = job.directory(runs)
    resumes = (directory / "metrics.jsonl").is_file()
    begin = time.process_time()
    result = train_compared(
        ComparedRun("/".join(job.labels), job.seed, config_of(job.overrides, directory, job.seed))
    )
    seconds = time.process_time() - begin
    rows = read_metrics(directory)
    steps = max(row["step"] for row in rows)
    curves = {
        split: [(row["step"], round(100 * row["error"], 4)) for row in rows
                if row["kind"] == "evaluation" and row["split"] == split]
        for split in ("test", "val")
    }  # fmt: skip
    return {
        **identity(job),
        **provenance(),
        "last": round(100 * result.error, 4),
        "best": min(error for _, error in curves["test"]),
        **({"val": min(error for _, error in curves["val"])} if curves["val"] else {}),
        "steps": steps,
        "parameters": result.parameters,
        "cpu_seconds": None if resumes else round(seconds, 1),
        "threads": torch.get_num_threads(),
        "curve": curves["test"],
    }


def identity(job: Job) -> dict:
    """Return what a line says of which run of which study it is."""
    return {
        "study": job.study,
        "size": job.size,
        "cell": dict(zip(job.axes, job.labels, strict=True)),
        "seed": job.seed,
        "published": job.published,
        "command": job.command,
    }


def provenance() -> dict:
    """Return commit, machine and day; ``-dirty`` if more than results/ differs from the commit."""
    git = ["git", "-C", str(ROOT)]
    commands = (
        ["rev-parse", "--short=8", "HEAD"],
        ["diff", "--name-only", "HEAD", "--", ":!results"],
    )
    commit, changed = (
        subprocess.run([*git, *words], capture_output=True, text=True).stdout.strip()
        for words in commands
    )
    commit = f"{commit}-dirty" if changed else commit or "unknown"
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    return {"commit": commit, "machine": machine(), "date": day}


def machine() -> str:
    """Return the GPU, or the CPU and its cores.

    Virtual machines hide the name of a CPU: "AMD EPYC" may be any of five generations, and one is
    almost twice as fast as another.
    """
    import psutil
    import torch

    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").is_file() else ""
    rows = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    cpu = {key.strip(): value.strip() for key, _, value in rows}
    name = cpu.get("model name", platform.machine())
    kind = "".join(f", {key} {cpu[key]}" for key in ("cpu family", "model") if key in cpu)
    return f"{name}{kind}, {psutil.cpu_count()} cores"


def run_script(job: Job, script: str, runs: Path, inputs: Sequence[Path] = ()) -> list[dict]:
    """Call a script of examples/scaling and return a line for each row of its CSV file."""
    out = runs / f"{job.study}-{job.size}-{'-'.join(job.labels)}"
    options = [word for key, value in job.overrides.items() for word in (key, *str(value).split())]
    where = out / "table" if inputs else out  # refinement.py takes the stem of its files
    out.mkdir(parents=True, exist_ok=True)
    command = ["examples/scaling/" + script, *map(str, inputs), *options]
    subprocess.run([sys.executable, *command, "--out", str(where)], cwd=ROOT, check=True)
    with open(next(out.glob("*.csv")), newline="") as file:
        rows = list(csv.DictReader(file))
    shown = [command[0], *(["RUN ..."] if inputs else []), *options]
    line = identity(job) | provenance() | {"command": "python " + " ".join(shown)}
    return [line | {"measured": row} for row in rows]


def run_studies(
    studies: Mapping[str, Study],
    size: str,
    runs: Path,
    ledger: Path,
    jobs: int = 1,
    seeds: int | None = None,
    cells: Sequence[str] = (),
) -> None:
    """Run what the ledger does not hold: trainings first, then what scripts measure.

    ``cells`` are parts of the names of the cells to run, all by default.
    """
    held = read_ledger(ledger)
    by_command = {line["command"]: line for line in held}
    done = {(line["study"], line["size"], line["command"]) for line in held}
    waiting: dict[str, list[Job]] = {}
    scripts: list[tuple[Job, str, list[Path]]] = []
    for name, study in studies.items():
        grid: Grid = getattr(study, size)
        listed = [
            job
            for job in list_jobs(name, study, size, runs, seeds)
            if not cells or any(text in "/".join(job.labels) for text in cells)
        ]
        if grid.script:
            scripts += [(job, grid.script, []) for job in listed]
            continue
        for job in listed:
            if (name, size, job.command) in done:
                continue
            if job.command in by_command:  # another study has run it
                write_lines(ledger, [by_command[job.command] | identity(job)])
            else:
                waiting.setdefault(job.command, []).append(job)
        if grid.after is not None:
            after = Job(name, size, ("runs",), ("all",), 0, grid.after, None)
            scripts.append((after, "refinement.py", [job.directory(runs) for job in listed]))
    train_waiting(waiting, runs, ledger, jobs)
    measured = [(line["study"], line["size"], line["cell"]) for line in held if "measured" in line]
    for job, script, inputs in scripts:
        if (job.study, job.size, identity(job)["cell"]) not in measured:
            write_lines(ledger, run_script(job, script, runs, inputs))


def train_waiting(
    waiting: Mapping[str, Sequence[Job]], runs: Path, ledger: Path, jobs: int
) -> None:
    """Train runs by their commands, and say after each how long the rest will take."""
    order = sorted(waiting.values(), key=lambda same: same[0].seed)  # a seed of all, then the next
    begin = time.monotonic()
    with progress_bar("runs", len(order), wanted=True) as advance:
        for done, line in enumerate(train_all(order, runs, jobs), start=1):
            write_lines(ledger, [line | identity(job) for job in waiting[line["command"]]])
            left = (time.monotonic() - begin) / done * (len(order) - done) / 60
            print(
                f"{done}/{len(order)} {line['study']} {'/'.join(line['cell'].values())} seed "
                f"{line['seed']}: {line['last']:.2f} % in {line['cpu_seconds']} s of CPU; about "
                f"{left:.0f} min left",
                flush=True,
            )
            advance()


def train_all(waiting: Sequence[Sequence[Job]], runs: Path, jobs: int) -> Iterator[dict]:
    """Yield the lines of runs as they finish; of jobs with one command the first is run."""
    if jobs == 1:
        yield from (train_job(same[0], runs) for same in waiting)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        futures = [pool.submit(train_job, same[0], runs) for same in waiting]
        yield from (future.result() for future in as_completed(futures))


def read_ledger(path: Path) -> list[dict]:
    """Return the lines of a ledger, none without a file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def write_lines(path: Path, lines: Iterable[dict]) -> None:
    """Append lines to a ledger."""
    path.parent.mkdir(parents=True, exist_ok=True)
    append_whole(path, "".join(json.dumps(line) + "\n" for line in lines).encode())
