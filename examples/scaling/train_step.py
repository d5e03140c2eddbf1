"""Look into the training step: where its time goes, whether it waits for the device, or grows.

python examples/scaling/train_step.py [experiment=...] [key=value ...]
python examples/scaling/train_step.py --ratio quick/cars quick/elasticity quick/darcy
python examples/scaling/train_step.py --start quick/cars quick/elasticity quick/darcy
python examples/scaling/train_step.py --end RUN

Prints the share of each part of a step, how often Python reads a value from a tensor (a wait for
the device on a GPU), and what tensors and memory remain after many steps. With --ratio it prints,
for each experiment, what a step of the recipe, reading included, costs over a bare step (forward,
loss, backward, optimiser), both in turns, after an epoch in which cases are opened: processor time,
with all reading in the same thread, and by the clock, with cases read as in a training, which needs
a quiet machine; under torchrun, that of each rank. With --start it prints the seconds by the clock
from starting a training, whose data exist, to its first step, beside those of importing PhysicsNeMo
alone. With --end it repeats what follows the last step of a finished run and prints its processor
time, imports included.
"""

import gc
import itertools
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import torch
from measuring import print_row, wait
from tensordict import TensorDict
from torch.utils._python_dispatch import TorchDispatchMode

from physicsnemo_flarepp import evaluation
from physicsnemo_flarepp.commands.configs import compose_config
from physicsnemo_flarepp.commands.training import report_training
from physicsnemo_flarepp.training.config import check_config
from physicsnemo_flarepp.training.optimizers import TrainStep, clip_gradients
from physicsnemo_flarepp.training.run import Assembly, assemble, load_data, start_ranks

STEPS = 60
PROFILED = 10
# Pairs of steps, the first of which warm up.
PAIRS, WARM = 84, 4
# By the clock: steps of a block, whose batches are drawn together, and blocks of the recipe and of
# bare steps, which alternate. The first two are an epoch long and open all cases.
BLOCK, BLOCKS = 16, 12
STARTS = 3
# What a training on a CPU imports of it.
PHYSICSNEMO = """
import pathlib, sys
import hydra
import physicsnemo.datapipes, physicsnemo.distributed, physicsnemo.mesh, physicsnemo.models.flare
import physicsnemo.nn, physicsnemo.optim, physicsnemo.utils
pathlib.Path(sys.argv[1]).write_text("imported")
"""


