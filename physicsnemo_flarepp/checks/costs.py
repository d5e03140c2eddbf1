"""What models that differ only in the mixer cost on a device."""

import statistics
import time
from collections.abc import Iterator

import torch

from ..mixers import MIXERS
from ..models import MixerBackbone
from .findings import NOTED, Finding

_REPEATS = 3
_ATTENTION_LIMIT = 10_000  # tokens; its cost grows with their square


def cost_findings(device: torch.device) -> Iterator[Finding]:
    """Yield seconds of a step and its peak memory for each mixer and token count."""
    on_gpu = device.type == "cuda"
    layers, counts = (8, (1_000, 10_000, 100_000)) if on_gpu else (2, (1_000, 10_000))
    for n_tokens in counts:
        names = [n for n in MIXERS if n != "attention" or n_tokens <= _ATTENTION_LIMIT]
        steps = {name: _make_step(name, n_tokens, layers, device) for name in names}
        times: dict[str, list[float]] = {name: [] for name in names}
        for repeat in range(-1, _REPEATS):  # in turn, one to warm up
            for name, step in steps.items():
                start = time.perf_counter()
                step()
                if repeat >= 0:
                    times[name].append(time.perf_counter() - start)
        seconds = {name: statistics.median(values) for name, values in times.items()}
        for name in names:
            figures = f"{seconds[name]:.4f} s, {seconds[name] / seconds['flare']:.2f} x flare"
            if on_gpu:
                figures += f", {_peak(steps[name], device) / 1e6:.0f} MB"
            yield Finding(f"cost, {name} N={n_tokens:,}", NOTED, figures)


def _make_step(mixer: str, n_tokens: int, layers: int, device: torch.device):
    """Return a function that runs forward and backward of a model and waits for it."""
    model = MixerBackbone(3, 1, mixer=mixer, n_layers=layers).to(device)
    x = torch.rand(1, n_tokens, 3, device=device)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        model(x).square().mean().backward()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return step


def _peak(step, device: torch.device) -> int:
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    step()
    return torch.cuda.max_memory_allocated(device) - before
