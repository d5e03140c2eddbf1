"""How meshes are shown: cameras in parallel projection, and crops, names and units of each set."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

from .canvases import Canvas, Crop
from .pages import Theme

_MARGIN = 0.02  # of the extent, around surfaces


@dataclass(frozen=True)
class Camera:
    """A direction to look from.

    Examples
    --------
    >>> Camera("top", (0, 0, 1), (0, 1, 0)).axes()[0].tolist()
    [1.0, 0.0, 0.0]
    """

    name: str  #: label of the view
    direction: tuple[float, float, float]  #: from the object towards the viewer
    up: tuple[float, float, float] = (0.0, 0.0, 1.0)  #: what is up in the picture

    def axes(self) -> Float[np.ndarray, "3 3"]:
        """Return the unit vectors to the right, up, and towards the viewer."""
        toward = np.asarray(self.direction, float)
        right = np.cross(self.up, toward)
        if not np.linalg.norm(right) > 1e-9 * max(np.linalg.norm(toward), 1e-300):
            raise ValueError(f"camera {self.name!r} looks along its up vector {self.up}")
        toward = toward / np.linalg.norm(toward)
        right = right / np.linalg.norm(right)
        return np.stack([right, np.cross(toward, right), toward])

    def extent(self, canvas: Canvas) -> Float[np.ndarray, "3 2"]:
        """Return the least and greatest coordinate of what is drawn along each of the axes."""
        parts = [part.points for part in (canvas.faces, canvas.hidden) if part is not None]
        # Axis by axis: a million points need no second copy of themselves.
        along = ([p @ axis.astype(p.dtype) for p in parts if len(p)] for axis in self.axes())
        spans = [(min(v.min() for v in values), max(v.max() for v in values)) for values in along]
        return np.array(spans, float)


PLAN = Camera("plan", (0, 0, 1), (0, 1, 0))  # of planar sets

# Flow along +x, z up (DrivAerML, AhmedML): the car drives to the left of the side view.
CAMERAS = {
    camera.name: camera
    for camera in (
        Camera("three-quarter", (-1.0, -1.15, 0.65)),
        Camera("side", (0, -1, 0)),
        Camera("top", (0, 0, 1), (0, 1, 0)),
        Camera("front", (-1, 0, 0)),
        Camera("rear", (1, 0, 0)),
        Camera("rear three-quarter", (1.0, -1.15, 0.65)),
        Camera("bottom", (0, 0, -1), (0, 1, 0)),
        Camera("underside", (1.0, 1.15, -0.65)),
    )
}

# What the first of these does not see, the second does.
ALL_AROUND = ("three-quarter", "underside")
# The base makes most of the drag, so the rear is among them.
CAR_CAMERAS = ("three-quarter", "side", "top", "rear")


def oriented_cameras(
    names: Sequence[str], flow: Sequence[float] = (1, 0, 0), up: Sequence[float] = (0, 0, 1)
) -> tuple[Camera, ...]:
    """Return cameras of these names for data whose flow and up axis are not +x and +z."""
    along, above = np.asarray(flow, float), np.asarray(up, float)
    axes = np.stack([along, np.cross(above, along), above])
    if not np.linalg.norm(axes[1]) > 0:
        raise ValueError(f"the flow {tuple(flow)} is along the up axis {tuple(up)}; choose another")
    axes /= np.linalg.norm(axes, axis=1, keepdims=True)

    def turned(vector: Sequence[float]) -> tuple[float, ...]:
        return tuple((np.asarray(vector, float) @ axes + 0.0).tolist())

    return tuple(
        Camera(camera.name, turned(camera.direction), turned(camera.up))
        for camera in resolve_cameras(names)
    )


def resolve_cameras(cameras: Sequence[str | Camera]) -> tuple[Camera, ...]:
    """Return the cameras of these names; cameras pass through."""
    if isinstance(cameras, str | Camera):
        cameras = [cameras]
    unknown = [c for c in cameras if not isinstance(c, Camera) and c not in CAMERAS]
    if unknown:
        raise ValueError(f"cameras {unknown} are not known; choose among {list(CAMERAS)}")
    found = tuple(c if isinstance(c, Camera) else CAMERAS[c] for c in cameras)
    names = [camera.name for camera in found]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"cameras are {names}; name one or more views, each once")
    return found


@dataclass(frozen=True)
class View:
    """A camera, what it sees along its axes (right, up, towards it), and pixels of two of them."""

    camera: Camera
    window: Float[np.ndarray, "3 2"]
    size: tuple[int, int]


def make_views(
    canvas: Canvas,
    theme: Theme,
    cameras: Sequence[str | Camera] | None = None,
    crop: Crop | None = None,
    *,
    tallest: float = 1.6,
) -> list[View]:
    """Return views of everything or of the crop, on one scale, no higher than `tallest` panels."""
    if canvas.flat and cameras is not None:
        raise ValueError(f"cameras is {cameras}, but the mesh is planar and has one view")
    usual = (PLAN,) if canvas.flat else CAR_CAMERAS
    chosen = resolve_cameras(usual if cameras is None else cameras)
    windows = np.stack([camera.extent(canvas) for camera in chosen])
    if crop is not None:
        windows[:, :2] = np.reshape(crop, (2, 2))
    elif not canvas.flat:
        margins = _MARGIN * np.ptp(windows[:, :2], axis=2).max(axis=1)
        windows[:, :2] += margins[:, None, None] * (-1, 1)
    spans = np.ptp(windows[:, :2], axis=2)
    width = theme.panel_width * theme.dpi
    per_unit = min(width / spans[:, 0].max(), tallest * width / spans[:, 1].max())
    sizes = np.maximum(1, np.round(spans * per_unit)).astype(int).tolist()
    rows = zip(chosen, windows, sizes, strict=True)
    return [View(camera, window, tuple(size)) for camera, window, size in rows]


@dataclass(frozen=True)
class Preset:
    """What figures of a set have in common; `labels` and `units` are by the name of a channel."""

    labels: Mapping[str, str] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)
    crop: Crop | None = None  #: part of planar meshes to look at
    source: str | None = None  #: feature that a gallery shows as the input; None: the geometry


_PARTS = {"": "", "_x": " x", "_y": " y", "_z": " z"}  # of a vector field
_VEHICLE = Preset(
    labels={
        "pMeanTrim": "pressure",
        "CpMeanTrim": "pressure coefficient",
        **{f"wallShearStressMeanTrim{end}": f"wall shear{words}" for end, words in _PARTS.items()},
        **{f"UMeanTrim{end}": f"velocity{words}" for end, words in _PARTS.items()},
    },
    # Kinematic: divided by the density.
    units={
        "pMeanTrim": "m²/s²",
        **{f"wallShearStressMeanTrim{end}": "m²/s²" for end in _PARTS},
        **{f"UMeanTrim{end}": "m/s" for end in _PARTS},
    },
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
    "cars_wake": _VEHICLE,
    "car_volumes": _VEHICLE,
    **{f"drivaerml_{n}": _VEHICLE for n in "10k 40k 100k 200k 300k 400k 500k 1m".split()},
}


def preset_for(
    benchmark: str | None, *, builtin: bool = False, dimension: int | None = None
) -> Preset:
    """Return the preset of a benchmark, a key of ``datapipes.specs.BENCHMARKS`` or None.

    A built-in set has units of its own. Of sets without a preset those with 3 coordinates are taken
    for vehicles.

    Examples
    --------
    >>> preset_for("elasticity", builtin=True).units["stress"]
    'kPa'
    """
    usual = PRESETS.get(benchmark, _VEHICLE if dimension == 3 else Preset())
    return PRESETS.get(f"{benchmark} (built in)", usual) if builtin else usual
