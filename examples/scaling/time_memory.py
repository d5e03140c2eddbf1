"""Forward+backward time and peak memory of complete models that differ only in the mixer.

Besides the mixers of the matched backbone, PhysicsNeMo's own FLARE and Transolver are measured as
found, at the same width, depth and latents. Repetitions are interleaved over the models, and the
medians of seconds and of ratios within a round are taken, so that what else the machine does falls
on all alike; on a CPU the time of the processor counts. Each memory figure comes from a process of
its own. Ratios are to ``flare`` and, in time, to PhysicsNeMo's Transolver.

    python examples/scaling/time_memory.py --tokens 1000 10000 --layers 2
    python examples/scaling/time_memory.py --models flare flarepp --parts   # where the time goes
    python examples/scaling/time_memory.py --models flare flarepp --weights # what weights cost

The ratios that docs/benchmarks.md sets beside an aim are those of ``--tokens 10000 --threads 1
--models flare flarepp flarepp_gated physicsnemo_transolver``.
"""

import argparse
import gc
import json
import statistics
import sys
import time
from collections import Counter
from pathlib import Path

import torch
from measuring import measure_in_own_process, peak_of, print_row, wait, write_csv
from physicsnemo.models.flare import FLARE
from physicsnemo.models.transolver import Transolver
from rich.progress import Progress
from torch.utils._python_dispatch import TorchDispatchMode

from physicsnemo_flarepp import MixerBackbone
from physicsnemo_flarepp.mixers import MIXERS

# What ratios of time are to: the name of the column by that of the model.
REFERENCES = {"flare": "time/flare", "physicsnemo_transolver": "time/transolver"}
THEIRS = {"physicsnemo_flare": FLARE, "physicsnemo_transolver": Transolver}
# Forms of a mixer, by their options.
FORMS = {"flarepp_gated": ("flarepp", {"anchored_queries": True})}
# On a CPU the time of the processor counts, without what other programs take.
CLOCK = time.perf_counter if torch.cuda.is_available() else time.process_time
# The parts that any implementation must run: matrix products, attention, norms, GELU.
PARTS = ("mm", "attention", "layer_norm", "rms_norm", "gelu")


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [*MIXERS, *FORMS, *THEIRS]
    parser.add_argument("--models", nargs="+", choices=names, default=names)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--attention-limit", type=int, default=10_000, help="skip it above this N")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--slices", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--mlp-ratio", type=float, default=2)
    parser.add_argument("--norm", default="layer", choices=["layer", "rms"], help="of our models")
    parser.add_argument("--autocast", choices=["bfloat16", "float16"], help="fp32 weights")
    parser.add_argument("--parts", action="store_true", help="also step time over its bare parts")
    parser.add_argument(
        "--weights", action="store_true", help="also step time with token weights over without"
    )
    parser.add_argument("--out", type=Path, default=Path("outputs/time_memory"))
    parser.add_argument("--measure", help=argparse.SUPPRESS)  # one memory figure, in this process
    return parser.parse_args()


def build(name: str, settings: dict) -> torch.nn.Module:
    """Build a model by its name in the table."""
    torch.manual_seed(0)
    sizes = {
        "functional_dim": 1,
        "embedding_dim": 3,
        "out_dim": 1,
        "n_layers": settings["layers"],
        "n_hidden": settings["hidden"],
        "n_head": settings["heads"],
        "slice_num": None if name == "attention" else settings["slices"],
        "mlp_ratio": settings["mlp_ratio"],
        "use_te": False,
    }
    if name in THEIRS:
        model = THEIRS[name](**sizes)
    else:
        mixer, options = FORMS.get(name, (name, {}))
        model = MixerBackbone(mixer=mixer, norm=settings["norm"], **sizes, **options)
    if settings["autocast"]:
        dtype = getattr(torch, settings["autocast"])
        model.forward = torch.autocast(settings["device"], dtype)(model.forward)
    return model.to(settings["device"], getattr(torch, settings["dtype"]))


def make_step(model: torch.nn.Module, n_tokens: int, weighted: bool = False):
    """Return a function that runs one forward and backward pass and waits for it."""
    like = next(model.parameters())
    fx, embedding = like.new_ones(1, n_tokens, 1), torch.rand(1, n_tokens, 3).to(like)
    weights = {"token_weights": torch.rand(1, n_tokens).to(like.device)} if weighted else {}

    def step() -> None:
        model.zero_grad(set_to_none=True)
        model(fx, embedding, **weights).square().mean().backward()
        wait(like.device)

    return step


def measure_memory(model: str, tokens: int, settings: dict) -> dict:
    """Return the peak of one step beyond the model and its inputs, in bytes."""
    torch.set_num_threads(settings["threads"])
    network = build(model, settings)
    make_step(network, 64)()  # libraries and kernels load on first use
    return {"bytes": peak_of(make_step(network, tokens), torch.device(settings["device"]))}


def measure_times(steps: dict, repeats: int, progress: Progress, task) -> dict[str, list[float]]:
    """Return the seconds of each step, all steps in turn, ``repeats`` times."""
    times = {name: [] for name in steps}
    for step in steps.values():
        step()
        progress.advance(task)
    for _ in range(repeats):
        for name, step in steps.items():
            start = CLOCK()
            step()
            times[name].append(CLOCK() - start)
            progress.advance(task)
    return times


