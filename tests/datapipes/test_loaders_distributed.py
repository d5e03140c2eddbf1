"""Two gloo ranks: forked, because importing PhysicsNeMo again would take longer than the test."""

import json
import multiprocessing
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist

from physicsnemo_flarepp.datapipes import build_dataloaders
from physicsnemo_flarepp.parallel import CollectiveCounter
from physicsnemo_flarepp.parallel import ranks as rank_module

pytestmark = pytest.mark.distributed


def run_ranks(task, directory, size=2):
    """Call task(rank) in `size` forked processes of one gloo group; return the results by rank."""
    context = multiprocessing.get_context("fork")
    results = context.Queue()

    def work(rank):
        torch.set_num_threads(1)
        store = dist.FileStore(str(directory / "store"), size)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
        dist.barrier()  # a rank that leaves at once would break the connections of the others
        try:
            outcome = task(rank)
        except Exception as error:  # the parent asserts on the text
            outcome = f"{type(error).__name__}: {error}"
        results.put((rank, outcome))
        dist.destroy_process_group()

    processes = [context.Process(target=work, args=(rank,)) for rank in range(size)]
    for process in processes:
        process.start()
    outcomes = dict(results.get(timeout=60) for _ in processes)
    for process in processes:
        process.join()
    return [outcomes[rank] for rank in range(size)]


def set_generator(monkeypatch, generate):
    module = "physicsnemo_flarepp.builtin"
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(generate=generate))


def test_one_rank_generates_and_all_fit_the_same_statistics(grid_files, monkeypatch, tmp_path):
    root = grid_files("Pipe", (129, 129), 3, 6)

    def generate(name, *, n_train, n_val, n_test, seed):
        with (tmp_path / "calls").open("a") as file:
            file.write(f"{dist.get_rank()}")
        (root / "stamp.json").write_text(json.dumps({"n_train": n_train, "n_test": n_test}))
        return root

    cfg = {"builtin": "pipe", "n_train": 5, "n_test": 1}
    alone = build_dataloaders({"benchmark": "pipe", "root": str(root), "n_train": 5, "n_test": 1})
    set_generator(monkeypatch, generate)

    def task(rank):
        place = {"data_rank": 0, "data_size": 1, "context_rank": rank, "context_size": 2}
        loaders = build_dataloaders({**cfg, "parallel": place})
        state = loaders.normalizer.state_dict()
        return {name: tensor.tolist() for name, tensor in state.items()}

    ranks = run_ranks(task, tmp_path)
    assert (tmp_path / "calls").read_text() == "0"
    assert ranks[0] == ranks[1]
    for name, tensor in alone.normalizer.state_dict().items():
        torch.testing.assert_close(torch.tensor(ranks[0][name]), tensor)


def test_a_failure_to_generate_is_raised_on_every_rank(monkeypatch, tmp_path):
    def generate(name, *, n_train, n_val, n_test, seed):
        raise OSError("disk full")

    set_generator(monkeypatch, generate)
    cfg = {"builtin": "cars", "batch_size": 2, "parallel": {"data_size": 2}}
    ranks = run_ranks(lambda rank: build_dataloaders(cfg), tmp_path)
    assert ranks == ["OSError: disk full"] * 2


def test_ranks_wait_for_the_first_one_without_a_collective(monkeypatch, tmp_path, capfd):
    """NCCL would end the job after ten minutes in one; the wait is shortened, and says so."""
    monkeypatch.setattr(rank_module, "_PATIENCE", 0.05)

    def task(rank):
        with CollectiveCounter() as counter:
            slow = rank_module.on_first_rank(
                lambda: time.sleep(0.5) or Path("there"), "drawing cars"
            )
            quick = rank_module.on_first_rank(lambda: "again", "drawing cars")
        return slow, quick, counter.total_calls

    assert run_ranks(task, tmp_path) == [(Path("there"), "again", 0)] * 2
    said = capfd.readouterr().err
    assert "waiting for the first rank, drawing cars: 0:00:0" in said


def test_errors_that_cannot_travel_arrive_as_text(tmp_path):
    class Local(Exception):
        pass

    def fail():
        raise Local("not outside this function")

    ranks = run_ranks(lambda rank: rank_module.on_first_rank(fail, "failing"), tmp_path)
    assert ranks == ["Local: not outside this function"] + [
        "RuntimeError: Local: not outside this function"
    ]


def test_globals_are_counted_once_per_case(tmp_path):
    rng = np.random.default_rng(3)
    for split, runs in (("train", range(3)), ("test", range(3, 4))):
        (tmp_path / split).mkdir()
        for run in runs:
            np.savez(
                tmp_path / split / f"run_{run}.npz",
                surface_mesh_centers=rng.normal(size=(11, 3)),
                surface_fields=rng.normal(size=(11, 4)),
                speed=np.array([30.0 + run**2]),
            )
    cfg = {
        "benchmark": "drivaerml_40k",
        "root": str(tmp_path),
        "reader": {"global_names": ["speed"]},
        "normalization": {"globals": "gaussian", "fields": "gaussian"},
    }

    def task(rank):
        place = {"context_rank": rank, "context_size": 2}
        state = build_dataloaders({**cfg, "parallel": place}).normalizer.state_dict()
        return {name: tensor.tolist() for name, tensor in state.items()}

    ranks = run_ranks(task, tmp_path)
    assert ranks[0] == ranks[1]
    speeds = [30.0, 31.0, 34.0]
    np.testing.assert_allclose(ranks[0]["globals.shift"], np.mean(speeds), rtol=1e-6)
    np.testing.assert_allclose(ranks[0]["globals.scale"], np.std(speeds, ddof=1), rtol=1e-6)


@pytest.mark.parametrize(
    "normalization", ["fit", "paper", "none", {"fields": "gaussian"}, {"load": "stats"}], ids=str
)
def test_a_mesh_that_is_not_the_ranks_is_refused(ragged_set, tmp_path, normalization):
    cfg = {
        "benchmark": "drivaerml_40k",
        "root": str(ragged_set),
        "normalization": normalization,
    }
    ranks = run_ranks(lambda rank: build_dataloaders(cfg), tmp_path)
    assert all("data_size=1 and context_size=1, but 2 ranks are running" in text for text in ranks)
