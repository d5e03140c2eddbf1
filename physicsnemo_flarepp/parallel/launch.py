"""Start-up of one process, torchrun, SLURM and Open MPI jobs, on NCCL or gloo."""

import math
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from physicsnemo.distributed import DistributedManager

_ASYNC_ERRORS = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
# Where PhysicsNeMo finds the device of a rank: torchrun's, srun's and mpirun's variable.
_LOCAL_RANKS = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK")


def initialize(
    timeout: timedelta | float | None = None, device: torch.device | str | None = None
) -> DistributedManager:
    """Start PhysicsNeMo's ``DistributedManager`` for any launcher and any device, and return it.

    Reads the environment of torchrun, ``srun`` or ``mpirun``, or makes a group of one rank when
    there is none, so that the same script runs everywhere. NCCL is used with CUDA, else gloo. A
    rank that sees one GPU (``srun --gpus-per-task=1``) uses it, whatever its local rank. A manager
    that is already running is returned as it is.

    Parameters
    ----------
    timeout : datetime.timedelta or float, optional
        How long a collective may wait for another rank before the job fails; a number means
        seconds. Default: torch's (10 minutes for NCCL, 30 for gloo).
    device : torch.device or str, optional
        "cpu" touches no GPU. The GPU of a process without a launcher, such as "cuda:1"; no other
        one is touched. Ranks of a launcher have theirs by their local rank.

    Examples
    --------
    >>> from physicsnemo_flarepp.parallel import initialize, make_mesh
    >>> manager = initialize()
    >>> mesh = make_mesh(context_size=1)
    >>> manager.world_size, mesh.mesh_dim_names
    (1, ('data', 'context'))
    >>> manager.cleanup()
    """
    duration = _as_duration(timeout)
    # PhysicsNeMo's checkpoint functions start a manager without a process group.
    if DistributedManager.is_initialized() and DistributedManager().distributed:
        return DistributedManager()
    launcher, hook = find_launcher(os.environ), sys.excepthook
    wanted = torch.device(device or "cuda:0")
    with _working_start_up(duration, wanted.type == "cpu"):
        if launcher == "none":
            backend = DistributedManager.get_available_backend()
            alone = {"rank": 0, "world_size": 1, "local_rank": wanted.index or 0}
            DistributedManager.setup(**alone, backend=backend, method="single")
            sys.excepthook = hook  # torch's would begin each line of a traceback with [rank0]
        else:
            DistributedManager.initialize()
    return DistributedManager()


def find_device(name: torch.device | str | None = None) -> torch.device:
    """Return the device of this name; for None and "auto" the GPU if there is one.

    Raises ValueError for one that is not here.
    """
    visible = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name is None or name == "auto":
        return torch.device("cuda" if visible else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device must be auto, cpu, cuda or cuda:<number>, got {str(name)!r}")
    if device.type == "cuda" and (device.index or 0) >= visible:
        raise ValueError(
            f"device is {str(name)!r}, but torch {torch.__version__} finds "
            f"{visible or 'no'} CUDA device{'s' if visible > 1 else ''}; look at nvidia-smi, the "
            "driver and CUDA_VISIBLE_DEVICES, or use 'auto'"
        )
    return device


def find_launcher(environment: Mapping[str, str]) -> str:
    """Name the launcher that set these variables: "env" (torchrun), "slurm", "mpi" or "none"."""
    if "RANK" in environment and "WORLD_SIZE" in environment:
        return "env"
    if "SLURM_PROCID" in environment:
        if "SLURM_LAUNCH_NODE_IPADDR" in environment:
            return "slurm"
        if int(environment.get("SLURM_NPROCS", "1")) > 1:
            raise RuntimeError(
                "SLURM_PROCID is set but SLURM_LAUNCH_NODE_IPADDR is not: a SLURM allocation of "
                "several tasks without srun. Use `srun python ...`, or unset SLURM_PROCID"
            )
    return "mpi" if "OMPI_COMM_WORLD_RANK" in environment else "none"


def _as_duration(timeout: timedelta | float | None) -> timedelta | None:
    duration = timeout
    if isinstance(timeout, int | float) and not isinstance(timeout, bool):
        duration = timedelta(seconds=timeout) if math.isfinite(timeout) else timeout
    if duration is None or isinstance(duration, timedelta) and duration > timedelta(0):
        return duration
    raise ValueError(f"timeout must be a positive number of seconds or timedelta, got {timeout!r}")


@contextmanager
def _working_start_up(timeout: timedelta | None, on_cpu: bool) -> Iterator[None]:
    """Let PhysicsNeMo 2.2 start on CPU and on one GPU per rank, with a timeout that holds.

    ``DistributedManager.setup`` passes ``device_id=cpu`` to torch, which rejects a device without
    an index; without LOCAL_RANK it divides by the number of GPUs, 0. It takes the local rank for
    the index of the GPU even where a rank sees only its own. It also switches NCCL's error handling
    off, so that a collective that never completes would hang past its timeout. It opens a GPU
    wherever there is one, so that `on_cpu` hides them. One rank alone needs no port.
    """
    original, available = dist.init_process_group, torch.cuda.is_available
    async_errors = os.environ.get(_ASYNC_ERRORS)
    visible = 0 if on_cpu else torch.cuda.device_count()

    def init_process_group(backend, rank, world_size, device_id):
        os.environ.pop(_ASYNC_ERRORS, None)
        os.environ.update({} if async_errors is None else {_ASYNC_ERRORS: async_errors})
        if device_id.type == "cuda" and device_id.index >= visible:
            raise RuntimeError(
                f"rank {rank} would use {device_id}, but {visible} GPUs are visible; start at "
                "most one process per GPU (srun --ntasks-per-node, torchrun --nproc-per-node)"
            )
        store = dist.HashStore() if world_size == 1 else None
        device_id = device_id if device_id.type == "cuda" else None
        place = {"rank": rank, "world_size": world_size, "device_id": device_id}
        original(backend, store=store, timeout=timeout, **place)

    if visible == 0 and "RANK" in os.environ:
        os.environ.setdefault("LOCAL_RANK", os.environ["RANK"])
    given = {name: os.environ[name] for name in _LOCAL_RANKS if name in os.environ}
    if visible == 1:
        os.environ.update(dict.fromkeys(given, "0"))
    dist.init_process_group = cast(Any, init_process_group)
    if on_cpu:
        torch.cuda.is_available = lambda: False
    try:
        yield
    finally:
        dist.init_process_group, torch.cuda.is_available = original, available
        os.environ.update(given)