class PartTimer(TorchDispatchMode):
    """Times each distinct matrix product, attention, norm and GELU call of a step alone."""

    def __init__(self, repeats: int) -> None:
        super().__init__()
        self.repeats = repeats
        self.seconds: dict[tuple, float] = {}
        self.calls: Counter = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Time a part when it is met first; count it always."""
        kwargs = kwargs or {}
        name = str(func)
        if any(part in name for part in PARTS) and "flarepp::" not in name:
            key = (
                name,
                *(tuple(a.shape) + a.stride() for a in args if isinstance(a, torch.Tensor)),
            )
            if key not in self.seconds:
                self.seconds[key] = self._time_alone(func, args, kwargs)
            self.calls[key] += 1
        return func(*args, **kwargs)

    def _time_alone(self, func, args, kwargs) -> float:
        if func.overloadpacket.__name__.endswith("_"):  # in place: spare the original
            args = (args[0].clone(), *args[1:])
        times = []
        for _ in range(self.repeats):
            start = CLOCK()
            func(*args, **kwargs)
            wait(args[0].device)
            times.append(CLOCK() - start)
        return statistics.median(times)

    def total(self) -> float:
        """Return the seconds of all calls of the step."""
        return sum(self.seconds[key] * count for key, count in self.calls.items())


def measure_parts(step, repeats: int) -> dict[str, float]:
    """Return the time of a step over the sum of its bare parts, measured in turn, and that sum."""
    ratios, totals = [], []
    for _ in range(repeats):
        start = CLOCK()
        step()
        whole = CLOCK() - start
        with PartTimer(3) as parts:
            step()
        totals.append(parts.total())
        ratios.append(whole / totals[-1])
    return {
        "step/parts": round(statistics.median(ratios), 3),
        "parts_s": round(statistics.median(totals), 4),
    }


def weighted_over_plain(model: torch.nn.Module, tokens: int, repeats: int) -> float:
    """Return the time of a step with token weights over that without: the median of pairs.

    The two steps of a pair run one after the other, first and second in turn.
    """
    steps = [make_step(model, tokens, weighted) for weighted in (False, True)]
    ratios = []
    for repeat in range(-2, repeats):  # two pairs to warm up
        seconds = [0.0, 0.0]
        for which in (0, 1) if repeat % 2 else (1, 0):
            start = CLOCK()
            steps[which]()
            seconds[which] = CLOCK() - start
        if repeat >= 0:
            ratios.append(seconds[1] / seconds[0])
    return statistics.median(ratios)


def measure_tokens(tokens: int, arguments: argparse.Namespace, settings: dict) -> list[dict]:
    """Return the rows of the table for one token count."""
    names = [n for n in arguments.models if n != "attention" or tokens <= arguments.attention_limit]
    rows = {name: {"tokens": tokens, "model": name} for name in names}
    with Progress(transient=True, disable=not sys.stdout.isatty()) as progress:
        task = progress.add_task(f"N = {tokens:,}", total=len(names) * (arguments.repeats + 2))
        steps = {name: make_step(build(name, settings), tokens) for name in names}
        times = measure_times(steps, arguments.repeats, progress, task)
        for name, values in times.items():
            rows[name]["seconds"] = round(statistics.median(values), 4)
        if arguments.parts:
            for name in names:
                rows[name] |= measure_parts(steps[name], 3)
        del steps
        gc.collect()
        if arguments.weights:
            for name in names:
                if name in MIXERS:
                    ratio = weighted_over_plain(build(name, settings), tokens, arguments.repeats)
                rows[name]["weighted/plain"] = round(ratio, 3) if name in MIXERS else "-"
        for name in names:
            job = {"model": name, "tokens": tokens, "settings": settings}
            memory = measure_in_own_process(__file__, job)["bytes"]
            rows[name]["memory_mb"] = round(memory / 1e6, 1)
            progress.advance(task)
    for reference in [name for name in REFERENCES if name in rows]:
        for name, row in rows.items():
            pairs = zip(times[name], times[reference], strict=True)
            row[REFERENCES[reference]] = round(statistics.median(a / b for a, b in pairs), 3)
    if "flare" in rows:
        for row in rows.values():
            row["memory/flare"] = round(row["memory_mb"] / rows["flare"]["memory_mb"], 2)
    return list(rows.values())


def plot(rows: list[dict], path: Path) -> None:
    """Draw time and memory against N on logarithmic axes, one line per model."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    columns = (("seconds", "forward + backward (s)"), ("memory_mb", "peak memory (MB)"))
    for axis, (column, label) in zip(axes, columns, strict=True):
        for name in dict.fromkeys(row["model"] for row in rows):
            line = [row for row in rows if row["model"] == name]
            tokens, values = [row["tokens"] for row in line], [row[column] for row in line]
            axis.loglog(tokens, values, "o-", label=name)
        axis.set(xlabel="tokens N", ylabel=label)
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize="small")
    figure.savefig(path, dpi=150)


def main() -> None:
    """Measure every token count, print the rows as they come, write CSV and plot."""
    arguments = parse_arguments()
    if arguments.measure:
        print(json.dumps(measure_memory(**json.loads(arguments.measure))))
        return
    torch.set_num_threads(arguments.threads)
    keys = ("layers", "hidden", "heads", "slices", "threads", "device", "dtype")
    keys += ("mlp_ratio", "norm", "autocast")
    settings = {key: getattr(arguments, key) for key in keys}
    print(", ".join(f"{key} {value}" for key, value in settings.items()))
    arguments.out.mkdir(parents=True, exist_ok=True)
    rows: list[dict] = []
    for tokens in arguments.tokens:
        for row in measure_tokens(tokens, arguments, settings):
            print_row(row, header=not rows)
            rows.append(row)
    write_csv(rows, arguments.out / "time_memory.csv")
    plot(rows, arguments.out / "time_memory.png")
    print(f"wrote {arguments.out}/time_memory.csv and .png")


if __name__ == "__main__":
    main()
