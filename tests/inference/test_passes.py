"""A mixer in stages, on parts of the tokens, is the mixer on all of them."""

import pytest
import torch
from streaming_cases import BATCH, MODELS, TOKENS, make_model, make_weights, relative_error

from physicsnemo_flarepp.mixers import AttentionMixer


def in_stages(mixer, x, weights, bounds):
    parts = [slice(a, b) for a, b in zip(bounds, bounds[1:], strict=False)]
    latents = ()
    while len(latents) < mixer.n_gathers:
        partials = [
            mixer.gather(x[:, p], latents, None if weights is None else weights[:, p])
            for p in parts
        ]
        latents += (mixer.finish(mixer.merge(partials), latents),)
    return torch.cat([mixer.scatter(x[:, p], latents) for p in parts], 1)


@pytest.mark.parametrize("kind", ["plain", "masked", "weighted"])
@pytest.mark.parametrize("name", MODELS)
def test_stages_over_parts_equal_forward(name, kind):
    mixer = make_model(name).blocks[0].mixer
    x = torch.randn(BATCH, TOKENS, mixer.dim, dtype=torch.float64)
    # One part is empty, and one sample has no real token in the first part.
    mask = torch.arange(TOKENS)[None] >= torch.tensor([[0], [20]])
    weights = {"plain": None, "masked": mask, "weighted": make_weights()}[kind]
    expected = mixer(x, weights)
    assert relative_error(in_stages(mixer, x, weights, (0, 20, 20, 21, TOKENS)), expected) < 1e-12


def test_attention_has_no_stages():
    mixer = AttentionMixer(8, 2)
    assert mixer.n_gathers == 0
    with pytest.raises(NotImplementedError, match="AttentionMixer cannot run in stages"):
        mixer.gather(torch.zeros(1, 3, 8), ())
    with pytest.raises(NotImplementedError, match="AttentionMixer cannot run in stages"):
        mixer.scatter(torch.zeros(1, 3, 8), ())
