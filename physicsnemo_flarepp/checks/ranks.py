"""One training step on several ranks against one: errors, traffic, bandwidth."""

import json
import os
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch.multiprocessing import start_processes

from ..ops import all_reduce
from ..parallel import (
    CollectiveCounter,
    enable_context_parallel,
    initialize,
    make_mesh,
    shard_tokens,
    sync_gradients,
)
from ..training.losses import relative_l2_loss
from .execution import points, small_model
from .findings import FAILED, NOTED, REPORT, Finding, gradient_errors, judge, relative_error

_TOKENS = 1001
_PAYLOAD = {"cuda": 2**24, "cpu": 2**20}  # numbers in fp32
_WAIT = 90.0  # seconds for a collective


def rank_findings(n_ranks: int, device: torch.device) -> Iterator[Finding]:
    """Start ranks on this machine, on NCCL or gloo, and yield what they find."""
    backend = "NCCL" if device.type == "cuda" else "gloo"
    title = f"{n_ranks} ranks, {backend}"
    if device.type == "cuda" and n_ranks > torch.cuda.device_count():
        figures = f"{torch.cuda.device_count()} GPUs for {n_ranks} ranks"
        advice = "ask for at most one rank per GPU, or add --device cpu"
        yield Finding(title, FAILED, figures, advice)
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        given = (n_ranks, port, device.type, directory)
        start_processes(rank_main, given, n_ranks, start_method="forkserver")
        results = [json.loads((directory / f"{r}.json").read_text()) for r in range(n_ranks)]
    error = max(result["error"] for result in results)
    figures = f"loss and gradients differ by {error:.1e} from one rank (limit 1e-04)"
    advice = f"train with parallel.context=1 and {REPORT}"
    yield judge(f"{title}: training step", error, 1e-4, figures, advice)
    forward, backward = results[0]["forward"], results[0]["backward"]
    figures = (
        f"{forward:g} forward and {backward:g} backward per encode, "
        f"{results[0]['bytes'] / 1024:.1f} KiB per step without parameters"
    )
    advice = f"more data travels than designed: {REPORT}"
    yield judge(f"{title}: collectives", forward > 2 or backward > 1, 0, figures, advice)
    speed = min(result["bandwidth"] for result in results)
    megabytes = 4 * _PAYLOAD[device.type] / 2**20
    yield Finding(f"{title}: bandwidth", NOTED, f"{speed:.2f} GB/s, sum of {megabytes:.0f} MiB")


def rank_main(rank: int, n_ranks: int, port: int, kind: str, directory: Path) -> None:
    """Run the checks of one rank and write the results to `directory`."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(n_ranks)}
    if kind == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        torch.set_num_threads(1)
    manager = initialize(timeout=_WAIT)
    found = compare_step(manager.device, n_ranks)
    found["bandwidth"] = measure_bandwidth(manager.device, kind)
    (directory / f"{rank}.json").write_text(json.dumps(found))
    manager.cleanup(barrier=True)


def compare_step(device: torch.device, n_ranks: int) -> dict[str, float]:
    """Return how a step on this rank's tokens differs from one on all tokens, and the traffic."""
    mesh = make_mesh(n_ranks)
    group = mesh["context"].get_group()
    model, x = small_model(device), points(_TOKENS, device)
    target = torch.sin(3 * x[..., :2])
    whole = relative_l2_loss(model(x), target)
    whole.backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad(set_to_none=True)
    enable_context_parallel(model, group)
    x, target = shard_tokens(x, group), shard_tokens(target, group)
    with CollectiveCounter() as ahead:
        y = model(x)
    loss = relative_l2_loss(y, target, group=group)
    with CollectiveCounter() as back:
        loss.backward()
    sync_gradients(model, mesh)
    found = [p.grad for p in model.parameters()]
    encodes = sum(block.mixer.n_gathers for block in model.blocks)
    return {
        "error": max(relative_error(loss, whole), *gradient_errors(found, expected)),
        "forward": ahead.total_calls / encodes,
        "backward": back.total_calls / encodes,
        "bytes": ahead.total_bytes + back.total_bytes,
    }


def measure_bandwidth(device: torch.device, kind: str) -> float:
    """Return the gigabytes per second that a sum over the ranks moves on each rank."""
    payload = torch.ones(_PAYLOAD[kind], device=device)
    world = dist.get_world_size()
    seconds = []
    for _ in range(4):
        dist.barrier()
        start = time.perf_counter()
        all_reduce(payload, "sum", dist.group.WORLD)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - start)
    return 2 * (world - 1) / world * 4 * payload.numel() / min(seconds) / 1e9
