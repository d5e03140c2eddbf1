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
    """Start PhysicsNeMo's ``DistributedManager`` for any launcher and any device.

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
        The GPU of a process without a launcher, such as "cuda:1"; no other one is touched. Ranks of
        a launcher have theirs by their local rank.

    Returns
    -------
    physicsnemo.distributed.DistributedManager
        With ``rank``, ``world_size``, ``local_rank`` and ``device`` of this process.

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
    launcher = find_launcher(os.environ)
    hook = sys.excepthook
    with _working_start_up(duration):
        if launcher == "none":
            DistributedManager.setup(
                rank=0,
                world_size=1,
                local_rank=0 if device is None else torch.device(device).index or 0,
                backend=DistributedManager.get_available_backend(),
                method="single",
            )
            sys.excepthook = hook  # torch's would begin each line of a traceback with [rank0]
        else:
            DistributedManager.initialize()
    return DistributedManager()


def find_launcher(environment: Mapping[str, str]) -> str:
    """Name the launcher that set these variables: "env" (torchrun), "slurm", "mpi" or "none"."""
    if "RANK" in environment and "WORLD_SIZE" in environment:
        return "env"
    if "SLURM_PROCID" in environment:
        if "SLURM_LAUNCH_NODE_IPADDR" in environment:
            return "slurm"
        if int(environment.get("SLURM_NPROCS", "1")) > 1:
            raise RuntimeError(
                "SLURM_PROCID is set but SLURM_LAUNCH_NODE_IPADDR is not: this process runs inside "
                "a SLURM allocation of several tasks without srun. Start it with `srun python "
                "...`, or unset SLURM_PROCID to run one process alone"
            )
    return "mpi" if "OMPI_COMM_WORLD_RANK" in environment else "none"


def _as_duration(timeout: timedelta | float | None) -> timedelta | None:
    if timeout is None:
        return None
    duration = timeout
    if isinstance(duration, int | float) and not isinstance(duration, bool):
        duration = timedelta(seconds=duration) if math.isfinite(duration) else duration
    if isinstance(duration, timedelta) and duration > timedelta(0):
        return duration
    raise ValueError(
        f"timeout must be a positive number of seconds or datetime.timedelta, got {timeout!r}; "
        "leave it out for torch's own"
    )


@contextmanager
def _working_start_up(timeout: timedelta | None) -> Iterator[None]:
    """Let PhysicsNeMo 2.2 start on CPU and on one GPU per rank, with a timeout that holds.

    ``DistributedManager.setup`` passes ``device_id=cpu`` to torch, which rejects a device without
    an index; without LOCAL_RANK it divides by the number of GPUs, 0. It takes the local rank for
    the index of the GPU even where a rank sees only its own. It also switches NCCL's error handling
    off, so that a collective that never completes would hang past its timeout. One rank alone
    needs no port.
    """
    original = dist.init_process_group
    async_errors = os.environ.get(_ASYNC_ERRORS)
    visible = torch.cuda.device_count()

    def init_process_group(backend, rank, world_size, device_id):
        _restore(_ASYNC_ERRORS, async_errors)
        if device_id.type == "cuda" and device_id.index >= visible:
            raise RuntimeError(
                f"rank {rank} would use {device_id}, but {visible} GPUs are visible to it; start "
                "at most one process per GPU of a node (srun --ntasks-per-node, torchrun "
                "--nproc-per-node), or name another device"
            )
        single = {"store": dist.HashStore()} if world_size == 1 else {}
        original(
            backend,
            rank=rank,
            world_size=world_size,
            timeout=timeout,
            device_id=device_id if device_id.type == "cuda" else None,
            **single,
        )

    if visible == 0 and "RANK" in os.environ:
        os.environ.setdefault("LOCAL_RANK", os.environ["RANK"])
    given = {name: os.environ[name] for name in _LOCAL_RANKS if name in os.environ}
    if visible == 1:
        os.environ.update(dict.fromkeys(given, "0"))
    dist.init_process_group = cast(Any, init_process_group)
    try:
        yield
    finally:
        dist.init_process_group = original
        os.environ.update(given)


def _restore(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
