"""Force coefficients integrated from pressure and wall shear stress over a whole surface.

With outward area vectors A of the cells and the dynamic pressure q = density * speed^2 / 2 the
force coefficients are

    C = sum(-p A + shear_sign * tau |A|) / (q * reference_area)

projected on the drag, side and lift directions. Fields at points are integrated with each point's
share of the cells around it, which is exact for values that are linear on each triangle.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..datapipes.channels import Channels
from ..datapipes.readers.case_files import reference_values_beside
from ..datapipes.readers.splits import MANIFEST
from ..datapipes.specs import ForceConvention, builtin_name, force_convention
from ..files import reading
from ..meshes import ASSOCIATIONS, PolygonMesh
from ..meshes.measures import clashing_edges, facing, frontal_area, stored_measure
from ..meshes.polygons import vertex_area_vectors
from ..runs.trained_run import Run

COEFFICIENTS = ("Cd", "Cs", "Cl")
ORIENTATIONS = ("auto", "outward", "inward")
_OPTIONS = {"pressure": "--pressure-field", "shear_sign": "--shear-sign", "speed": "--speed"}
# A closed surface has area vectors that sum to 0; stored single precision leaves about 1e-6.
_CLOSED = 1e-4


@dataclass(frozen=True)
class ForceSettings:
    """Conventions of a data set that forces depend on.

    The field `pressure` is kinematic (p / density) with ``density=1``, in Pa with the density of
    the fluid, or a coefficient with ``speed=2**0.5`` and ``density=1``. The sign of the wall shear
    stress is +1 if it is stored as the force of the fluid on the body, along the flow (the built-in
    cars), -1 for OpenFOAM's ``wallShearStress``, against the flow (DrivAerML, AhmedML).
    """

    pressure: str
    shear: str | None  #: field with the wall shear stress in the same units; None: pressure only
    shear_sign: int
    speed: float  #: of the free stream
    density: float = 1.0
    reference_area: float | None = None  #: None: ``aRef`` of ``geo_ref_*.csv``, else frontal area
    drag_axis: tuple[float, float, float] = (1.0, 0.0, 0.0)
    lift_axis: tuple[float, float, float] = (0.0, 0.0, 1.0)  #: side force: along lift x drag
    orientation: str = "auto"  #: where stored cells face; ``auto`` asks the enclosed volume

    def __post_init__(self) -> None:
        if self.shear_sign not in (1, -1):
            raise ValueError(f"shear_sign is {self.shear_sign!r}, expected 1 or -1")
        for name in ("speed", "density", "reference_area"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} is {value}, expected a positive number")
        _check_choice("orientation", self.orientation, ORIENTATIONS)
        drag, lift = np.array(self.drag_axis), np.array(self.lift_axis)
        lengths = np.linalg.norm(drag) * np.linalg.norm(lift)
        if lengths == 0 or abs(drag @ lift) > 1e-6 * lengths:
            raise ValueError(f"drag and lift axis {drag}, {lift} must be orthogonal and not zero")

    @property
    def dynamic_pressure(self) -> float:
        """Half density times speed squared."""
        return 0.5 * self.density * self.speed**2

    @property
    def axes(self) -> np.ndarray:
        """Unit vectors of drag, side force and lift as rows, (3, 3)."""
        drag, lift = (np.array(a) / np.linalg.norm(a) for a in (self.drag_axis, self.lift_axis))
        return np.stack([drag, np.cross(lift, drag), lift])

    def __str__(self) -> str:
        if self.shear is None:
            shear = "no wall shear stress: pressure forces only"
        else:
            way = "along the flow" if self.shear_sign == 1 else "OpenFOAM's, against the flow"
            shear = f"{self.shear} with sign {self.shear_sign:+d} ({way})"
        return (
            f"forces from {self.pressure} and {shear}; speed {self.speed:g}, density "
            f"{self.density:g}"
        )

    def sign_doubt(self, friction_drag: float) -> str | None:
        """Return a warning if the friction drag of stored fields is negative, else None."""
        if friction_drag >= 0:
            return None
        return (
            f"with sign {self.shear_sign:+d} the stored {self.shear} pulls the body upstream; it "
            f"seems to have the opposite sign: give --shear-sign {-self.shear_sign}"
        )


def _check_choice(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{name} is {value!r}, expected one of {known}")


def force_settings(run: Run, overrides: Mapping[str, object] | None = None) -> ForceSettings:
    """Return the conventions of a run's predictions, which follow its training data.

    DrivAerML and AhmedML are recognised by the names of their fields. `overrides` are arguments of
    :class:`ForceSettings` that replace the data set's.
    """
    data = run.config.data
    if run.training_set is None:
        name = builtin_name(data.get("root"), data.get("builtin"))
        return _settings(run, force_convention(run.channels.fields, name), overrides)
    stored = run.training_set["forces"]
    return _settings(run, None if stored is None else ForceConvention(**stored), overrides)


def target_settings(
    run: Run, overrides: Mapping[str, object] | None = None, *, surface: Path | None = None
) -> ForceSettings:
    """Return the conventions of the fields that predictions are compared with.

    They are in the file `surface`, by default in the run's test cases. Data other than the training
    data may declare its own conventions: by the entry ``forces`` of its ``manifest.json``, by its
    stamp, or by the names of its fields. `overrides` are as in :func:`force_settings`.
    """
    if surface is None:
        roots = [] if run.data_root is None or run.moved else [run.data_root]
    else:
        roots = list(surface.absolute().parents)[:2]
    fields = run.channels.fields
    found = [_declared(root) for root in roots]
    stamps = [name for root in roots if (name := builtin_name(root, None)) is not None]
    found += [force_convention(fields, name) for name in stamps]
    if surface is None and roots:
        found.append(force_convention(fields))
    convention = next((known for known in found if known is not None), None)
    if convention is None:
        return force_settings(run, overrides)
    return _settings(run, convention, overrides)


def _declared(root: Path) -> ForceConvention | None:
    path = root / MANIFEST
    if not path.is_file():
        return None
    with reading(path):
        content = json.loads(path.read_text())
        stored = content.get("forces") if isinstance(content, Mapping) else None
        return None if stored is None else ForceConvention(**stored)


def _settings(
    run: Run, convention: ForceConvention | None, overrides: Mapping[str, object] | None
) -> ForceSettings:
    given, fields = dict(overrides or {}), run.channels.fields
    settings: dict[str, object] = {"shear": None}
    if convention is not None and given.get("pressure", convention.pressure) == convention.pressure:
        names = ("pressure", "shear", "shear_sign", "speed", "density")
        settings = {name: getattr(convention, name) for name in names}
        if convention.shear not in fields:
            settings["shear"] = None
    settings |= given
    if settings["shear"] is None:
        settings.setdefault("shear_sign", 1)  # nothing to apply it to
    if absent := [option for name, option in _OPTIONS.items() if name not in settings]:
        raise ValueError(
            f"the fields {', '.join(fields)} of run {run.name} follow no known convention; give "
            f"{', '.join(absent)} to integrate forces, or --no-forces"
        )
    for name, width in (("pressure", 1), ("shear", 3)):
        field = settings[name]
        if field is not None and fields.get(field) != width:
            raise ValueError(
                f"{name} is {field!r}, expected a field of {width} channels; run {run.name} "
                f"predicts {dict(fields)}"
            )
    return ForceSettings(**settings)


@dataclass(frozen=True)
class SurfaceAreas:
    """Outward area vectors (N, 3) and areas (N,) of cells or points; why forces are doubtful."""

    vectors: np.ndarray
    areas: np.ndarray
    warnings: tuple[str, ...]
    reference_area: float | None = None  #: what coefficients refer to
    area_source: str = ""  #: where that comes from


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
        return dict(zip(COEFFICIENTS, self.total.tolist(), strict=True))


def surface_areas(mesh: PolygonMesh, association: str, orientation: str = "auto") -> SurfaceAreas:
    """Return the outward area vectors of the cells or points of a whole surface.

    `association` is ``cell`` or ``point``, `orientation` the way that stored cells face:
    ``outward``, ``inward``, or ``auto``, which is outward if the enclosed volume is positive.
    """
    _check_choice("orientation", orientation, ORIENTATIONS)
    _check_choice("association", association, ASSOCIATIONS)
    centres, vectors = mesh.cell_geometry()
    areas = np.linalg.norm(vectors, axis=1)
    total = areas.sum()
    if not total > 0:
        raise ValueError(f"{mesh.source} has no area: all {len(areas)} cells are degenerate")
    warnings = []
    opening = np.linalg.norm(vectors.sum(axis=0)) / total
    if opening > _CLOSED:
        warnings.append(
            f"{mesh.source} is open: its area vectors sum to {opening:.2%} of its area, so "
            "coefficients depend on the reference pressure; close the surface to compare them"
        )
    if clashes := clashing_edges(mesh):
        warnings.append(
            f"{mesh.source}: at {clashes} edges neighbouring cells face opposite sides, or more "
            "than two cells meet. Orient them: compute_normals(consistent_normals=True) of pyvista"
        )
    if orientation == "auto":
        orientation = facing(centres, vectors)
        if orientation is None:
            raise ValueError(
                f"{mesh.source} encloses no volume, so its outside is unknown; give --orientation "
                "(orientation='outward' or 'inward')"
            )
    vectors = vectors if orientation == "outward" else -vectors
    if (noted := stored_measure(mesh, "cell")) is not None:  # of drawn cells
        vectors = vectors * (noted / np.maximum(areas, np.finfo(float).tiny))[:, None]
        areas = noted
    if association == "point":
        topology = len(mesh.points), mesh.connectivity, mesh.offsets
        vectors, areas = vertex_area_vectors(*topology, vectors)
    return SurfaceAreas(vectors, areas, tuple(warnings))


def surface_forces(
    surface: SurfaceAreas,
    pressure: np.ndarray,
    shear: np.ndarray | None,
    settings: ForceSettings,
    reference_area: float,
) -> Forces:
    """Return the force coefficients of pressure (N,) and shear (N, 3) or None over a surface.

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
            raise ValueError(f"{name} has shape {values.shape}, expected {shape}: a row per token")
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
    (:func:`~physicsnemo_flarepp.meshes.geometry.frontal_area`), sums over the whole surface are the
    coefficients.

    Parameters
    ----------
    vectors, areas : torch.Tensor
        Outward area vectors and areas, as
        :func:`~physicsnemo_flarepp.meshes.geometry.surface_tensors` returns them.
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


def force_surface(mesh: PolygonMesh, association: str, settings: ForceSettings) -> SurfaceAreas:
    """Return a surface with its reference area: given, ``aRef`` beside its source, or frontal."""
    areas = surface_areas(mesh, association, settings.orientation)
    area, source = settings.reference_area, "given"
    if area is None:
        area, source = reference_values_beside(mesh.source).get("aRef"), "aRef of geo_ref_*.csv"
    if area is None:
        area = frontal_area(mesh, np.array(settings.drag_axis))
        source = "frontal area of the silhouette"
    if not area > 0:
        raise ValueError(f"{mesh.source} has no frontal area along {settings.drag_axis}; give one")
    return replace(areas, reference_area=area, area_source=source)


def field_forces(
    surface: SurfaceAreas, values: np.ndarray, channels: Channels, settings: ForceSettings
) -> Forces:
    """Return the forces of the fields of a run, (N, O) in the order of its channels."""
    pressure = values[:, channels.columns(settings.pressure)][:, 0]
    shear = None if settings.shear is None else values[:, channels.columns(settings.shear)]
    return surface_forces(surface, pressure, shear, settings, surface.reference_area)
