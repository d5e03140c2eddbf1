"""Look into the training step: where its time goes, whether it waits for the device, or grows.

python examples/scaling/train_step.py [experiment=...] [key=value ...]

Prints the share of each part of a step, how often Python reads a value from a tensor (a wait for
the device on a GPU), and what tensors and memory remain after many steps.
"""

import gc
import itertools
import statistics
import sys
import tempfile
from collections import Counter

import psutil
import torch
from measuring import timed
from torch.utils._python_dispatch import TorchDispatchMode

from physicsnemo_flarepp.commands.configs import compose_config
from physicsnemo_flarepp.training.assembly import Assembly, assemble, load_data, start_ranks
from physicsnemo_flarepp.training.config import check_config

STEPS = 60
PROFILED = 10


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
    ranks = start_ranks(cfg)
    return assemble(cfg, ranks, load_data(cfg, ranks))


def shares(run: Assembly, batches: list) -> dict[str, float]:
    """Return the median seconds of the parts of a step."""
    step, device = run.step, next(run.model.parameters()).device
    times: dict[str, list[float]] = {}

    def part(name, function, *arguments):
        seconds, result = timed(lambda: function(*arguments), device)
        times.setdefault(name, []).append(seconds)
        return result

    for batch in batches:
        loss = part("forward and loss", step.loss, batch)
        part("backward", loss.backward)
        part("clipping", torch.nn.utils.clip_grad_norm_, step.model.parameters(), 1.0)
        part("optimiser", step.optimizer.step)
        part("moving average", step.average.update_parameters, step.model)
        step.optimizer.zero_grad(set_to_none=True)
    return {name: statistics.median(values) for name, values in times.items()}


def live_tensors() -> tuple[int, int]:
    """Return the number of tensors that Python holds, and their bytes."""
    gc.collect()
    tensors = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)]
    return len(tensors), sum(t.numel() * t.element_size() for t in tensors)


def main() -> None:
    """Measure and print."""
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
