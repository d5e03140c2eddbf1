"""Two gloo ranks: forked, because importing PhysicsNeMo again would take longer than the test."""

import json
import multiprocessing
import sys
from types import SimpleNamespace

import torch
import torch.distributed as dist

from physicsnemo_flarepp.datapipes import build_dataloaders


def run_ranks(task, directory, size=2):
    """Call task(rank) in `size` forked processes of one gloo group; return the results by rank."""
    context = multiprocessing.get_context("fork")
    results = context.Queue()

    def work(rank):
        torch.set_num_threads(1)
        store = dist.FileStore(str(directory / "store"), size)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
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
    module = "physicsnemo_flarepp.datapipes.synthetic"
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(generate=generate))


def test_one_rank_generates_and_all_fit_the_same_statistics(grid_files, monkeypatch, tmp_path):
    root = grid_files("Pipe", (129, 129), 3, 6)

    def generate(name, *, n_train, n_test, seed):
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
    def generate(name, *, n_train, n_test, seed):
        raise OSError("disk full")

    set_generator(monkeypatch, generate)
    ranks = run_ranks(lambda rank: build_dataloaders({"builtin": "cars"}), tmp_path)
    assert ranks == ["RuntimeError: rank 0 could not generate 'cars': OSError: disk full"] * 2


def test_a_mesh_that_is_not_the_ranks_is_refused(ragged_set, tmp_path):
    cfg = {"benchmark": "drivaerml_40k", "root": str(ragged_set)}
    ranks = run_ranks(lambda rank: build_dataloaders(cfg), tmp_path)
    assert all("data_size=1 and context_size=1, but 2 ranks are running" in text for text in ranks)
