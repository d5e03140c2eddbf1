"""What spawned gloo ranks run for the tests of random states and stop requests."""

import os
import random
import signal

import numpy as np
import torch
import torch.distributed as dist

from physicsnemo_flarepp.runs.checkpoints import (
    gather_random_states,
    restore_own_random_state,
)
from physicsnemo_flarepp.training.reporting import StopRequest

WORLD = 2


def draw() -> list[float]:
    numbers = [random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn()]
    return numbers + torch.randn(3).tolist()


def run_rank(rank: int, directory: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{directory}/rendezvous", rank=rank, world_size=WORLD
    )
    found = {"random": _random_states(rank), "stops": _stops(rank)}
    torch.save(found, f"{directory}/{rank}.pt")
    dist.destroy_process_group()


def _random_states(rank: int) -> dict:
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(rank)
    states = gather_random_states()
    first = draw()
    restore_own_random_state(states)
    again = draw()
    try:
        restore_own_random_state(states + states)
    except ValueError as error:
        return {"first": first, "again": again, "ranks": len(states), "error": str(error)}


def _stops(rank: int) -> dict:
    """Rank 1 gets a signal at step 2; every rank records where it stopped."""
    with StopRequest() as stop:
        for step in range(5):
            if step == 2 and rank == 1:
                os.kill(os.getpid(), signal.SIGUSR1)
            if stop.agree("cpu"):
                break
    return {"step": step, "requested": (stop.signal_name is not None), "signal": stop.signal_name}
