import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tensordict import TensorDict

from physicsnemo_flarepp.datapipes import DrivAerMLReader, GraphReader, Normalizer, fit_normalizer
from physicsnemo_flarepp.datapipes.normalization import Affine, paper_normalizer
from physicsnemo_flarepp.datapipes.specs import benchmark
from physicsnemo_flarepp.datapipes.statistics import InputRanges


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


def test_points_in_no_training_case_are_an_error():
    with pytest.raises(ValueError, match="points were in no training case"):
        reader = grid_reader(np.ones((1, 50, 1)), options={"n_points": 3})
        fit_normalizer(reader, {"fields": "per_point"})


def test_batches_normalise_like_samples_and_gradients_flow_back():
    affine = Affine(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 4.0]))
    normalizer = Normalizer({"features": affine, "fields": affine})
    batch = TensorDict({"features": torch.rand(3, 5, 2)}, batch_size=[3])
    normal = normalizer(batch)["features"]
    assert torch.equal(normal[1], normalizer(batch[1])["features"])
    normal.requires_grad_()
    normalizer.inverse(normal).sum().backward()
    assert torch.equal(normal.grad[0, 0], torch.tensor([2.0, 4.0]))


def test_saved_statistics_come_back_and_are_no_pickle(tmp_path):
    path = tmp_path / "normalizer.safetensors"
    saved = paper_normalizer(benchmark("drivaerml_40k"))
    saved.save(path)
    loaded = Normalizer.load(path)
    assert loaded.state_dict().keys() == saved.state_dict().keys()
    for name, tensor in saved.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor)
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(ValueError, match="normalizer.safetensors cannot be read"):
        Normalizer.load(path)
    with pytest.raises(FileNotFoundError, match="absent does not exist"):
        Normalizer.load(tmp_path / "absent")


def test_paper_constants_map_the_published_box_to_the_unit_box():
    normalizer = paper_normalizer(benchmark("drivaerml_40k"))
    corners = torch.tensor([[-0.9425, -1.1314, -0.3176], [4.1325, 1.1317, 1.2445]])
    sample = normalizer(TensorDict({"coordinates": corners}))
    np.testing.assert_allclose(sample["coordinates"], [[0, 0, 0], [1, 1, 1]], atol=1e-6)
    fields = normalizer.inverse(torch.tensor([[0.0], [1.0]]))
    np.testing.assert_allclose(fields, [[-229.845718], [-229.845718 + 269.598572]], rtol=1e-6)
    with pytest.raises(ValueError, match="no normalisation constants are published for pipe"):
        paper_normalizer(benchmark("pipe"))


def test_statistics_of_other_channels_are_refused():
    normalizer = paper_normalizer(benchmark("drivaerml_40k"))
    with pytest.raises(ValueError, match=r"statistics for 1 channels met .*\(9, 4\)"):
        normalizer.inverse(torch.zeros(9, 4))
    with pytest.raises(ValueError, match="kinds among"):
        fit_normalizer(grid_reader(np.ones((1, 5, 1))), {"fields": "robust"})


def test_another_safetensors_file_is_not_called_damaged(tmp_path):
    save_file({"fields.shift": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="has the metadata {}.*Normalizer.save wrote") as caught:
        Normalizer.load(tmp_path / "model.safetensors")
    assert "truncated" not in str(caught.value)


def test_ranges_of_shards_are_those_of_whole_cases():
    """Each rank sees a part of every case, one of them nothing of the last."""
    cases = [torch.randn(n, 3) + n for n in (5, 8, 2)]
    parts = [InputRanges() for _ in range(3)]
    for case, points in enumerate(cases):
        for rank, shard in enumerate(points.tensor_split(3)):
            sample = {"coordinates": shard, "globals": torch.tensor([case, -1.0])}
            parts[rank].see(case, TensorDict(sample))
    merged = InputRanges()
    for part in parts:
        merged.merge(part)
    extents = torch.stack([points.amax(0) - points.amin(0) for points in cases]).double()
    expected = {
        "cases": 3,
        "coordinates": {"min": torch.cat(cases).amin(0), "max": torch.cat(cases).amax(0)},
        "extent": {"min": extents.amin(0), "max": extents.amax(0)},
        "globals": {"min": torch.tensor([0.0, -1.0]), "max": torch.tensor([2.0, -1.0])},
    }
    found = merged.summary()
    assert found.keys() == expected.keys() and found["cases"] == 3
    for key in ("coordinates", "extent", "globals"):
        for end in ("min", "max"):
            assert found[key][end] == pytest.approx(expected[key][end].tolist(), rel=1e-6)
