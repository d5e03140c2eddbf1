import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tensordict import TensorDict

from physicsnemo_flarepp.datapipes import Normalizer
from physicsnemo_flarepp.datapipes.normalization import Affine, paper_normalizer
from physicsnemo_flarepp.datapipes.specs import benchmark


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


def test_statistics_of_other_channels_are_refused():
    normalizer = paper_normalizer(benchmark("drivaerml_40k"))
    with pytest.raises(ValueError, match=r"statistics for 1 channels met .*\(9, 4\)"):
        normalizer.inverse(torch.zeros(9, 4))


def test_another_safetensors_file_is_not_called_damaged(tmp_path):
    save_file({"fields.shift": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="has the metadata {}, not of Normalizer.save") as caught:
        Normalizer.load(tmp_path / "model.safetensors")
    assert "truncated" not in str(caught.value)
