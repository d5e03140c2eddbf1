"""Free-form deformation by a lattice of control points, of which some may move."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float
from physicsnemo.nn.functional.geometry.deform import free_form_deform_points
from torch import Tensor

# Beyond the body on every side, so that rounding leaves no vertex outside the box.
_MARGIN = 0.01
# A box whose middle is further from that of the body, in widths, is not symmetric about it.
_ASYMMETRY = 0.01
PLANES = tuple(f"{axis}{end}" for axis in "xyz" for end in ("min", "max"))


@dataclass(frozen=True)
class Lattice:
    """Control points of a box, and the components of their displacements that are variables.

    Bernstein polynomials make a smooth deformation of them, in which no vertex moves further along
    an axis than the control points do. A `mirrored` lattice moves its halves with y alike.
    """

    origin: Float[Tensor, " 3"]
    extent: Float[Tensor, " 3"]
    free: Bool[Tensor, "nx ny nz 3"]
    mirrored: bool

    @property
    def positions(self) -> Float[Tensor, "nx ny nz 3"]:
        """Where the control points are."""
        axes = [torch.linspace(0, 1, n, dtype=torch.float64) for n in self.free.shape[:3]]
        unit = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1)
        return self.origin + unit * self.extent

    def displacements(self, variables: Float[Tensor, " n"]) -> Float[Tensor, "nx ny nz 3"]:
        """Return the displacement of every control point."""
        moved = torch.zeros(self.free.shape, dtype=torch.float64)
        moved = moved.masked_scatter(self.free, variables)
        if not self.mirrored:
            return moved
        images = moved.flip(1) * moved.new_tensor([1, -1, 1])
        first = (torch.arange(moved.shape[1]) < (moved.shape[1] + 1) // 2)[:, None, None]
        return torch.where(first, moved, images)

    def deform(
        self, points: Float[Tensor, "P 3"], displacements: Float[Tensor, "nx ny nz 3"]
    ) -> Float[Tensor, "P 3"]:
        """Return the vertices after control points moved; those outside the box stay."""
        box = {"origin": self.origin, "extent": self.extent}
        return free_form_deform_points(points, displacements, **box)

    def pull_back(
        self, points: Float[Tensor, "P 3"], gradient: Float[Tensor, "P 3"]
    ) -> Float[Tensor, "nx ny nz 3"]:
        """Return derivatives by the control points from those by the vertices."""
        control = torch.zeros(self.free.shape, dtype=torch.float64, requires_grad=True)
        return torch.autograd.grad(self.deform(points, control), control, gradient)[0]

    def smallest_stretch(
        self, points: Float[Tensor, "P 3"], displacements: Float[Tensor, "nx ny nz 3"]
    ) -> float:
        """Return the least factor on volumes at the vertices; not positive where space folds."""
        columns = []
        for axis in range(3):
            step = torch.zeros(3, dtype=torch.float64)
            step[axis] = 1e-5 * self.extent[axis]
            ends = [self.deform(points + sign * step, displacements) for sign in (1, -1)]
            columns.append((ends[0] - ends[1]) / (2 * step[axis]))
        return float(torch.linalg.det(torch.stack(columns, -1)).min())


def make_lattice(
    points: Float[np.ndarray, "P 3"],
    shape: Sequence[int] = (5, 3, 3),
    *,
    box: Sequence[float] | None = None,
    frozen: Sequence[str] = (),
    axes: str = "xyz",
    symmetric: bool = True,
) -> Lattice:
    """Return a lattice of `shape` control points around vertices, or in a box.

    Parameters
    ----------
    points : numpy.ndarray
        Vertices of the body.
    shape : sequence of int
        Control points along x, y and z.
    box : sequence of float, optional
        (x0, x1, y0, y1, z0, z1); default: around the body. Planes of control points that cut
        through the body are frozen, so that it stays in one piece.
    frozen : sequence of str
        Planes of control points that stay, such as ``xmin`` and ``zmax``.
    axes : str
        Directions that control points may move in.
    symmetric : bool
        Keep the halves of the body with y alike.

    Examples
    --------
    >>> corners = np.array([[0.0, -1, 0], [4, 1, 1]])
    >>> lattice = make_lattice(corners, (3, 3, 2), frozen=["zmin"])
    >>> tuple(lattice.free.shape), int(lattice.free.sum())
    ((3, 3, 2, 3), 15)
    """
    if len(shape) != 3 or min(shape) < 2:
        raise ValueError(f"the lattice has {tuple(shape)} control points; give 2 or more a side")
    if unknown := [name for name in frozen if name not in PLANES]:
        raise ValueError(f"frozen plane {unknown[0]!r} is not one of {', '.join(PLANES)}")
    if not axes or set(axes) - set("xyz"):
        raise ValueError(f"axes is {axes!r}, expected some of x, y, z, such as xz")
    low, high = (np.asarray(end(points, axis=0), dtype=float) for end in (np.min, np.max))
    frozen = set(frozen)
    if box is None:
        margin = _MARGIN * (high - low).max()
        bounds = np.stack([low - margin, high + margin], 1)
    else:
        bounds = np.asarray(box, dtype=float).reshape(3, 2)
        if not (bounds[:, 0] < bounds[:, 1]).all():
            raise ValueError(f"the lattice box is {tuple(box)}, expected x0 < x1, y0 < y1, z0 < z1")
        cuts = np.stack([bounds[:, 0] > low, bounds[:, 1] < high], 1).ravel()
        frozen |= {name for name, cut in zip(PLANES, cuts, strict=True) if cut}
    middle = abs(bounds[1].mean() - (low[1] + high[1]) / 2)
    if symmetric and middle > _ASYMMETRY * (high[1] - low[1]):
        raise ValueError(
            f"the lattice box from y {bounds[1, 0]:g} to {bounds[1, 1]:g} is not symmetric about "
            "the body; give another box, or --asymmetric"
        )
    free = torch.zeros(*shape, 3, dtype=torch.bool)
    for axis in axes:
        free[..., "xyz".index(axis)] = True
    for name in frozen:
        free.select("xyz".index(name[0]), 0 if name.endswith("min") else -1).fill_(False)
    if symmetric:
        half = (shape[1] + 1) // 2
        free[:, half:] = False
        if shape[1] % 2:  # the plane of symmetry keeps its y
            free[:, half - 1, :, 1] = False
    if not free.any():
        raise ValueError(f"no control point of {tuple(shape)} may move; freeze fewer planes")
    origin, extent = torch.as_tensor(bounds[:, 0]), torch.as_tensor(bounds[:, 1] - bounds[:, 0])
    return Lattice(origin, extent, free, symmetric)
