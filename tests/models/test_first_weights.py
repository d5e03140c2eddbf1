"""What new models start from: as published bit for bit, or balanced at any size."""

import hashlib

import pytest
import torch
from torch import nn

from physicsnemo_flarepp import FlarePP, MixerBackbone

# Of all weights, drawn with seed 0 by the version that published the first results.
DIGESTS = {
    "flarepp": "f6d32b5e5c98fa66",
    "flare": "b3237db48f4eee52",
    "attention": "c019358ef4c24837",
    "transolver": "72ad896a0c52d457",
    "transolver_plus": "f2424b2fb0668e66",
    "transolver3": "91c324ecb29cd20f",
}


def digest(model):
    weights = (p.detach().numpy().tobytes() for p in model.parameters())
    return hashlib.sha256(b"".join(weights)).hexdigest()[:16]


@pytest.mark.parametrize("mixer", DIGESTS)
def test_the_papers_weights_are_bit_for_bit_those_of_the_published_version(mixer):
    torch.manual_seed(0)
    sizes = {"n_layers": 2, "n_hidden": 16, "n_head": 2}
    sizes |= {} if mixer == "attention" else {"slice_num": 4}
    assert digest(MixerBackbone(3, 2, mixer=mixer, init="paper", **sizes)) == DIGESTS[mixer]


def test_the_papers_weights_are_all_drawn_from_one_normal_distribution():
    model = FlarePP(3, 2, n_layers=2, n_hidden=16, n_head=2, slice_num=4, init="paper")
    torch.manual_seed(1)
    model.reset_parameters()
    torch.manual_seed(1)
    drawn = {}
    parts = [model, *(block.mixer for block in model.blocks)]
    for part in parts:
        for layer in part.modules():
            if isinstance(layer, nn.Linear):
                drawn[layer.weight] = torch.empty_like(layer.weight).normal_(0, 0.02)
        if part is not model:
            drawn[part.seeds] = torch.empty_like(part.seeds).normal_(0, 0.02)
    for block in model.blocks:
        drawn[block.mixer.project.weight] += torch.eye(16).repeat(4, 1)
    for name, parameter in model.named_parameters():
        if parameter in drawn:
            assert torch.equal(parameter, drawn[parameter]), name
        else:  # norms and biases
            assert torch.equal(parameter, torch.full_like(parameter, float("bias" not in name)))


def scale(x):
    return x.detach().square().mean().sqrt().item()


@pytest.mark.parametrize("mixer", DIGESTS)
@pytest.mark.parametrize(
    "channels, width, depth, latents",
    [(1, 64, 2, 8), (64, 64, 2, 128), (3, 32, 16, 32), (8, 512, 1, 64), (3, 256, 4, 16)],
)
def test_balanced_models_keep_the_scale_of_their_inputs(mixer, channels, width, depth, latents):
    torch.manual_seed(0)
    sizes = {"n_layers": depth, "n_hidden": width}
    sizes |= {} if mixer == "attention" else {"slice_num": latents}
    model = MixerBackbone(channels, 3, mixer=mixer, **sizes)
    entering = leaving = model.embed(torch.randn(2, 100, channels))
    for block in model.blocks:
        leaving = block(leaving)
    prediction = model.read_out(leaving)
    assert 1 < scale(entering) < 2.5 and 1 < scale(leaving) < 2.5
    assert 0.2 < scale(leaving - entering) / scale(entering) < 1
    assert scale(prediction) < 0.5  # of the standard deviation of the fields: next to their mean
    (prediction - torch.randn(2, 100, 3)).square().mean().backward()
    gradients = [
        torch.cat([p.grad.flatten() for p in block.parameters()]).norm() for block in model.blocks
    ]
    assert max(gradients) < 2.5 * min(gradients)  # no block waits for the others


def test_in_the_papers_models_the_first_mixer_drowns_its_tokens():
    # The cause of their slow start: the mean over tokens, added to all, is far above the stream.
    torch.manual_seed(0)
    x = torch.rand(1, 200, 3)
    shares = {}
    for init in ("paper", "balanced"):
        model = FlarePP(3, 1, n_layers=1, n_hidden=64, init=init)
        stream = model.embed(x)
        block = model.blocks[0]
        added = block.mixer(block.norm_mixer(stream))
        shares[init] = (
            added.mean(1).norm() / (stream - stream.mean(1)).square().sum(2).mean().sqrt()
        ).item()
    assert shares["paper"] > 10 and shares["balanced"] < 3


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="init must be one of balanced, paper, got 'papers'"):
        FlarePP(2, 1, init="papers")
