"""Time and memory of models that differ only in the mixer."""

import statistics
import time
from collections.abc import Callable, Iterator

import torch

from ..mixers import MIXERS
from ..models import MixerBackbone
from ..progress import progress_bar
from .findings import NOTED, Finding

_REPEATS = 3
_ATTENTION_LIMIT = 10_000  # tokens; its cost grows with their square
_UNIT = "flare"  # the mixer that the others are compared with


def cost_findings(device: torch.device) -> Iterator[Finding]:
    """Yield time and memory of a training step per mixer and token count, after a description."""
    on_gpu = device.type == "cuda"
    layers, counts = (8, (1_000, 10_000, 100_000)) if on_gpu else (2, (1_000, 10_000))
    where = "" if on_gpu else f" on {torch.get_num_threads()} threads"
    yield Finding(
        "cost of a training step",
        NOTED,
        f"forward and backward of {layers} blocks, C=128, H=8, M=64, N tokens, fp32{where}: "
        f"median of {_REPEATS}, the mixers in turn; as multiples of {_UNIT}"
        + ("; peak memory beyond the weights" if on_gpu else ""),
    )
    for n_tokens in counts:
        names = [n for n in MIXERS if n != "attention" or n_tokens <= _ATTENTION_LIMIT]
        steps = {name: make_step(name, n_tokens, layers, device) for name in names}
        seconds = median_seconds(steps, f"cost, N={n_tokens:,}")
        for name in names:
            title = f"cost, N={n_tokens:,} {name}"
            if name not in seconds:
                yield Finding(title, NOTED, "does not fit in the device's memory")
                continue
            figures = f"{seconds[name]:9.4f} s"
            if _UNIT in seconds:
                figures += f"  {seconds[name] / seconds[_UNIT]:5.2f} x"
            if on_gpu:
                figures += f"  {_peak(steps[name], device) / 1e6:7.0f} MB"
            yield Finding(title, NOTED, figures)


def median_seconds(steps: dict[str, Callable[[], None]], label: str) -> dict[str, float]:
    """Return the median time of each step; steps that run out of memory are left out.

    They take turns, so that whatever else the machine does slows all of them equally.
    """
    times: dict[str, list[float]] = {name: [] for name in steps}
    with progress_bar(label, len(steps) * (1 + _REPEATS), wanted=True) as advance:
        for repeat in range(-1, _REPEATS):  # one to warm up
            for name in list(times):
                start = time.perf_counter()
                try:
                    steps[name]()
                except torch.OutOfMemoryError:
                    del times[name]
                    torch.cuda.empty_cache()
                    continue
                finally:
                    advance()
                if repeat >= 0:
                    times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def make_step(mixer: str, n_tokens: int, layers: int, device: torch.device) -> Callable[[], None]:
    """Return a function that runs forward and backward of a model and waits for it."""
    model = MixerBackbone(3, 1, mixer=mixer, n_layers=layers).to(device)
    x = torch.rand(1, n_tokens, 3, device=device)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        model(x).square().mean().backward()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return step


def _peak(step: Callable[[], None], device: torch.device) -> int:
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    step()
    return torch.cuda.max_memory_allocated(device) - before
