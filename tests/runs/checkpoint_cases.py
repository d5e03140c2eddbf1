"""Checkpoints whose contents tell their step, and saves that end at a chosen call."""

import os
import random
import shutil
import signal
import time
from pathlib import Path

import torch
from physicsnemo.models.mlp import FullyConnected

from physicsnemo_flarepp.runs import (
    CheckpointStore,
    load_model,
    load_training_state,
)

WRITING = ("mkdir", "write", "fsync", "rename")
DELETING = ("unlink", "rmdir")


def small_model(value: float = 0.0) -> FullyConnected:
    model = FullyConnected(in_features=2, out_features=1, num_layers=1, layer_size=4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
    return model


def save(store: CheckpointStore, step: int, version: int = 0, metric: float | None = None) -> Path:
    """Save a checkpoint in which state and model hold the step and the version."""
    value = step + version / 8
    state = {"value": value, "tensor": torch.full((300,), value), "list": [step, {"a": None}]}
    return store.save(step, state, small_model(value), epoch=step // 10, metric=metric)


def contents(checkpoint) -> tuple[int, float]:
    """Return (step, version) of a checkpoint after comparing all its parts with each other."""
    state = load_training_state(checkpoint)
    value = state["value"]
    assert torch.equal(state["tensor"], torch.full((300,), value))
    assert state["list"] == [checkpoint.step, {"a": None}]
    for parameter in load_model(
        checkpoint.path / "model.mdlus", allow=(FullyConnected,)
    ).parameters():
        assert torch.equal(parameter, torch.full_like(parameter, value))
    return checkpoint.step, (value - checkpoint.step) * 8


class CallCounter:
    """Replace functions of ``os``; at call number ``at`` do ``act`` instead."""

    def __init__(self, names, at, act):
        self.names, self.at, self.act, self.calls = names, at, act, 0

    def __enter__(self):
        self.originals = {name: getattr(os, name) for name in self.names}
        for name, original in self.originals.items():
            setattr(os, name, self._counted(original))
        return self

    def __exit__(self, *_):
        for name, original in self.originals.items():
            setattr(os, name, original)

    def _counted(self, original):
        def call(*arguments, **options):
            self.calls += 1
            if self.calls == self.at:
                self.act()
            return original(*arguments, **options)

        return call


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_at_every_call(directory: str, result: str) -> None:
    """Kill a save of step 20 over step 20 that also deletes step 10, at each call in turn.

    Runs in a process of its own, which is single-threaded and can fork.
    """
    torch.set_num_threads(1)
    template = Path(directory, "template")
    for step in (10, 20):
        save(CheckpointStore(template), step, metric=1 / step)
    found, survived = [], False
    while not survived:
        folder = Path(directory, str(len(found)))
        shutil.copytree(template, folder)
        child = os.fork()
        if child == 0:
            with CallCounter(WRITING + DELETING, len(found) + 1, _die):
                save(CheckpointStore(folder, keep=1), 20, version=1, metric=0.0)
            os._exit(0)
        survived = os.waitpid(child, 0)[1] == 0
        warnings: list[str] = []
        store = CheckpointStore(folder, keep=1)
        newest = contents(store.newest_sound(warnings.append))
        seen = [contents(entry) for entry in store.entries()]
        save(store, 30)
        left = sorted(path.name for path in folder.iterdir())
        found.append((newest, seen, warnings, left))
    torch.save(found, result)


def kill_at_random_times(directory: str, result: str) -> None:
    """Kill a process that saves all the time, some times over, in one directory."""
    torch.set_num_threads(1)
    waits = random.Random(0)
    found = []
    for attempt in range(8):
        started = Path(directory).with_name(f"started_{attempt}")
        child = os.fork()
        if child == 0:
            _save_for_ever(directory, started)
        while not started.exists():
            time.sleep(0.001)
        time.sleep(waits.uniform(0.0, 0.1))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        warnings: list[str] = []
        newest = CheckpointStore(directory).newest_sound(warnings.append)
        found.append((contents(newest), warnings))
    torch.save(found, result)


def _save_for_ever(directory: str, started: Path) -> None:
    store = CheckpointStore(directory, keep=2)
    newest = store.newest_sound(print)
    step = 0 if newest is None else newest.step
    while True:
        step += 1
        save(store, step, metric=abs(step % 7 - 3))
        started.touch()
