"""Which conventions forces follow: the data set's, those stored with the run, or given ones."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..datapipes.readers.splits import MANIFEST
from ..datapipes.specs import (
    FORCE_CONVENTIONS,
    ForceConvention,
    builtin_name,
    force_convention,
)
from ..files import reading
from ..runs.trained_run import Run

ORIENTATIONS = ("auto", "outward", "inward")
_OPTIONS = {"pressure": "--pressure-field", "shear_sign": "--shear-sign", "speed": "--speed"}


@dataclass(frozen=True)
class ForceSettings:
    """Conventions of a data set that forces depend on.

    Parameters
    ----------
    pressure : str
        Field with the pressure: kinematic (p / density) with ``density=1``, in Pa with the
        density of the fluid, or a coefficient with ``speed=2**0.5`` and ``density=1``.
    shear : str or None
        Field with the wall shear stress in the same units, None for pressure forces only.
    shear_sign : int
        +1 if the stored stress is the force on the body, -1 for OpenFOAM's sign.
    speed, density : float
        Of the free stream.
    reference_area : float or None
        None takes ``aRef`` of ``geo_ref_*.csv`` beside the surface, else its frontal area.
    drag_axis, lift_axis : tuple[float, float, float]
        Directions, orthogonal; the side force is along lift x drag.
    orientation : str
        Which way the stored cells face: ``auto`` decides by the enclosed volume.
    """

    pressure: str
    shear: str | None
    shear_sign: int
    speed: float
    density: float = 1.0
    reference_area: float | None = None
    drag_axis: tuple[float, float, float] = (1.0, 0.0, 0.0)
    lift_axis: tuple[float, float, float] = (0.0, 0.0, 1.0)
    orientation: str = "auto"

    def __post_init__(self) -> None:
        if self.shear_sign not in (1, -1):
            raise ValueError(
                f"shear_sign is {self.shear_sign!r}; give 1 if the stored wall shear stress points "
                "along the flow, -1 for OpenFOAM's sign"
            )
        for name in ("speed", "density", "reference_area"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} is {value}, expected a positive number")
        if self.orientation not in ORIENTATIONS:
            raise ValueError(f"orientation is {self.orientation!r}, expected one of {ORIENTATIONS}")
        drag, lift = np.array(self.drag_axis), np.array(self.lift_axis)
        lengths = np.linalg.norm(drag) * np.linalg.norm(lift)
        if lengths == 0 or abs(drag @ lift) > 1e-6 * lengths:
            raise ValueError(
                f"drag_axis {self.drag_axis} and lift_axis {self.lift_axis} must be orthogonal and "
                "not zero"
            )

    @property
    def dynamic_pressure(self) -> float:
        """Half density times speed squared."""
        return 0.5 * self.density * self.speed**2

    @property
    def axes(self) -> np.ndarray:
        """Unit vectors of drag, side force and lift as rows, (3, 3)."""
        drag, lift = (
            np.array(axis) / np.linalg.norm(axis) for axis in (self.drag_axis, self.lift_axis)
        )
        return np.stack([drag, np.cross(lift, drag), lift])


def force_settings(run: Run, overrides: Mapping[str, object] | None = None) -> ForceSettings:
    """Return the conventions of a run's predictions, which follow its training data.

    DrivAerML and AhmedML are recognised by the names of their fields. The built-in cars store the
    wall shear stress along the flow.

    Parameters
    ----------
    run : Run
        The trained model.
    overrides : Mapping[str, object], optional
        Arguments of :class:`ForceSettings` that replace the data set's.

    Raises
    ------
    ValueError
        If the fields are unknown and a value that forces need is not given.
    """
    return _settings(run, run_convention(run), overrides)


def target_settings(
    run: Run, overrides: Mapping[str, object] | None = None, *, surface: Path | None = None
) -> ForceSettings:
    """Return the conventions of the fields that predictions are compared with.

    Other data than the training data may declare its own: by the entry ``forces`` of its
    ``manifest.json``, by its stamp, or by the names of its fields. Otherwise training's apply.

    Parameters
    ----------
    run, overrides
        As in :func:`force_settings`.
    surface : Path, optional
        File with the fields; by default the run's test cases.
    """
    if surface is None:
        roots = [] if run.data_root is None or run.moved else [run.data_root]
    else:
        roots = list(surface.absolute().parents)[:2]
    fields = run.channels.fields
    found = [_declared(root) for root in roots]
    found += [
        force_convention(fields, name)
        for root in roots
        if (name := builtin_name(root, None)) is not None
    ]
    if surface is None and roots:
        found.append(force_convention(fields))
    convention = next((known for known in found if known is not None), None)
    if convention is None:
        return force_settings(run, overrides)
    return _settings(run, convention, overrides)


def _declared(root: Path) -> ForceConvention | None:
    """Return the convention in the manifest of a directory, None without one."""
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
    given = dict(overrides or {})
    fields = run.channels.fields
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
            f"the fields {', '.join(fields)} of run {run.name} follow no known convention "
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
    """Return the convention stored with the run, else its data's."""
    if run.training_set is not None:
        stored = run.training_set["forces"]
        return None if stored is None else ForceConvention(**stored)
    return force_convention(run.channels.fields, _builtin(run))


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


def sign_doubt(settings: ForceSettings, friction_drag: float) -> str | None:
    """Return a warning if the friction drag of stored fields is negative, else None."""
    if friction_drag >= 0:
        return None
    return (
        f"with sign {settings.shear_sign:+d} the stored {settings.shear} pulls the body upstream; "
        f"it seems to have the opposite sign: give --shear-sign {-settings.shear_sign}"
    )
