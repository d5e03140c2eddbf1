import functools

import numpy as np
import pytest
import torch

from physicsnemo_flarepp.datapipes import DrivAerMLReader, GraphReader, Normalizer, fit_normalizer
from physicsnemo_flarepp.datapipes.normalization import Affine
from physicsnemo_flarepp.datapipes.statistics import Moments, doubtful_inputs, input_ranges


class Nodes(dict):
    """A graph in the style of PyG."""


def grid_reader(values, **arguments):
    """One graph per row of `values` (cases, points, channels), on a fixed set of points."""
    positions = torch.rand(values.shape[1], 2)
    return GraphReader([Nodes(pos=positions, y=case) for case in values], **arguments)


def test_channel_statistics_equal_those_of_all_training_points(ragged_set):
    reader = DrivAerMLReader(ragged_set, fields=["pMeanTrim", "wallShearStressMeanTrim"])
    fitted = fit_normalizer(reader, {"coordinates": "unit_box", "fields": "gaussian"})
    files = [np.load(ragged_set / "train" / f"run_{run}.npz") for run in range(6)]
    xyz = np.concatenate([file["surface_mesh_centers"] for file in files]).astype(float)
    fields = np.concatenate([file["surface_fields"] for file in files]).astype(float)
    affine = fitted.affine
    np.testing.assert_allclose(affine["coordinates"].shift, xyz.min(0), rtol=1e-6)
    np.testing.assert_allclose(affine["coordinates"].scale, np.ptp(xyz, axis=0), rtol=1e-6)
    np.testing.assert_allclose(affine["fields"].shift, fields.mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(affine["fields"].scale, fields.std(0, ddof=1), rtol=1e-6)


def test_statistics_do_not_lose_digits_far_from_zero():
    values = 1e6 + np.random.default_rng(0).normal(size=(50, 20, 1))
    scale = fit_normalizer(grid_reader(values), {"fields": "gaussian"}).affine["fields"].scale
    # The reader rounds to float32, whose spacing at 1e6 is 0.06.
    expected = values.astype(np.float32).astype(float).std(ddof=1)
    np.testing.assert_allclose(scale, expected, rtol=1e-5)


@pytest.mark.parametrize("size", [1, 3])
def test_per_point_statistics_and_their_shards(size):
    values = torch.from_numpy(np.random.default_rng(0).normal(3, 2, size=(9, 10, 2)))
    kinds = {"fields": "per_point"}
    affine = fit_normalizer(grid_reader(values), kinds).affine["fields"]
    normalizer = Normalizer({"features": affine, "fields": affine})
    np.testing.assert_allclose(affine.shift, values.mean(0), rtol=1e-6)
    np.testing.assert_allclose(affine.scale, values.std(0), rtol=1e-6)
    for rank in range(size):
        options = {"shard": (rank, size), "n_points": 7}
        reader = grid_reader(values, options=options, features=["y"])
        sample = reader[4][0]
        normal = normalizer(sample)
        rows = sample["tokens"]
        expected = (values[4][rows] - values.mean(0)[rows]) / values.std(0)[rows]
        np.testing.assert_allclose(normal["features"], expected, rtol=1e-5, atol=1e-6)
        back = normalizer.inverse(normal["features"], rows)
        np.testing.assert_allclose(back, sample["fields"], rtol=1e-5)
    with pytest.raises(ValueError, match="pass `tokens`"):
        normalizer.inverse(torch.zeros(1, 4, 2))


def test_constant_targets_are_predicted_exactly_and_constant_inputs_are_only_shifted():
    values = np.random.default_rng(0).normal(size=(6, 4, 1))
    values[:, 2] = 5.0
    normalizer = fit_normalizer(grid_reader(values), {"fields": "per_point"})
    predicted = normalizer.inverse(torch.full((1, 4, 1), 3.0))
    assert predicted[0, 2, 0] == 5 and predicted[0, 1, 0] != 5
    reader = grid_reader(values, features=["y"])
    inputs = fit_normalizer(reader, {"features": "per_point"}).affine["features"]
    assert inputs.scale[2, 0] == 1 and inputs.shift[2, 0] == 5


def coordinates_of(points, kinds, **arguments):
    """The coordinates of the first case as a model gets them."""
    reader = GraphReader([Nodes(pos=case, y=case[:, :1]) for case in points], **arguments)
    return fit_normalizer(reader, kinds)(reader[0][0])["coordinates"]


def test_isotropic_coordinates_do_not_depend_on_units_and_keep_their_shape():
    points = np.random.default_rng(0).uniform(-1, 1, (4, 50, 3)) * [4.0, 1.0, 0.5] + [9, -3, 1]
    metres = coordinates_of(points, {"coordinates": "isotropic"})
    centred = points - points.mean((0, 1))
    deviation = np.sqrt(centred.var((0, 1), ddof=1).mean())
    np.testing.assert_allclose(metres, centred[0] / deviation, rtol=1e-4, atol=1e-5)
    for unit in (1e-3, 1e3):
        other = coordinates_of(unit * points, {"coordinates": "isotropic"})
        np.testing.assert_allclose(other, metres, rtol=1e-4, atol=1e-5)


def test_a_far_field_leaves_its_scale_to_the_body():
    rng = np.random.default_rng(0)
    body, far = rng.uniform(-1, 1, (4, 300, 2)), 40 * rng.uniform(-1, 1, (4, 150, 2))
    alone = coordinates_of(body, {"coordinates": "isotropic"}).std().item()
    found = coordinates_of(np.concatenate([body, far], 1), {"coordinates": "isotropic"})
    assert found[:300].std().item() > 0.5 * alone  # by the deviation it would be 0.04
    assert found.abs().max() < 100


def test_an_axis_that_only_rounds_is_constant_and_does_not_count_for_the_scale():
    points = np.random.default_rng(0).normal(size=(4, 50, 3))
    points[..., 2] = 300 + 2e-5 * points[..., 2]  # to single precision 300 or its neighbours
    flat = coordinates_of(points[..., :2], {"coordinates": "isotropic"})
    for kind in ("isotropic", "gaussian", "unit_box"):
        found = coordinates_of(points, {"coordinates": kind})
        assert found[:, 2].abs().max() < 1e-3
    found = coordinates_of(points, {"coordinates": "isotropic"})
    np.testing.assert_allclose(found[:, :2], flat, rtol=1e-5, atol=1e-6)


def test_cases_in_other_units_are_doubtful():
    points = torch.tensor([[0.0, 0.0], [2.0, 1.0]])
    cases = [{"coordinates": Moments.per_channel(scale * points)} for scale in (1.0, 1.2, 1000.0)]
    lines = doubtful_inputs(input_ranges(cases), Normalizer(), {}, {"coordinates": ("x", "y")})
    assert [line for line in lines if "from 2 to 2000 along x" in line]
    assert [line for line in lines if "from 1 to 1000 along y" in line]


def test_doubtful_inputs_are_named_with_their_range_after_scaling():
    names = {"coordinates": "xyz", "features": ["p"], "globals": ["u", "v"]}
    ranges = {
        "coordinates": {"min": [0, 0, 2], "max": [4000, 5, 2]},
        "features": {"min": [-1e-5], "max": [3e-5]},
        "globals": {"min": [-1, 10], "max": [1, 20]},
    }
    raw = doubtful_inputs(ranges, Normalizer(), {}, names)
    assert [line.split(",")[0] for line in raw] == [
        "coordinates: x is huge",
        "coordinates: z is constant",
        "features: p is tiny",
    ]
    assert "0 to 4e+03 after normalisation. Set data.normalization to {coordinates: iso" in raw[0]
    assert raw[2].endswith(
        "-1e-05 to 3e-05 after normalisation. Set data.normalization to {features: gaussian}"
    )
    affine = {
        "coordinates": Affine(torch.tensor([2000.0, 2.5, 2]), torch.tensor([1000.0, 1000, 1])),
        "features": Affine(torch.tensor([0.0]), torch.tensor([1e-7])),
    }
    kinds = {"coordinates": "isotropic", "features": "gaussian", "globals": "gaussian"}
    scaled = doubtful_inputs(ranges, Normalizer(affine), kinds, names)
    assert len(scaled) == 3 and "y is tiny, -0.0025 to 0.0025" in scaled[0]
    assert "data.normalization={coordinates: gaussian} scales each" in scaled[0]
    assert "p is huge, -100 to 300" in scaled[2] and "far from all others" in scaled[2]


def test_points_in_no_training_case_are_an_error():
    with pytest.raises(ValueError, match="points were in no training case"):
        reader = grid_reader(np.ones((1, 50, 1)), options={"n_points": 3})
        fit_normalizer(reader, {"fields": "per_point"})


def test_unknown_kinds_are_refused():
    with pytest.raises(ValueError, match="kinds among"):
        fit_normalizer(grid_reader(np.ones((1, 5, 1))), {"fields": "robust"})


def test_ranges_of_shards_are_those_of_whole_cases():
    """Each rank sees a part of every case, one of them nothing of the last."""
    cases = [torch.randn(n, 3) + n for n in (5, 8, 2)]
    seen = []
    for case, points in enumerate(cases):
        parts = map(Moments.per_channel, points.tensor_split(3))
        given = Moments.per_channel(torch.tensor([[case, -1.0]]))
        seen.append({"coordinates": functools.reduce(Moments.merge, parts), "globals": given})
    extents = torch.stack([points.amax(0) - points.amin(0) for points in cases]).double()
    expected = {
        "cases": 3,
        "coordinates": {"min": torch.cat(cases).amin(0), "max": torch.cat(cases).amax(0)},
        "extent": {"min": extents.amin(0), "max": extents.amax(0)},
        "globals": {"min": torch.tensor([0.0, -1.0]), "max": torch.tensor([2.0, -1.0])},
    }
    found = input_ranges(seen)
    assert found.keys() == expected.keys() and found["cases"] == 3
    for key in ("coordinates", "extent", "globals"):
        for end in ("min", "max"):
            assert found[key][end] == pytest.approx(expected[key][end].tolist(), rel=1e-6)
