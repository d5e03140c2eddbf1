"""Start-up without a launcher, and how the launchers are told apart."""

import os
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from physicsnemo.distributed import DistributedManager

from physicsnemo_flarepp.parallel import initialize, make_mesh, shard_bounds
from physicsnemo_flarepp.parallel.launch import find_launcher


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
