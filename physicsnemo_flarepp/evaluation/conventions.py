"""Which conventions the forces of a run follow, said by the data set or by the user."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..datapipes.channels import Channels
from ..datapipes.readers.meshes import PolygonMesh
from ..datapipes.specs import (
    FORCE_CONVENTIONS,
    ForceConvention,
    builtin_name,
    force_convention,
)
from ..meshes.silhouettes import frontal_area
from .forces import (
    Forces,
    ForceSettings,
    SurfaceAreas,
    stored_reference_area,
    surface_areas,
    surface_forces,
)
from .trained_run import Run

_OPTIONS = {"pressure": "--pressure-field", "shear_sign": "--shear-sign", "speed": "--speed"}


def force_settings(run: Run, overrides: Mapping[str, object] | None = None) -> ForceSettings:
    """Return the conventions of a run's fields.

    The defaults are DrivAerML's and AhmedML's, told by the names of the fields, and those of the
    built-in cars, which store the wall shear stress along the flow.

    Parameters
    ----------
    run : Run
        The trained model.
    overrides : Mapping[str, object], optional
        Arguments of :class:`ForceSettings` by name that are not left to the data set.

    Raises
    ------
    ValueError
        If the fields are not known and what is needed is not given.
    """
    given = dict(overrides or {})
    fields = run.channels.fields
    convention = run_convention(run)
    settings: dict[str, object] = {}
    if convention is not None and given.get("pressure", convention.pressure) == convention.pressure:
        settings = {
            "pressure": convention.pressure,
            "shear": convention.shear if convention.shear in fields else None,
            "shear_sign": convention.shear_sign,
            "speed": convention.speed,
            "density": convention.density,
        }
    settings |= given
    settings.setdefault("shear", None)
    if settings["shear"] is None:
        settings.setdefault("shear_sign", 1)  # nothing to apply it to
    absent = [name for name in ("pressure", "shear_sign", "speed") if name not in settings]
    if absent:
        options = ", ".join(_OPTIONS[name] for name in absent)
        raise ValueError(
            f"the fields {', '.join(fields)} of run {run.name} follow no convention known here "
            f"({', '.join(FORCE_CONVENTIONS)}); give {options} to integrate forces, or --no-forces"
        )
    for name, width in (("pressure", 1), ("shear", 3)):
        field = settings[name]
        if field is not None and fields.get(field) != width:
            raise ValueError(
                f"{name} is {field!r}, expected a field of {width} channels; run {run.name} "
                f"predicts {dict(fields)}"
            )
    return ForceSettings(**settings)


def run_convention(run: Run) -> ForceConvention | None:
    """Return the convention stored with the run; that of its data if none was stored."""
    if run.training_set is not None:
        stored = run.training_set["forces"]
        return None if stored is None else ForceConvention(**stored)
    return force_convention(run.channels.fields, _builtin(run))


def trained_on_builtin_cars(run: Run) -> bool:
    """Return whether the run's data is the built-in set, named or as a directory."""
    return _builtin(run) == "cars"


def _builtin(run: Run) -> str | None:
    if run.training_set is not None:
        return run.training_set["builtin"]
    return builtin_name(run.config.data.get("root"), run.config.data.get("builtin"))


def describe_settings(settings: ForceSettings) -> str:
    """Return the conventions in one line, for reports."""
    if settings.shear is None:
        shear = "no wall shear stress: pressure forces only"
    else:
        direction = "along the flow" if settings.shear_sign == 1 else "OpenFOAM's, against the flow"
        shear = f"{settings.shear} with sign {settings.shear_sign:+d} ({direction})"
    return (
        f"forces from {settings.pressure} and {shear}; speed {settings.speed:g}, density "
        f"{settings.density:g}"
    )


@dataclass(frozen=True)
class ForceSurface:
    """A surface ready for integration.

    Parameters
    ----------
    areas : SurfaceAreas
        Outward area vectors of its cells or points.
    reference_area : float
        What coefficients are divided by.
    area_source : str
        Where the reference area comes from.
    """

    areas: SurfaceAreas
    reference_area: float
    area_source: str


def force_surface(mesh: PolygonMesh, association: str, settings: ForceSettings) -> ForceSurface:
    """Return outward area vectors and the reference area of a surface.

    Parameters
    ----------
    mesh : PolygonMesh
        The whole surface; its ``source`` is where ``geo_ref_*.csv`` is looked for.
    association : str
        Whether values are at its ``cell`` or ``point``.
    settings : ForceSettings
        Conventions.
    """
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
    """Integrate the fields of a run, (N, O) in the order of its channels."""
    pressure = values[:, channels.columns(settings.pressure)][:, 0]
    shear = None if settings.shear is None else values[:, channels.columns(settings.shear)]
    return surface_forces(surface.areas, pressure, shear, settings, surface.reference_area)
