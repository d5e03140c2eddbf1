"""Parametric saloon bodies as closed triangle surfaces.

A box with rounded edges, meshed with a lattice of quadrilaterals, is bent into shape: its top
follows hood, windscreen, roof, rear window and boot; its sides lean inwards above the belt line;
its ends are bowed and its underside rises towards the tail. Lengths in metres, flow along +x, z
up, y = 0 the plane of symmetry, wheels left out; placed where the DrivAer model stands.
"""

from dataclasses import dataclass, fields
from typing import Annotated

import numpy as np

# The DrivAer model's ground and the middle of its length.
GROUND = -0.318
MIDDLE_X = 1.6
# Intervals of the lattice along x, the half width and z, between the rounded edges.
INTERVALS = (36, 6, 7)
# A rounded edge turns through 90 degrees in twice this many intervals.
EDGE_INTERVALS = 2


@dataclass(frozen=True)
class CarShape:
    """Shape parameters of one car, their ranges and defaults; metres and degrees.

    Angles of windscreen and rear window are measured from the horizontal, that of the tumblehome
    (the lean of the side windows) from the vertical. Height and ground clearance are measured
    from the ground; the length is the sum of hood, cabin and boot.
    """

    hood_length: Annotated[float, 1.1, 1.4] = 1.25
    cabin_length: Annotated[float, 2.6, 3.0] = 2.8
    boot_length: Annotated[float, 0.45, 0.75] = 0.6
    windscreen_angle: Annotated[float, 27.0, 36.0] = 30.0
    rear_angle: Annotated[float, 23.0, 36.0] = 28.0
    width: Annotated[float, 1.74, 1.94] = 1.84
    height: Annotated[float, 1.38, 1.52] = 1.44
    ground_clearance: Annotated[float, 0.13, 0.22] = 0.17
    corner_radius: Annotated[float, 0.12, 0.22] = 0.16
    tumblehome: Annotated[float, 14.0, 25.0] = 20.0

    @property
    def length(self) -> float:
        """Overall length."""
        return self.hood_length + self.cabin_length + self.boot_length


RANGES = {field.name: field.type.__metadata__ for field in fields(CarShape)}


def sample_shape(rng: np.random.Generator) -> CarShape:
    """Draw every shape parameter uniformly from its range."""
    return CarShape(**{name: rng.uniform(*limits) for name, limits in RANGES.items()})


def smooth_min(a: np.ndarray, b: np.ndarray, reach: float) -> np.ndarray:
    """Minimum of two heights whose corner is rounded where they differ by less than ``reach``."""
    overlap = np.maximum(reach - np.abs(a - b), 0) / reach
    return np.minimum(a, b) - overlap**2 * reach / 4


def smooth_max(a: np.ndarray, b: np.ndarray, reach: float) -> np.ndarray:
    """Maximum of two heights whose corner is rounded where they differ by less than ``reach``."""
    return -smooth_min(-a, -b, reach)


def lattice_axis(half_length: float, radius: float, intervals: int) -> np.ndarray:
    """Lattice coordinates from 0 to ``half_length``, turning the rounded edge in equal angles."""
    angles = np.linspace(0, np.pi / 4, EDGE_INTERVALS + 1)
    flat = np.linspace(0, half_length - radius, intervals + 1)
    return np.concatenate([flat[:-1], half_length - radius * (1 - np.tan(angles))])


