"""Checks of whole models: precisions, one compiled graph, splits, streaming, time and memory."""

import copy
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from ..inference import predict
from ..mixers import MIXERS
from ..models import FlarePP, MixerBackbone
from ..ops import decode, encode
from ..ops.kernels import select_backend
from ..ops.splits import VARIABLE, choose_splits, count_slots
from ..progress import progress_bar
from .findings import NOTED, PASSED, REPORT, Finding, judge, relative_error
from .kernels import short_name

_AUTOCAST_LIMITS = {torch.bfloat16: 0.05, torch.float16: 0.01}
COMPILER = "inductor"
_EAGER = "train with training.compile=false"
# On CPUs inductor sums up to 4096 numbers differently, and compiles once more below that.
_COMPILED_TOKENS = (5003, 6007, 8011)
_SLOWER = 1.2  # splits that take this much longer than the whole deserve a note
_REPEATS = 3
_ATTENTION_LIMIT = 10_000  # tokens; its cost grows with their square
_UNIT = "flare"  # the mixer that the others are compared with


def small_model(device: torch.device, n_layers: int = 2, norm: str = "layer") -> FlarePP:
    """Return a model of a few blocks, the same at every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        sizes = {"n_layers": n_layers, "n_hidden": 32, "n_head": 4, "slice_num": 8}
        model = FlarePP(3, 2, norm=norm, **sizes)
    return model.to(device)


def points(n_tokens: int, device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return random points (1, N, 3), the same at every call."""
    draw = torch.Generator().manual_seed(n_tokens)
    return torch.rand(1, n_tokens, 3, generator=draw).to(device, dtype)


def value_and_gradient(forward: Callable, model: FlarePP, x: Tensor) -> list[Tensor]:
    """Return the output and the gradient of its square in all parameters, as two vectors."""
    model.zero_grad(set_to_none=True)
    y = forward(x)
    y.float().square().mean().backward()
    gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return [y.detach(), torch.cat(gradients)]


def autocast_findings(device: torch.device) -> Iterator[Finding]:
    """Compare a model under autocast, with the norm of mixed precision, with fp64."""
    model, x = small_model(device, norm="rms"), points(5003, device)  # kernels take parts of them
    exact = copy.deepcopy(model).cpu().double()
    reference = value_and_gradient(exact, exact, x.cpu().double())
    for dtype, limit in _AUTOCAST_LIMITS.items():

        def forward(x: Tensor, dtype: torch.dtype = dtype) -> Tensor:
            with torch.autocast(device.type, dtype):
                return model(x)

        found = value_and_gradient(forward, model, x)
        errors = [relative_error(*pair) for pair in zip(found, reference, strict=True)]
        figures = "output {:.1e}, gradients {:.1e}".format(*errors) + f" (limit {limit:.0e})"
        yield judge(f"autocast {short_name(dtype)}", max(errors), limit, figures)


def compile_findings(device: torch.device) -> Iterator[Finding]:
    """Check that one compiled graph serves several token counts and agrees with eager mode."""
    model = small_model(device, n_layers=1)
    torch._dynamo.reset()
    counter = CompileCounterWithBackend(COMPILER)
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=counter)
    errors, counts = [], []
    start = time.perf_counter()
    for n_tokens in _COMPILED_TOKENS:
        x = points(n_tokens, device)
        pairs = zip(*(value_and_gradient(f, model, x) for f in (compiled, model)), strict=True)
        errors.extend(relative_error(*pair) for pair in pairs)
        counts.append(counter.frame_count)
    figures = f"error {max(errors):.1e} against eager, {time.perf_counter() - start:.0f} s"
    yield judge("torch.compile, dynamic N", max(errors), 1e-4, figures, f"{_EAGER} and {REPORT}")
    again = counts[-1] - counts[0]
    figures = f"{again} for two further token counts"
    advice = f"steps are slow when the token count changes: {_EAGER}, or with a fixed data.n_points"
    yield judge("torch.compile, recompilations", again, 0, figures, advice)


def split_findings(device: torch.device) -> Iterator[Finding]:
    """Compare the time of encode and decode in parts with the whole, forward and backward."""
    on_gpu = device.type == "cuda"
    tokens = 200_000 if on_gpu else 20_000
    for dtype, heads in product((torch.float32, torch.float16)[: 1 + on_gpu], (1, 8)):
        rows = [
            torch.randn(1, n, heads, 16, device=device).to(dtype).transpose(1, 2)
            for n in (64, 64, tokens, tokens)
        ]
        q, z, k, v = (t.requires_grad_() for t in rows)
        for call, inputs in ((encode, (q, k, v)), (decode, (k, q, z))):

            def step(parts: int | None, call: Callable = call, inputs: tuple = inputs) -> None:
                torch.autograd.grad(call(*inputs, splits=parts).sum(), inputs)
                _wait(device)

            sizes = (1, heads, inputs[0].shape[2], inputs[1].shape[2])
            backend, slots = select_backend(*inputs, None), count_slots(device)
            forward, backward = (choose_splits(backend, way, sizes, slots) for way in (False, True))
            steps = {n: partial(step, n) for n in (1, None)}
            whole, auto = median_seconds(steps, "parts").values()
            slow = auto > _SLOWER * whole and max(forward, backward) > 1
            yield Finding(
                f"parts, {call.__name__} H={heads} {short_name(dtype)}",
                NOTED if slow else PASSED,
                f"auto takes {forward} forward, {backward} backward: {1e3 * auto:.1f} ms, "
                f"whole {1e3 * whole:.1f} ms",
                f"the whole is faster here: set {VARIABLE}=1" if slow else "",
            )


def streaming_findings(device: torch.device) -> Iterator[Finding]:
    """Check that chunks moved to and from the host reproduce the plain forward pass, every time."""
    model = small_model(device).eval()
    x = points(20_011, torch.device("cpu"))
    with torch.no_grad():
        plain = model(x.to(device))
    seconds, results = [], []
    for _ in range(3):
        start = time.perf_counter()
        results.append(predict(model, x, chunk_size=1500, progress=False))
        seconds.append(time.perf_counter() - start)
    error = max(relative_error(found, plain) for found in results)
    figures = f"error {error:.1e} against the plain forward, {min(seconds):.2f} s for 20,011 points"
    way = "pinned transfers" if device.type == "cuda" else "chunks"
    yield judge(f"streaming, {way}", error, 1e-4, figures)
    same = all(torch.equal(found, results[0]) for found in results)
    figures = "equal bit for bit" if same else "differs from call to call: transfers overlap"
    yield judge(f"streaming, repeated {way}", float(not same), 0, figures)


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
                torch.cuda.reset_peak_memory_stats(device)
                before = torch.cuda.memory_allocated(device)
                steps[name]()
                peak = torch.cuda.max_memory_allocated(device) - before
                figures += f"  {peak / 1e6:7.0f} MB"
            yield Finding(title, NOTED, figures)


def median_seconds(steps: Mapping[Any, Callable[[], None]], label: str) -> dict[Any, float]:
    """Return the median time of each step; steps that run out of memory are left out."""
    # They take turns, so that whatever else the machine does slows all of them equally.
    times: dict[Any, list[float]] = {name: [] for name in steps}
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
        _wait(device)

    return step


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
