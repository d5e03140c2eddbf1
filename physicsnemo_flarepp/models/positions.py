"""Unified positions: distances of grid points to a coarse reference grid."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from .checks import check_integers

_DEFAULT_REF = 8


def grid_positions(
    shape: Sequence[int] | None, unified_pos: bool, ref: int, embedding_dim: int | None
) -> Float[Tensor, "N E"] | None:
    """Return the positions that a model asks for, None for none; raise on what contradicts it."""
    check_integers(1, {"ref": ref})
    if shape is not None and (
        len(shape) not in (2, 3) or any(int(size) != size or size <= 0 for size in shape)
    ):
        raise ValueError(f"structured_shape must be 2 or 3 positive integers, got {tuple(shape)}")
    if not unified_pos:
        if ref != _DEFAULT_REF:
            raise ValueError(f"ref={ref} has no effect without unified_pos=True; leave it out")
        return None
    if shape is None:
        raise ValueError(
            "unified_pos=True needs structured_shape, got None; "
            "pass the grid's shape, or embedding_dim and an embedding"
        )
    width = ref ** len(shape)
    if embedding_dim not in (None, width):
        raise ValueError(
            f"embedding_dim={embedding_dim} has no effect with unified_pos=True, where the "
            f"embedding is made from the grid with ref**{len(shape)} = {width} channels; leave it "
            "out"
        )
    return unified_positions(shape, ref)


def unified_positions(shape: Sequence[int], ref: int) -> Float[Tensor, "N R"]:
    r"""Distances of every point of a unit grid to the points of a :math:`\mathrm{ref}^d` grid.

    Agrees with PhysicsNeMo's ``unified_pos`` in 2-D and extends it to 3-D. Shape
    :math:`(N, \mathrm{ref}^d)`, points in row-major order.
    """
    return torch.cdist(_unit_grid(shape), _unit_grid([ref] * len(shape))).float()


def _unit_grid(shape: Sequence[int]) -> Tensor:
    axes = [torch.linspace(0, 1, n, dtype=torch.float64) for n in shape]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).flatten(0, -2)
