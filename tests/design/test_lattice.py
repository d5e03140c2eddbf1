"""Lattices: which control points move, mirrored halves, and space that folds."""

import numpy as np
import pytest
import torch

from physicsnemo_flarepp.design import make_lattice

BODY = np.random.default_rng(0).uniform([0, -1, 0], [4, 1, 1.5], (500, 3))
BODY = np.concatenate([BODY, BODY * [1, -1, 1]])


@pytest.mark.parametrize("ny", [2, 3, 4])
def test_mirrored_halves_stay_alike(ny):
    lattice = make_lattice(BODY, (4, ny, 3))
    moved = lattice.displacements(torch.randn(int(lattice.free.sum())).double())
    points = lattice.deform(torch.as_tensor(BODY), moved)
    np.testing.assert_allclose(points[500:] * torch.tensor([1, -1, 1]), points[:500], atol=1e-12)
    assert (points - torch.as_tensor(BODY)).abs().amax(0).min() > 0.1


def test_frozen_planes_and_axes_stay():
    lattice = make_lattice(BODY, (3, 3, 3), frozen=["xmin", "zmax"], axes="z", symmetric=False)
    moved = lattice.displacements(torch.ones(int(lattice.free.sum())).double())
    assert moved[0].abs().max() == 0 and moved[:, :, -1].abs().max() == 0
    assert moved[..., :2].abs().max() == 0 and moved[1:, :, :-1, 2].min() == 1


def test_a_box_within_the_body_leaves_it_in_one_piece():
    box = (2.0, 5, -2, 2, -1, 3)
    lattice = make_lattice(BODY, (4, 3, 3), box=box)
    assert not lattice.free[0].any() and lattice.free[-1].any()
    edge = torch.tensor([[1.999, 0.3, 1.0], [2.001, 0.3, 1.0]], dtype=torch.float64)
    moved = lattice.displacements(torch.ones(int(lattice.free.sum())).double())
    assert (lattice.deform(edge, moved) - edge).abs().max() < 0.01


def test_folded_space_is_seen():
    lattice = make_lattice(BODY, (3, 2, 2), axes="x", symmetric=False)
    points, moved = torch.as_tensor(BODY), torch.zeros(3, 2, 2, 3).double()
    assert lattice.smallest_stretch(points, moved) == pytest.approx(1.0)
    moved[1:, ..., 0] = -1.0
    moved[2, ..., 0] = -5.0  # the rear is pushed through the middle
    assert lattice.smallest_stretch(points, moved) < 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shape": (1, 2, 2)}, "give 2 or more a side"),
        ({"frozen": ["top"]}, "'top' is not one of xmin"),
        ({"axes": "xw"}, "axes is 'xw'"),
        ({"box": (1, 0, -1, 1, 0, 1)}, "x0 < x1"),
        ({"box": (0, 1, 0, 1, 0, 1)}, "not symmetric about the body"),
        ({"shape": (2, 2, 2), "frozen": ["xmin", "xmax"]}, "no control point"),
    ],
)
def test_wrong_lattices_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        make_lattice(BODY, **options)
