"""Which models are compiled, on emulated machines, and how often: one graph for all sizes."""

import shutil
import sysconfig
import warnings
from functools import partial

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters

from physicsnemo_flarepp.datapipes.readers.base import TOKEN_KEYS
from physicsnemo_flarepp.training.config import TrainingConfig, check_config
from physicsnemo_flarepp.training.run import (
    assemble,
    compile_model,
    is_compiled,
    load_data,
    start_ranks,
)

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Emulates a machine with these programs and, if asked for, Python's headers."""

    def make(programs, headers=True):
        monkeypatch.delenv("CC", raising=False)
        monkeypatch.setattr(shutil, "which", lambda name: name if name in programs else None)
        monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
        if headers:
            (tmp_path / "Python.h").touch()

    return make


@pytest.mark.parametrize("programs", [["gcc"], ["clang"]])
def test_auto_compiles_plain_steps_on_cuda_alone(machine, programs):
    machine(programs)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert is_compiled(TrainingConfig(), CUDA)
        assert not is_compiled(TrainingConfig(), CPU)
        assert not is_compiled(TrainingConfig(stream=100), CUDA)
        assert not is_compiled(TrainingConfig(compile=False), CUDA)
        assert is_compiled(TrainingConfig(compile=True), CPU)


@pytest.mark.parametrize(
    ("programs", "headers", "missing"),
    [
        ([], True, r"no C compiler \(gcc\), with"),
        (["gcc"], False, r"no header Python.h \(python3-dev\), with"),
        ([], False, r"no C compiler \(gcc\) and no header Python.h \(python3-dev\), with"),
    ],
)
def test_without_build_tools_auto_continues_uncompiled_and_true_raises(
    machine, programs, headers, missing
):
    machine(programs, headers)
    with pytest.warns(UserWarning, match=missing + ".*continues uncompiled.*gcc python3-dev"):
        assert not is_compiled(TrainingConfig(), CUDA)
    with pytest.raises(ValueError, match=missing + ".*or set training.compile to false"):
        is_compiled(TrainingConfig(compile=True), CUDA)


def test_a_compiler_named_in_the_environment_counts(machine, monkeypatch):
    machine(["/opt/cc"])
    monkeypatch.setenv("CC", "/opt/cc")
    assert is_compiled(TrainingConfig(), CUDA)


GRAPHS = {"training__compile": "graphs", "data__n_points": 20}


def test_cuda_graphs_are_replayed_for_steps_of_one_size(machine, make_config, monkeypatch):
    machine(["gcc"])
    monkeypatch.setattr(torch, "compile", lambda model, **options: options)
    cfg = check_config(make_config(**GRAPHS))
    assert compile_model(torch.nn.Identity(), cfg, CUDA) == {"mode": "reduce-overhead"}


@pytest.mark.parametrize(
    "change, device, reason",
    [
        ({}, CPU, "the device is cpu"),
        ({"data__n_points": None}, CUDA, "data.n_points is null"),
        ({"training__accumulate": 2}, CUDA, "training.accumulate is 2"),
        ({"parallel__context": 2}, CUDA, "parallel.context is 2"),
    ],
)
def test_cuda_graphs_are_refused_elsewhere(machine, make_config, change, device, reason):
    machine(["gcc"])
    cfg = check_config(make_config(**{**GRAPHS, **change}))
    with pytest.raises(ValueError, match=f"'graphs', but {reason}.*; set compile to true"):
        compile_model(torch.nn.Identity(), cfg, device)


@pytest.mark.slow
@pytest.mark.parametrize("batch_size, masked", [(1, False), (2, True)])
def test_training_steps_of_all_sizes_run_one_graph(make_config, monkeypatch, batch_size, masked):
    """Forward and backward of four token counts; a break or a second compilation would fail."""
    torch._dynamo.reset()
    counters.clear()
    graphs = CompileCounterWithBackend("aot_eager")
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=graphs, fullgraph=True))
    cfg = check_config(make_config(training__compile=True, data__batch_size=batch_size))
    ranks = start_ranks(cfg)
    run = assemble(cfg, ranks, load_data(cfg, ranks))
    whole = next(iter(run.loaders.train))
    losses, traced = [], []
    for n in (48, 31, 17, 40):
        batch = whole.clone()
        for key in batch.keys() & set(TOKEN_KEYS):
            batch[key] = batch[key][:, :n].clone(memory_format=torch.contiguous_format)
        if masked:
            batch["token_mask"] = torch.arange(n) < torch.tensor([[n], [n - 5]])
        losses.append(run.step([batch]))
        traced.append(graphs.frame_count)  # the first includes an attempt that dynamo discards
    assert torch.stack(losses).isfinite().all()
    assert counters["stats"]["unique_graphs"] == 1 and len(set(traced)) == 1
    assert not counters["graph_break"]
