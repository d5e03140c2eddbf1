"""Unified positions: distances of grid points to a coarse reference grid."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor


def unified_positions(shape: Sequence[int], ref: int) -> Float[Tensor, "N R"]:
    r"""Distances of every point of a unit grid to the points of a :math:`\mathrm{ref}^d` grid.

    Agrees with PhysicsNeMo's ``unified_pos`` in 2-D and extends it to 3-D.

    Parameters
    ----------
    shape : sequence of int
        Points along each of the d axes.
    ref : int
        Reference points along each axis.

    Returns
    -------
    torch.Tensor
        Shape :math:`(N, \mathrm{ref}^d)`, points in row-major order.

    Examples
    --------
    >>> unified_positions((2, 1), 1).tolist()
    [[0.0], [1.0]]
    """
    return torch.cdist(_unit_grid(shape), _unit_grid([ref] * len(shape))).float()


def _unit_grid(shape: Sequence[int]) -> Tensor:
    axes = [torch.linspace(0, 1, n, dtype=torch.float64) for n in shape]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).flatten(0, -2)
