"""How each benchmark is shown: crop, cameras, names and units, each stated once."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from .cameras import CAR_CAMERAS
from .canvases import Crop


@dataclass(frozen=True)
class Preset:
    """What figures of a set have in common.

    Parameters
    ----------
    labels : Mapping[str, str]
        Names of channels as they are written in figures; others keep theirs.
    units : Mapping[str, str]
        Units of channels, by the channel's own name.
    crop : tuple of float or None
        Part of planar meshes to look at.
    source : str or None
        Feature channel that a gallery shows as the input; None for the geometry.
    cameras : tuple of str or None
        Views of surfaces; None for planar sets.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)
    crop: Crop | None = None
    source: str | None = None
    cameras: tuple[str, ...] | None = None


_VEHICLE = Preset(
    labels={
        "pMeanTrim": "pressure",
        "CpMeanTrim": "pressure coefficient",
        "wallShearStressMeanTrim": "wall shear",
        "wallShearStressMeanTrim_x": "wall shear x",
        "wallShearStressMeanTrim_y": "wall shear y",
        "wallShearStressMeanTrim_z": "wall shear z",
        "UMeanTrim": "velocity",
        **{f"UMeanTrim_{axis}": f"velocity {axis}" for axis in "xyz"},
    },
    # Kinematic: divided by the density.
    units={
        "pMeanTrim": "m²/s²",
        **{f"wallShearStressMeanTrim{part}": "m²/s²" for part in ("", "_x", "_y", "_z")},
        **{f"UMeanTrim{part}": "m/s" for part in ("", "_x", "_y", "_z")},
    },
    cameras=CAR_CAMERAS,
)

# The published sets of Geo-FNO and FNO state no units; the built-in elasticity is in kPa.
PRESETS: Mapping[str, Preset] = {
    "elasticity": Preset(labels={"stress": "stress σ"}),
    "elasticity (built in)": Preset(labels={"stress": "stress σ"}, units={"stress": "kPa"}),
    "darcy": Preset(labels={"a": "permeability a", "u": "pressure u"}, source="a"),
    "airfoil": Preset(labels={"mach": "Mach number"}, crop=(-0.5, 1.5, -0.7, 0.7)),
    "pipe": Preset(labels={"u_x": "velocity u$_x$"}),
    "plasticity": Preset(source="die"),
    "cars": _VEHICLE,
    "car_volumes": _VEHICLE,
    **{
        f"drivaerml_{size}": _VEHICLE
        for size in ("10k", "40k", "100k", "200k", "300k", "400k", "500k", "1m")
    },
}


def preset_for(
    benchmark: str | None, *, builtin: bool = False, dimension: int | None = None
) -> Preset:
    """Return the preset of a benchmark; of its dimension for sets without one.

    Parameters
    ----------
    benchmark : str or None
        Key of ``datapipes.specs.BENCHMARKS``, or None for a set that has none.
    builtin : bool
        Whether it is the built-in set, which has units of its own.
    dimension : int, optional
        Number of coordinates, for sets without a preset: 3-D ones are taken for vehicles.

    Examples
    --------
    >>> preset_for("elasticity", builtin=True).units["stress"]
    'kPa'
    >>> preset_for(None, dimension=3).cameras
    ('three-quarter', 'side', 'top', 'rear')
    """
    special = f"{benchmark} (built in)"
    if builtin and special in PRESETS:
        return PRESETS[special]
    if benchmark in PRESETS:
        return PRESETS[benchmark]
    return _VEHICLE if dimension == 3 else Preset()