class Reads(TorchDispatchMode):
    """Counts the operators that hand a tensor's value to Python."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        """Run the operator, and note it if it reads."""
        if function is torch.ops.aten._local_scalar_dense.default:
            self.count[f"{tuple(args[0].shape)} {args[0].dtype} on {args[0].device}"] += 1
        return function(*args, **(kwargs or {}))


def assemble_run(overrides: list[str], directory: str) -> Assembly:
    """Build the run that a config describes, without training it."""
    overrides = [*overrides, f"run_dir={directory}", "label=profile"]
    cfg = check_config(compose_config("train", overrides))
    cfg.training.steps = 10_000  # the schedule of a short run would end before the measurement
    ranks = start_ranks(cfg)
    return assemble(cfg, ranks, load_data(cfg, ranks))


def shares(run: Assembly, batches: list) -> dict[str, float]:
    """Return the median seconds of the parts of a step; on a CPU those of the processor."""
    step, parameters = run.step, list(run.model.parameters())
    device = parameters[0].device
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    times: dict[str, list[float]] = {}

    def part(name, function, *arguments):
        wait(device)
        start = clock()
        result = function(*arguments)
        wait(device)
        times.setdefault(name, []).append(clock() - start)
        return result

    for batch in batches:
        loss = part("forward and loss", step.loss, batch)
        part("backward", loss.backward)
        part("clipping", clip_gradients, parameters, 1.0)
        for optimizer in getattr(step.optimizer, "optimizers", [step.optimizer]):
            part(type(optimizer).__name__, optimizer.step)
        part("moving average", step.average.update_parameters, step.model)
        step.optimizer.zero_grad(set_to_none=True)
    return {name: statistics.median(values) for name, values in times.items()}


def endless(run: Assembly) -> Iterator[TensorDict]:
    """Yield training batches, epoch after epoch, as the trainer reads them."""
    for epoch in itertools.count():
        run.loaders.train.set_epoch(epoch)
        yield from run.loaders.train


def bare_step(step: TrainStep, batch: TensorDict) -> None:
    """Forward, loss, backward, optimiser."""
    step.loss(batch).backward()
    step.optimizer.step()
    step.optimizer.zero_grad(set_to_none=True)


def recipe_over_bare(experiment: str) -> dict[str, str]:
    """Return a row: processor time of a step of the recipe over that of a bare step."""
    # Reading in this thread adds up all the work, which threads would do meanwhile.
    with tempfile.TemporaryDirectory() as directory:
        run = assemble_run([f"experiment={experiment}", "data.num_workers=0"], directory)
        times: dict[str, list[float]] = {"read": [], "recipe": [], "bare": []}
        batches, step = endless(run), run.step
        for _ in range(len(run.loaders.train)):  # an epoch, after which all cases were seen
            next(batches)

        def part(name: str, function, *arguments):
            start = time.process_time()
            result = function(*arguments)
            times[name].append(time.process_time() - start)
            return result

        for pair in range(PAIRS):
            batch = part("read", next, batches)
            parts = [("recipe", step, [batch]), ("bare", partial(bare_step, step), batch)]
            for name, function, argument in parts[:: 1 if pair % 2 else -1]:
                part(name, function, argument)
    # A median of ratios, because what else the machine does falls on neighbours alike; but means
    # of reading, because several batches are drawn at a time.
    read, recipe, base = (torch.tensor(values[WARM:]) for values in times.values())
    reading, rest = (read.mean() / base.mean()).item(), (recipe / base).median().item()
    return {
        "experiment": experiment,
        "bare step, ms": f"{1e3 * base.median():.1f}",
        "reading / bare": f"{reading:.3f}",
        "clipping, schedule, average / bare": f"{rest - 1:.3f}",
        "recipe / bare": f"{reading + rest:.3f}",
        "by the clock": f"{clock_ratio(experiment):.3f}",
    }


def clock_ratio(experiment: str) -> float:
    """Return the time of steps with all of the recipe over that of as many bare ones."""
    with tempfile.TemporaryDirectory() as directory:
        run = assemble_run([f"experiment={experiment}"], directory)
        batches = endless(run)
        times: dict[bool, list[float]] = {True: [], False: []}
        for block in range(2 * BLOCKS):
            start = time.perf_counter()
            for _ in range(len(run.loaders.train) if block < 2 else BLOCK):
                if recipe := block % 2 == 0:
                    batch = next(batches)
                    run.step([batch])
                else:
                    bare_step(run.step, batch)
            times[recipe].append(time.perf_counter() - start)
    pairs = zip(times[True][1:], times[False][1:], strict=True)
    return statistics.median(whole / bare for whole, bare in pairs)


def seconds_until(file: Path, words: list[str]) -> float:
    """Return the time from the start of a Python process to its first line in a file; end it."""
    start = time.perf_counter()
    with subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL) as process:
        while not (file.is_file() and file.stat().st_size):
            if process.poll() is not None:
                raise RuntimeError(f"{' '.join(words)} ended without writing {file}")
            time.sleep(0.01)
        seconds = time.perf_counter() - start
        process.kill()
    return seconds


def start_of_run(experiment: str) -> dict[str, str]:
    """Return a row: medians of the time to the first step and to PhysicsNeMo being imported."""
    times: dict[str, list[float]] = {"imports": [], "first step": []}
    for _ in range(STARTS):
        with tempfile.TemporaryDirectory() as directory:
            path, run = Path(directory) / "imported", Path(directory) / "run"
            times["imports"].append(seconds_until(path, ["-c", PHYSICSNEMO, str(path)]))
            settings = [f"experiment={experiment}", "training.log_every=1", f"run_dir={run}"]
            train = ["-m", "physicsnemo_flarepp", "train", *settings]
            times["first step"].append(seconds_until(run / "metrics.jsonl", train))
    imports, first = map(statistics.median, times.values())
    return {
        "experiment": experiment,
        "PhysicsNeMo imported, s": f"{imports:.2f}",
        "first step, s": f"{first:.2f}",
        "added, s": f"{first - imports:.2f}",
    }


def end_of_run(directory: str) -> dict[str, str]:
    """Return a row: processor time of what a training does after its last step."""

    def bounds(run: Path) -> None:
        evaluation.calibrate(evaluation.load_run(run, trust=True))

    row = {"run": directory}
    for name, function in {"bounds": bounds, "figures and report": report_training}.items():
        start = time.process_time()
        function(Path(directory))
        row[f"{name}, s"] = f"{time.process_time() - start:.1f}"
    return row


def live_tensors() -> tuple[int, int]:
    """Return the number of tensors that Python holds, and their bytes."""
    gc.collect()
    tensors = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)]
    return len(tensors), sum(t.numel() * t.element_size() for t in tensors)


def main() -> None:
    """Measure and print."""
    if {"-h", "--help"} & set(sys.argv):
        print(__doc__)
        return
    if sys.argv[1:2] == ["--end"]:
        print_row(end_of_run(sys.argv[2]), header=True)
        return
    rows = {"--ratio": recipe_over_bare, "--start": start_of_run}
    if sys.argv[1:2] and sys.argv[1] in rows:
        for number, experiment in enumerate(sys.argv[2:]):
            print_row(rows[sys.argv[1]](experiment), header=number == 0)
        return
    with tempfile.TemporaryDirectory() as directory:
        run = assemble_run(sys.argv[1:], directory)
        batches = list(itertools.islice(run.loaders.train, PROFILED))
        for batch in batches:
            run.step([batch])
        seconds = shares(run, batches)
        total = sum(seconds.values())
        print(f"step of {batches[0]['tokens'].numel():,} tokens: {1e3 * total:.1f} ms")
        for name, value in seconds.items():
            print(f"  {name:18s} {100 * value / total:5.1f} %")

        with Reads() as reads:
            run.step(batches[:1])
        print("values read from tensors in a step:", dict(reads.count) or "none")

        process = psutil.Process()
        for steps in (PROFILED, STEPS, STEPS):
            for batch in itertools.islice(itertools.cycle(batches), steps):
                run.step([batch])
            count, size = live_tensors()
            memory = process.memory_info().rss / 2**20
            print(
                f"after {steps:3d} more steps: {count} tensors, {size / 2**20:.2f} MB, process "
                f"{memory:.1f} MB"
            )


if __name__ == "__main__":
    main()
