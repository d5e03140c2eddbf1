"""Start-up without a launcher, and how the launchers are told apart."""

import os
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from omegaconf import OmegaConf
from physicsnemo.distributed import DistributedManager

from physicsnemo_flarepp.parallel import initialize, make_mesh, shard_bounds
from physicsnemo_flarepp.parallel.launch import find_device, find_launcher
from physicsnemo_flarepp.training.config import check_config
from physicsnemo_flarepp.training.run import start_ranks


@pytest.fixture
def single_process():
    """A manager of one rank, ended after the test."""
    original = dist.init_process_group
    manager = initialize()
    assert dist.init_process_group is original
    yield manager
    DistributedManager.cleanup()


def test_one_process_without_a_launcher_is_a_group_of_one(single_process):
    mesh = make_mesh(1)
    assert (single_process.rank, single_process.world_size) == (0, 1)
    assert mesh.shape == (1, 1)
    assert shard_bounds(7, mesh["context"].get_group()) == (0, 7)
    assert initialize() is not None, "a second call returns the running manager"


def test_manager_that_physicsnemo_started_without_a_group_gets_one():
    with pytest.warns(UserWarning, match="single process job"):
        DistributedManager.initialize()
    assert not DistributedManager().distributed
    initialize()
    try:
        assert make_mesh(1).size() == 1
    finally:
        DistributedManager.cleanup()


@pytest.mark.parametrize(
    ("environment", "launcher"),
    [
        ({}, "none"),
        ({"RANK": "1", "WORLD_SIZE": "2"}, "env"),
        ({"SLURM_PROCID": "1", "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1"}, "slurm"),
        ({"SLURM_PROCID": "0", "SLURM_NPROCS": "1"}, "none"),
        ({"OMPI_COMM_WORLD_RANK": "1"}, "mpi"),
    ],
)
def test_launchers_are_told_apart_by_their_variables(environment, launcher):
    assert find_launcher(environment) == launcher


def test_slurm_allocation_without_srun_says_what_to_do():
    with pytest.raises(RuntimeError, match="srun python"):
        find_launcher({"SLURM_PROCID": "0", "SLURM_NPROCS": "8"})


def test_slurm_variables_start_a_manager(monkeypatch):
    values = {"PROCID": "0", "NPROCS": "1", "LOCALID": "0", "LAUNCH_NODE_IPADDR": "127.0.0.1"}
    for name, value in values.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    manager = initialize()
    try:
        assert str(manager).startswith("Initialized process 0 of 1 using method 'slurm'")
        assert os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "1", "PhysicsNeMo sets it to 0"
        assert dist.get_backend() == ("nccl" if torch.cuda.is_available() else "gloo")
    finally:
        DistributedManager.cleanup()


@pytest.mark.parametrize("timeout", [5, 2.5, timedelta(seconds=7)])
def test_timeout_is_a_duration_or_a_number_of_seconds(timeout):
    initialize(timeout=timeout)
    try:
        group = dist.distributed_c10d._get_default_group()
        device = "cuda" if torch.cuda.is_available() else "cpu"
        found = group._get_backend(torch.device(device)).options._timeout
        assert found == (timeout if isinstance(timeout, timedelta) else timedelta(seconds=timeout))
    finally:
        DistributedManager.cleanup()


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan"), float("inf"), True, "5", timedelta(0)])
def test_bad_timeouts_are_named_before_anything_starts(timeout):
    with pytest.raises(ValueError, match="timeout must be a positive number of seconds"):
        initialize(timeout=timeout)
    assert not dist.is_initialized()


@pytest.fixture
def fake_gpus(monkeypatch):
    """A machine with GPUs, emulated: what would touch one is noted, and no group is started."""
    touched = []

    def make(visible):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
        monkeypatch.setattr(torch.cuda, "set_device", lambda device: touched.append(str(device)))
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)

        def group(backend, device_id, **_):
            touched.append(str(device_id))

        monkeypatch.setattr(dist, "init_process_group", group)
        return touched

    yield make
    DistributedManager._shared_state = {}


SLURM = {"PROCID": "3", "NPROCS": "4", "LOCALID": "3", "LAUNCH_NODE_IPADDR": "127.0.0.1"}
TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "3", "MASTER_ADDR": "a"}


@pytest.mark.parametrize(("visible", "device"), [(1, "cuda:0"), (4, "cuda:3")])
@pytest.mark.parametrize("launcher", ["slurm", "torchrun"])
def test_a_rank_uses_the_gpu_that_it_sees(monkeypatch, fake_gpus, launcher, visible, device):
    variables = {f"SLURM_{k}": v for k, v in SLURM.items()} if launcher == "slurm" else TORCHRUN
    for name, value in {"MASTER_PORT": "29500", **variables}.items():
        monkeypatch.setenv(name, value)
    touched = fake_gpus(visible)
    assert str(initialize().device) == device
    assert set(touched) == {device}
    assert all(os.environ[name] == value for name, value in variables.items())


def test_more_ranks_than_gpus_are_refused(monkeypatch, fake_gpus):
    for name, value in {"MASTER_PORT": "29500", **TORCHRUN}.items():
        monkeypatch.setenv(name, value)
    fake_gpus(2)
    with pytest.raises(RuntimeError, match="rank 3 would use cuda:3, but 2 GPUs are visible"):
        initialize()


def test_a_run_on_the_second_gpu_touches_no_other(monkeypatch, fake_gpus):
    monkeypatch.setattr("physicsnemo_flarepp.training.run.make_mesh", lambda size: None)
    touched = fake_gpus(2)
    cfg = {"model": {}, "data": {"builtin": "darcy"}, "run_dir": "out", "device": "cuda:1"}
    assert str(start_ranks(check_config(OmegaConf.create(cfg))).device) == "cuda:1"
    assert set(touched) == {"cuda:1"}


@pytest.mark.parametrize("variables", [{}, {**TORCHRUN, "MASTER_PORT": "29500"}])
def test_a_run_on_the_cpu_touches_no_gpu(monkeypatch, fake_gpus, variables):
    monkeypatch.setattr("physicsnemo_flarepp.training.run.make_mesh", lambda size: None)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    touched = fake_gpus(2)
    cfg = {"model": {}, "data": {"builtin": "darcy"}, "run_dir": "out", "device": "cpu"}
    assert str(start_ranks(check_config(OmegaConf.create(cfg))).device) == "cpu"
    assert set(touched) == {"None"}, "the group has no device, and none is set"
    assert not DistributedManager().cuda
    assert torch.cuda.is_available(), "they are hidden during the start-up only"


def test_devices_are_found_by_name(fake_gpus):
    assert str(find_device()) == "cpu"
    fake_gpus(2)
    assert [str(find_device(name)) for name in ("auto", "cuda:1", "cpu")] == [
        "cuda",
        "cuda:1",
        "cpu",
    ]
    with pytest.raises(ValueError, match="'cuda:2', but torch .* finds 2 CUDA devices"):
        find_device("cuda:2")
    with pytest.raises(ValueError, match="got 'gpu'"):
        find_device("gpu")
