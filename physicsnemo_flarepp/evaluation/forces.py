"""Force coefficients integrated from pressure and wall shear stress over a whole surface.

With outward area vectors A of the cells and the dynamic pressure q = density * speed^2 / 2 the
force coefficients are

    C = sum(-p A + shear_sign * tau |A|) / (q * reference_area)

projected on the drag, side and lift directions. A moment coefficient is that of the arms about a
point crossed with these forces, over a reference length as well. Fields at points are integrated
with each point's share of the cells around it, which is exact for values that are linear on each
triangle.

`shear_sign` says what the stored wall shear stress is: +1 for the force of the fluid on the body,
along the flow (the built-in cars); -1 for OpenFOAM's `wallShearStress`, which points against the
flow (DrivAerML, AhmedML).
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..datapipes.channels import Channels
from ..datapipes.readers.case_files import reference_values_beside
from ..meshes import ASSOCIATIONS, PolygonMesh
from ..meshes.measures import clashing_edges, facing, frontal_area, stored_measure
from ..meshes.polygons import polygon_geometry, vertex_area_vectors
from .force_conventions import ORIENTATIONS, ForceSettings

# A closed surface has area vectors that sum to 0; stored single precision leaves about 1e-6.
_CLOSED = 1e-4


@dataclass(frozen=True)
class SurfaceAreas:
    """Outward area vectors (N, 3) and areas (N,) of cells or points; why forces are doubtful."""

    vectors: np.ndarray
    areas: np.ndarray
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Forces:
    """Force coefficients (3,) along drag, side and lift; `shear` is None without such a field."""

    pressure: np.ndarray
    shear: np.ndarray | None

    @property
    def total(self) -> np.ndarray:
        """Drag, side and lift coefficient, (3,)."""
        return self.pressure if self.shear is None else self.pressure + self.shear

    @property
    def coefficients(self) -> dict[str, float]:
        """Coefficients by name: Cd, Cs, Cl."""
        return dict(zip(("Cd", "Cs", "Cl"), self.total.tolist(), strict=True))


def surface_areas(mesh: PolygonMesh, association: str, orientation: str = "auto") -> SurfaceAreas:
    """Return the outward area vectors of cells or points.

    Parameters
    ----------
    mesh : PolygonMesh
        The whole surface.
    association : str
        Whether tokens are its ``cell`` or ``point``.
    orientation : str, optional
        Which way the stored cells face: ``outward``, ``inward``, or ``auto``: outward if the
        enclosed volume is positive.
    """
    if orientation not in ORIENTATIONS:
        raise ValueError(f"orientation is {orientation!r}, expected one of {ORIENTATIONS}")
    if association not in ASSOCIATIONS:
        raise ValueError(f"association is {association!r}, expected one of {ASSOCIATIONS}")
    centres, vectors = polygon_geometry(mesh.points, mesh.connectivity, mesh.offsets)
    areas = np.linalg.norm(vectors, axis=1)
    total = areas.sum()
    if not total > 0:
        raise ValueError(f"{mesh.source} has no area: all {len(areas)} cells are degenerate")
    warnings = []
    opening = np.linalg.norm(vectors.sum(axis=0)) / total
    if opening > _CLOSED:
        warnings.append(
            f"{mesh.source} is open: its area vectors sum to {opening:.2%} of its area instead of "
            "0. Coefficients then depend on the reference pressure; close the surface to compare "
            "them"
        )
    clashes = clashing_edges(mesh)
    if clashes:
        warnings.append(
            f"{mesh.source}: {clashes} edges appear twice in the same direction: neighbouring "
            "cells face opposite sides, or more than two cells meet. Orient them, for example with "
            "pyvista's compute_normals(consistent_normals=True)"
        )
    if orientation == "auto":
        found = facing(centres, vectors)
        if found is None:
            raise ValueError(
                f"{mesh.source} encloses no volume, so which side is outside is unknown; give "
                "orientation='outward' or 'inward' (--orientation)"
            )
        orientation = found
    vectors = vectors if orientation == "outward" else -vectors
    if (noted := stored_measure(mesh, "cell")) is not None:  # of drawn cells
        vectors = vectors * (noted / np.maximum(areas, np.finfo(float).tiny))[:, None]
        areas = noted
    if association == "point":
        vectors, areas = vertex_area_vectors(
            len(mesh.points), mesh.connectivity, mesh.offsets, vectors
        )
    return SurfaceAreas(vectors, areas, tuple(warnings))


def surface_forces(
    surface: SurfaceAreas,
    pressure: np.ndarray,
    shear: np.ndarray | None,
    settings: ForceSettings,
    reference_area: float,
) -> Forces:
    """Return the force coefficients of fields over a surface.

    Parameters
    ----------
    surface : SurfaceAreas
        From :func:`surface_areas`.
    pressure : numpy.ndarray
        (N,).
    shear : numpy.ndarray or None
        (N, 3).
    settings : ForceSettings
        Conventions.
    reference_area : float
        See :class:`ForceSettings`.

    Examples
    --------
    >>> plate = SurfaceAreas(np.array([[-2.0, 0.0, 0.0]]), np.array([2.0]), ())
    >>> settings = ForceSettings("p", "tau", shear_sign=-1, speed=2.0)
    >>> forces = surface_forces(plate, np.array([1.0]), np.array([[0, 0, 4.0]]), settings, 2.0)
    >>> forces.coefficients
    {'Cd': 0.5, 'Cs': 0.0, 'Cl': -2.0}
    """
    n = len(surface.areas)
    for name, values, shape in (("pressure", pressure, (n,)), ("shear", shear, (n, 3))):
        if values is not None and values.shape != shape:
            raise ValueError(
                f"{name} has shape {values.shape}, expected {shape}, one row for each of the {n} "
                "cells or points of the whole surface"
            )
    arrays = (surface.vectors, surface.areas, pressure, shear)
    tensors = [None if a is None else torch.from_numpy(a.astype(np.float64)) for a in arrays]
    parts = load_sums(*tensors, settings)
    return Forces(*(None if part is None else part.numpy() / reference_area for part in parts))


def load_sums(
    vectors: Float[Tensor, "*batch N 3"],
    areas: Float[Tensor, "*batch N"],
    pressure: Float[Tensor, "*batch N"],
    shear: Float[Tensor, "*batch N 3"] | None,
    settings: ForceSettings,
    arms: Float[Tensor, "*batch N 3"] | None = None,
) -> tuple[Float[Tensor, "*batch 3"], Float[Tensor, "*batch 3"] | None]:
    """Return the forces of pressure and shear over the dynamic pressure, or their moments.

    Sums over any part of a surface, differentiable by fields and geometry. Divided by a reference
    area, a number or a tensor that is differentiated too
    (:func:`~physicsnemo_flarepp.meshes.geometry.frontal_area`), those of the whole surface are the
    coefficients.

    Parameters
    ----------
    vectors, areas : torch.Tensor
        Outward area vectors and areas, as of
        :func:`~physicsnemo_flarepp.meshes.geometry.surface_tensors`.
    pressure, shear : torch.Tensor
        Fields; shear may be None.
    settings : ForceSettings
        Conventions.
    arms : torch.Tensor, optional
        Positions relative to a reference point: gives moments by the right-hand rule about the
        drag, side and lift axes (roll, pitch, yaw). Divide them by a reference length as well.

    Examples
    --------
    >>> settings = ForceSettings("p", None, shear_sign=1, speed=2.0)
    >>> plate = torch.tensor([[-2.0, 0.0, 0.0]])
    >>> load_sums(plate, torch.tensor([2.0]), torch.tensor([1.0]), None, settings)
    (tensor([1., 0., 0.]), None)
    >>> arms = torch.tensor([[0.0, 0.0, 3.0]])
    >>> load_sums(plate, torch.tensor([2.0]), torch.tensor([1.0]), None, settings, arms)[0]
    tensor([0., 3., 0.])
    """
    if arms is not None:
        vectors = torch.linalg.cross(arms, vectors)
        shear = None if shear is None else torch.linalg.cross(arms, shear)
    axes = torch.as_tensor(settings.axes / settings.dynamic_pressure).to(vectors)

    def project(per_area: Tensor, directed: Tensor) -> Tensor:
        return (per_area.unsqueeze(-2) @ directed).squeeze(-2) @ axes.T

    of_pressure = project(-pressure, vectors)
    return of_pressure, None if shear is None else project(settings.shear_sign * areas, shear)


def stored_reference_area(source: str | Path) -> float | None:
    """Return ``aRef`` of the only ``geo_ref_*.csv`` beside a surface file, None without one."""
    return reference_values_beside(source).get("aRef")


@dataclass(frozen=True)
class ForceSurface:
    """A surface with the area that coefficients refer to, and where that area comes from."""

    areas: SurfaceAreas
    reference_area: float
    area_source: str


def force_surface(mesh: PolygonMesh, association: str, settings: ForceSettings) -> ForceSurface:
    """Return a whole surface, whose ``geo_ref_*.csv`` is looked for beside its ``source``."""
    areas = surface_areas(mesh, association, settings.orientation)
    if settings.reference_area is not None:
        return ForceSurface(areas, settings.reference_area, "given")
    stored = stored_reference_area(mesh.source)
    if stored is not None:
        return ForceSurface(areas, stored, "aRef of geo_ref")
    area = frontal_area(mesh, np.array(settings.drag_axis))
    if not area > 0:
        raise ValueError(
            f"{mesh.source} has no area across the drag axis {settings.drag_axis}; give "
            "reference_area"
        )
    return ForceSurface(areas, area, "frontal area of the silhouette")


def field_forces(
    surface: ForceSurface, values: np.ndarray, channels: Channels, settings: ForceSettings
) -> Forces:
    """Return the forces of the fields of a run, (N, O) in the order of its channels."""
    pressure = values[:, channels.columns(settings.pressure)][:, 0]
    shear = None if settings.shear is None else values[:, channels.columns(settings.shear)]
    return surface_forces(surface.areas, pressure, shear, settings, surface.reference_area)
