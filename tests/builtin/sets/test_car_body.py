"""Car bodies are closed, well shaped, of the asked dimensions, and every parameter acts."""

from dataclasses import replace

import numpy as np
import pytest
import pyvista as pv

from physicsnemo_flarepp.builtin.sets.car_body import (
    GROUND,
    RANGES,
    CarShape,
    half_surface,
    sample_shape,
    whole_surface,
)


def extreme(side):
    return CarShape(**{name: limits[side] for name, limits in RANGES.items()})


SHAPES = {
    "default": CarShape(),
    "all-low": extreme(0),
    "all-high": extreme(1),
    **{f"random-{s}": sample_shape(np.random.default_rng(s)) for s in range(5)},
    **{
        f"{name}-{value:g}": replace(CarShape(), **{name: value})
        for name, limits in RANGES.items()
        for value in limits
    },
}


def smallest_angles(corners):
    """Smallest angle of each triangle in degrees, by the law of cosines."""
    a, b, c = np.sort(np.linalg.norm(corners - np.roll(corners, 1, axis=1), axis=2), axis=1).T
    return np.degrees(np.arccos((b**2 + c**2 - a**2) / (2 * b * c)))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_bodies_are_watertight_and_well_shaped(shape):
    points, faces = whole_surface(*half_surface(shape))
    mesh = pv.PolyData.from_regular_faces(points, faces)
    assert mesh.n_open_edges == 0 and mesh.is_manifold and mesh.n_cells >= 3000
    # Every edge is run through once in each direction: all triangles face the same side.
    edges = np.concatenate([faces[:, [0, 1]], faces[:, [1, 2]], faces[:, [2, 0]]])
    assert len(np.unique(edges, axis=0)) == len(edges)
    assert set(map(tuple, edges)) == set(map(tuple, edges[:, ::-1]))
    a, b, c = points[faces].swapaxes(0, 1)
    volume = np.einsum("nx,nx->", a, np.cross(b, c)) / 6
    assert volume == pytest.approx(mesh.volume, rel=1e-6) and 5 < volume < 11
    angles = smallest_angles(points[faces])
    assert angles.min() > 10 and np.median(angles) > 33


@pytest.mark.parametrize("shape", list(SHAPES.values())[:8], ids=list(SHAPES)[:8])
def test_bodies_have_the_asked_dimensions_and_stand_on_the_drivaer_ground(shape):
    points, _ = whole_surface(*half_surface(shape))
    low, high = points.min(axis=0), points.max(axis=0)
    # Bowed ends take a few centimetres off the length, the camber of the roof off the height.
    assert 0 <= shape.length - (high - low)[0] < 0.08
    assert high[1] == -low[1] == pytest.approx(shape.width / 2, abs=0.01)
    assert low[2] - GROUND == pytest.approx(shape.ground_clearance, abs=1e-9)
    assert 0 <= shape.height - (high[2] - GROUND) < 0.03
    assert -1.05 < low[0] and high[0] < 4.25


@pytest.mark.parametrize("name", RANGES)
def test_every_parameter_acts(name):
    low, high = (half_surface(replace(CarShape(), **{name: v}))[0] for v in RANGES[name])
    assert np.linalg.norm(high - low, axis=1).max() > 0.02


@pytest.mark.parametrize(("name", "side"), [("windscreen_angle", 1), ("rear_angle", -1)])
@pytest.mark.parametrize("end", [0, 1])
def test_windows_have_the_asked_angle(name, side, end):
    angle = RANGES[name][end]
    shape = replace(CarShape(), **{name: angle})
    points, _ = half_surface(shape)
    middle = points[(points[:, 1] == 0) & (points[:, 2] > 0.3)]
    middle = middle[np.argsort(middle[:, 0])]
    slopes = side * np.degrees(np.arctan2(np.diff(middle[:, 2]), np.diff(middle[:, 0])))
    # Away from the ends of the car the steepest part of the centre line is the window.
    inside = (middle[1:, 0] > middle[0, 0] + 0.6) & (middle[1:, 0] < middle[-1, 0] - 0.4)
    assert slopes[inside].max() == pytest.approx(angle, abs=0.5)


def test_side_windows_lean_inwards_and_the_hood_is_lower_than_the_roof():
    shape = CarShape()
    points, _ = half_surface(shape)
    roof_x = points[points[:, 2].argmax(), 0]
    cabin = points[np.abs(points[:, 0] - roof_x) < 0.1]
    at_waist = cabin[np.abs(cabin[:, 2] - 0.3) < 0.1, 1].max()
    at_roof = cabin[np.abs(cabin[:, 2] - 0.9) < 0.1, 1].max()
    lean = np.degrees(np.arctan((at_waist - at_roof) / 0.6))
    assert 5 < lean < shape.tumblehome + 5
    hood = points[np.abs(points[:, 0] - (points[:, 0].min() + 0.5)) < 0.1, 2].max()
    assert 0.3 < points[:, 2].max() - hood < 0.7
