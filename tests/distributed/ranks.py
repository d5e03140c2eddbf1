"""Start real gloo ranks and collect what they return.

The fork server imports PhysicsNeMo once; every rank is a fork of it and starts in milliseconds.
"""

import gc
import importlib
import os
import socket
import time
from datetime import timedelta
from pathlib import Path

import torch
from torch.multiprocessing import start_processes


def run_ranks(functions: list[str], world: int, directory: Path, timeout: float = 30.0) -> list:
    """Run "module.function" names one after another on ``world`` ranks; results per rank.

    ``timeout`` in seconds is that of a collective. The run as a whole, which may import
    PhysicsNeMo on a busy machine first, gets three minutes before its ranks are killed.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = start_processes(
        _rank_main,
        (functions, world, port, directory, timeout),
        world,
        join=False,
        start_method="forkserver",
    )
    deadline = time.monotonic() + 180.0
    while not context.join(max(0.0, deadline - time.monotonic())):
        if time.monotonic() > deadline:
            for process in context.processes:
                process.kill()
            raise TimeoutError(f"{functions} did not end within 180 s")
    return [torch.load(directory / f"{rank}.pt", weights_only=False) for rank in range(world)]


def _rank_main(
    rank: int, functions: list[str], world: int, port: int, directory: Path, timeout: float
) -> None:
    from physicsnemo_flarepp.parallel import initialize

    gc.freeze()  # what the server imported
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world)}
    manager = initialize(timeout=timedelta(seconds=timeout))
    results = {}
    for name in functions:
        module, function = name.split(".")
        start = time.perf_counter()
        results[name] = getattr(importlib.import_module(module), function)(rank)
        results[name, "seconds"] = time.perf_counter() - start
    torch.save(results, directory / f"{rank}.pt")
    manager.cleanup(barrier=True)
