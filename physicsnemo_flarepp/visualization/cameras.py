"""Where surfaces are looked at from, in parallel projection: one length has one size everywhere."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float


@dataclass(frozen=True)
class Camera:
    """A direction to look from.

    Parameters
    ----------
    name : str
        Label of the view.
    direction : tuple of float
        From the object towards the viewer.
    up : tuple of float
        What is up in the picture.

    Examples
    --------
    >>> Camera("top", (0, 0, 1), (0, 1, 0)).axes()[0].tolist()
    [1.0, 0.0, 0.0]
    """

    name: str
    direction: tuple[float, float, float]
    up: tuple[float, float, float] = (0.0, 0.0, 1.0)

    def axes(self) -> Float[np.ndarray, "3 3"]:
        """Return the unit vectors to the right, up, and towards the viewer."""
        toward = np.asarray(self.direction, float)
        right = np.cross(self.up, toward)
        if not np.linalg.norm(right) > 1e-9 * max(np.linalg.norm(toward), 1e-300):
            raise ValueError(
                f"camera {self.name!r} looks along its up vector (direction {self.direction}, up "
                f"{self.up}); choose another up"
            )
        toward = toward / np.linalg.norm(toward)
        right = right / np.linalg.norm(right)
        return np.stack([right, np.cross(toward, right), toward])

    def extent(self, points: Float[np.ndarray, "N 3"]) -> Float[np.ndarray, "3 2"]:
        """Return the least and greatest coordinate of the points along each of :meth:`axes`."""
        # Axis by axis: a million points need no second copy of themselves.
        along = (points @ axis.astype(points.dtype) for axis in self.axes())
        return np.array([(values.min(), values.max()) for values in along], float)


# The planar view of 2-D sets.
PLAN = Camera("plan", (0, 0, 1), (0, 1, 0))

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
CAR_CAMERAS = ("three-quarter", "side", "top", "front")


def resolve_cameras(cameras: Sequence[str | Camera]) -> tuple[Camera, ...]:
    """Return the cameras of these names; cameras pass through.

    Examples
    --------
    >>> [camera.direction for camera in resolve_cameras(["side"])]
    [(0, -1, 0)]
    """
    if isinstance(cameras, str | Camera):
        cameras = [cameras]
    if not cameras:
        raise ValueError(f"cameras is empty; name at least one of {list(CAMERAS)}")
    unknown = [c for c in cameras if not isinstance(c, Camera) and c not in CAMERAS]
    if unknown:
        raise ValueError(
            f"cameras {unknown} are not known; choose among {list(CAMERAS)}, or pass Camera objects"
        )
    found = tuple(c if isinstance(c, Camera) else CAMERAS[c] for c in cameras)
    names = [camera.name for camera in found]
    if len(set(names)) < len(names):
        raise ValueError(f"cameras has a name twice: {names}; name each view once")
    return found
