"""The two-dimensional mesh of ranks: samples over "data", tokens over "context"."""

from physicsnemo.distributed import DistributedManager
from torch.distributed import DeviceMesh

AXES = ("data", "context")


def make_mesh(context_size: int) -> DeviceMesh:
    """Arrange all ranks as (data, context), consecutive ranks sharing one token sequence.

    Neighbouring ranks usually sit in one node, where links are fastest, and the context axis
    communicates in every layer while the data axis does so once per step.

    Parameters
    ----------
    context_size : int
        Ranks R that share the tokens of a sample. Must divide the number of ranks.

    Returns
    -------
    torch.distributed.DeviceMesh
        Of shape (world / R, R) with axes "data" and "context"; ``mesh["context"].get_group()`` is
        what :func:`~physicsnemo_flarepp.parallel.enable_context_parallel` takes.
    """
    world = DistributedManager().world_size
    if context_size < 1 or world % context_size:
        divisors = [size for size in range(1, world + 1) if world % size == 0]
        raise ValueError(
            f"context_size must divide the number of ranks, got context_size={context_size} with "
            f"{world} ranks; choose one of {divisors}"
        )
    return DistributedManager().initialize_mesh((world // context_size, context_size), AXES)


def flatten_mesh(mesh: DeviceMesh) -> DeviceMesh:
    """Join the "data" and "context" axes into one, as FSDP2 and the gradient sum need them.

    Parameters
    ----------
    mesh : torch.distributed.DeviceMesh
        With axes "data" and "context", from :func:`make_mesh` or part of a larger mesh.

    Returns
    -------
    torch.distributed.DeviceMesh
        One-dimensional, over the same ranks.
    """
    check_axes(mesh)
    return mesh[AXES]._flatten("data_context")


def check_axes(mesh: DeviceMesh) -> None:
    """Raise unless the mesh has the axes "data" and "context"."""
    names = mesh.mesh_dim_names or ()
    if not set(AXES) <= set(names):
        raise ValueError(
            f'mesh must have the axes "data" and "context", got {names}; see make_mesh'
        )
