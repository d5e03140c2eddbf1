"""Trainings in processes of their own, one per rank: forks of a server that has torch loaded."""

import gc
import os
import socket
import time

import torch
from omegaconf import OmegaConf
from torch.multiprocessing import start_processes

DEADLINE = 180.0


def start_training(cfg, world, seconds_per_step=0.0):
    """Start `world` ranks that train; ``.join(timeout)`` of the result waits for them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = (OmegaConf.to_container(cfg), world, port, seconds_per_step)
    return start_processes(_train_rank, arguments, world, join=False, start_method="forkserver")


def run_training(cfg, world):
    """Train on `world` ranks to the end."""
    processes = start_training(cfg, world)
    deadline = time.monotonic() + DEADLINE
    while not processes.join(max(0.0, deadline - time.monotonic())):
        if time.monotonic() > deadline:
            for process in processes.processes:
                process.kill()
            raise TimeoutError(f"training on {world} ranks took more than {DEADLINE} s")


def _train_rank(rank, cfg, world, port, seconds_per_step):
    from physicsnemo_flarepp.training import train
    from physicsnemo_flarepp.training.optimizers import TrainStep

    gc.freeze()  # what the server imported
    torch.set_num_threads(1)
    if world > 1:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    original = TrainStep.__call__

    def slow_step(self, batches):
        time.sleep(seconds_per_step)
        return original(self, batches)

    TrainStep.__call__ = slow_step
    train(OmegaConf.create(cfg))