def box_lattice(shape: CarShape) -> list[np.ndarray]:
    """Lattice coordinates along the length, the half width and the height of the box."""
    radius = shape.corner_radius
    along = lattice_axis(shape.length / 2, radius, INTERVALS[0] // 2)
    across = lattice_axis(shape.width / 2, radius, INTERVALS[1])
    half_height = (shape.height - shape.ground_clearance) / 2
    edge = lattice_axis(half_height, radius, 1)[1:]
    middle = np.linspace(-edge[0], edge[0], INTERVALS[2] + 1)
    up = np.concatenate([-edge[:0:-1], middle, edge[1:]])
    return [np.concatenate([-along[:0:-1], along]), across, up]


def rounded(points: np.ndarray, half_sizes: np.ndarray, radius: float) -> np.ndarray:
    """Move points of the surface of a box onto the box with rounded edges and corners."""
    core = np.clip(points, radius - half_sizes, half_sizes - radius)
    away = points - core
    return core + radius * away / np.linalg.norm(away, axis=1, keepdims=True)


def top_profile(shape: CarShape, x: np.ndarray, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Heights of upper surface and belt line, ``x`` behind the front, ``t`` off the middle."""
    roof_height = shape.height - shape.ground_clearance
    cowl, tail = shape.hood_length, shape.hood_length + shape.cabin_length
    # The deck rises from the front edge of the hood to the windscreen and runs level to the boot.
    front, base, boot = 0.47 * roof_height, 0.61 * roof_height, 0.66 * roof_height
    hood = base + (front - base) * (1 - x / cowl) - 0.05 * (1 - x / cowl) ** 2
    deck = smooth_min(hood, boot - 0.06 * ((x - cowl) / (shape.length - cowl)) ** 2, 0.08)
    deck = deck - 0.03 * t**2

    # Seen from above, windscreen and rear window are bowed: their sides lie nearer the middle.
    windscreen = base + np.tan(np.radians(shape.windscreen_angle)) * (x - cowl - 0.16 * t**2)
    rear = boot - 0.04 + np.tan(np.radians(shape.rear_angle)) * (tail - x - 0.12 * t**2)
    roof_middle = cowl + 0.48 * shape.cabin_length
    roof = roof_height - 0.05 * ((x - roof_middle) / (0.5 * shape.cabin_length)) ** 2 - 0.03 * t**2
    cabin = smooth_min(smooth_min(windscreen, roof, 0.08), rear, 0.10)
    return smooth_max(deck, cabin, 0.07), deck - 0.04


def bend(shape: CarShape, box: np.ndarray) -> np.ndarray:
    """Map points of the rounded box, centred at the origin, to the surface of the car."""
    half_length, half_width = shape.length / 2, shape.width / 2
    box_height = shape.height - shape.ground_clearance
    s, t = box[:, 0] / half_length, box[:, 1] / half_width
    rise = box[:, 2] / box_height + 0.5
    ahead, behind = np.clip(-s, 0, 1) ** 3, np.clip(s, 0, 1) ** 3

    # Ends bowed in plan and in side view, the bumper foremost and the boot's edge rearmost.
    x = box[:, 0] + half_length
    x = x + ahead * (0.24 * t**2 + 0.30 * (rise - 0.40) ** 2)
    x = x - behind * (0.16 * t**2 + 0.35 * (rise - 0.65) ** 2)

    top, belt = top_profile(shape, x, t)
    underside = 0.05 * np.maximum(1 - x / 0.6, 0) ** 2
    diffuser = np.maximum(x - (shape.length - 0.9), 0)
    underside += 0.14 * diffuser**2 / (diffuser + 0.2)
    z = underside + rise * (top - underside)

    above = z - belt
    lean = np.tan(np.radians(shape.tumblehome)) * smooth_max(above, np.zeros_like(above), 0.2)
    tuck = 0.05 * np.clip(1 - rise / 0.3, 0, 1) ** 2
    plan = 1 - 0.10 * ahead - 0.12 * behind - tuck
    y = box[:, 1] * (plan - lean / half_width)
    offset = [MIDDLE_X - half_length, 0, GROUND + shape.ground_clearance]
    return np.column_stack([x, y, z]) + offset


def lattice_quads(ids: np.ndarray) -> np.ndarray:
    """Outward quadrilaterals (Q, 4) of a lattice of node numbers but for its plane of symmetry."""
    quads = []
    for side, step in ((ids[-1], 1), (ids[0], -1), (ids[:, -1], -1), (ids[..., -1], 1),
                       (ids[..., 0], -1)):  # fmt: skip
        ring = np.stack([side[:-1, :-1], side[1:, :-1], side[1:, 1:], side[:-1, 1:]], axis=-1)
        quads.append(ring.reshape(-1, 4)[:, ::step])
    return np.concatenate(quads)


def split_quads(points: np.ndarray, quads: np.ndarray) -> np.ndarray:
    """Cut each quadrilateral along its shorter diagonal: triangles (2 Q, 3)."""
    corners = points[quads]
    first = np.linalg.norm(corners[:, 0] - corners[:, 2], axis=1)
    second = np.linalg.norm(corners[:, 1] - corners[:, 3], axis=1)
    turned = np.where((first <= second)[:, None], quads, np.roll(quads, -1, axis=1))
    return turned[:, [0, 1, 2, 0, 2, 3]].reshape(-1, 3)


def half_surface(
    shape: CarShape, axes: list[np.ndarray] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Nodes (P, 3) and outward triangles (F, 3) of the half of a car with y >= 0, exactly 0 in the
    middle. Other `axes` than those of :func:`box_lattice` mesh the same car differently.
    """
    axes = box_lattice(shape) if axes is None else axes
    lattice = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
    outer = np.zeros(lattice.shape[:3], dtype=bool)
    outer[[0, -1]] = outer[:, -1] = outer[:, :, [0, -1]] = True
    ids = np.full(outer.shape, -1)
    ids[outer] = np.arange(outer.sum())
    half_sizes = np.array([shape.length, shape.width, shape.height - shape.ground_clearance]) / 2
    points = bend(shape, rounded(lattice[outer], half_sizes, shape.corner_radius))
    return points, split_quads(points, lattice_quads(ids))


def whole_surface(points: np.ndarray, faces: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Join a half surface to its mirror image; its triangles come first, in their order."""
    off_plane = points[:, 1] > 0
    partner = np.arange(len(points))
    partner[off_plane] = len(points) + np.arange(off_plane.sum())
    mirrored = points[off_plane] * [1, -1, 1]
    return np.concatenate([points, mirrored]), np.concatenate([faces, partner[faces][:, ::-1]])
