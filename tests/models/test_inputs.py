"""Bad input gives an error that names the argument, the value and what was expected."""

import inspect

import pytest
import torch

from physicsnemo_flarepp import FlarePP, MixerBackbone
from physicsnemo_flarepp.mixers import MIXERS

SMALL = {"n_layers": 1, "n_hidden": 16, "n_head": 2, "slice_num": 4}


@pytest.mark.parametrize(
    "options, words",
    [
        ({"n_head": 3}, "divisible by n_head, got 16 and 3"),
        ({"n_layers": 0}, "n_layers must be an integer of at least 1, got 0"),
        ({"slice_num": -2}, "slice_num must be an integer of at least 1, got -2"),
        ({"out_dim": 0}, "out_dim must be an integer of at least 1, got 0"),
        ({"embedding_dim": 0}, "embedding_dim must be an integer of at least 1, got 0"),
        ({"n_hidden": "128"}, "n_hidden must be an integer of at least 1, got '128'"),
        ({"mlp_ratio": 0.0}, "mlp_ratio must be positive, got 0.0"),
        ({"io_layers": -1}, "io_layers must be an integer of at least 0, got -1"),
        ({"n_layers": 2.5}, "n_layers must be an integer of at least 1, got 2.5"),
        ({"ref": 4}, "ref=4 has no effect without unified_pos=True"),
        (
            {"structured_shape": (3, 4), "unified_pos": True, "ref": 2, "embedding_dim": 3},
            r"embedding_dim=3 has no effect with unified_pos=True, .* ref\*\*2 = 4 channels",
        ),
        ({"plain_projections": True, "io_layers": 1}, "io_layers=1 has no effect with plain_proj"),
        ({"ffn_layers": 2, "mlp_ratio": 4}, "mlp_ratio=4 has no effect with ffn_layers=2"),
        ({"dropout": 1.0}, r"dropout must lie in \[0, 1\), got 1.0"),
        ({"act": "gelux"}, "act='gelux' is not an activation"),
        ({"norm": "batch"}, "norm must be one of .*'layer', 'rms'.*, got 'batch'"),
        ({"unified_pos": True}, "unified_pos=True needs structured_shape, got None"),
        ({"structured_shape": (4,)}, r"2 or 3 positive integers, got \(4,\)"),
        ({"structured_shape": (4, 0)}, r"positive integers, got \(4, 0\)"),
        ({"use_te": True}, "use_te=True is not supported"),
    ],
)
def test_constructor(options, words):
    with pytest.raises(ValueError, match=words):
        FlarePP(**{"functional_dim": 3, "out_dim": 1, **SMALL, **options})


def test_unknown_mixer():
    with pytest.raises(ValueError, match="mixer must be one of .*'flarepp'.*, got 'mamba'"):
        MixerBackbone(3, 1, mixer="mamba", **SMALL)


FX, EMBEDDING = torch.randn(2, 5, 3), torch.randn(2, 5, 4)
MASK = torch.ones(2, 5, dtype=torch.bool)


@pytest.mark.parametrize(
    "call, error, words",
    [
        ({"fx": FX[0]}, ValueError, r"fx must have shape \(B, N, 3\), got \(5, 3\)"),
        ({"fx": FX[..., :2]}, ValueError, "fx must have 3 channels .* got 2"),
        ({"fx": FX[:, :4]}, ValueError, r"batch 2 and 5 or 1 rows, got \(2, 4, 3\)"),
        ({"fx": FX[:1]}, ValueError, "embedding must have batch 1"),
        ({"fx": FX.long()}, TypeError, "fx must be a floating tensor, got torch.int64"),
        ({"embedding": None}, ValueError, "embedding is missing: .* embedding_dim=4"),
        ({"embedding": EMBEDDING[0]}, ValueError, r"embedding must have shape \(B, N, 4\)"),
        ({"time": torch.zeros(2)}, ValueError, "time_input=False, time=given"),
        ({"token_mask": MASK[:, :4]}, ValueError, r"\(B, N\) = \(2, 5\), got \(2, 4\)"),
        ({"token_mask": MASK.float()}, TypeError, "token_mask must be boolean"),
        ({"token_mask": ~MASK}, ValueError, r"every token of sample\(s\) \[0, 1\]"),
    ],
)
def test_forward(call, error, words):
    model = FlarePP(3, 1, embedding_dim=4, **SMALL)
    with pytest.raises(error, match=words):
        model(**{"fx": FX, "embedding": EMBEDDING, **call})


def test_missing_and_misshapen_time():
    model = FlarePP(3, 1, time_input=True, **SMALL)
    with pytest.raises(ValueError, match="time_input=True, time=None"):
        model(FX)
    with pytest.raises(ValueError, match=r"time must have shape \(B,\) = \(2,\), got \(2, 1\)"):
        model(FX, time=torch.zeros(2, 1))


def test_embedding_for_a_model_without_one():
    with pytest.raises(ValueError, match="embedding has shape .*embedding_dim=None"):
        FlarePP(3, 1, **SMALL)(FX, EMBEDDING)


def test_grid_of_another_size():
    model = FlarePP(3, 1, structured_shape=(4, 4), **SMALL)
    with pytest.raises(ValueError, match=r"fx must have shape \(B, N, 3\), got \(1, 4, 5, 3\)"):
        model(torch.randn(1, 4, 5, 3))
    with pytest.raises(ValueError, match="16 rows"):
        model(torch.randn(1, 15, 3))


OPTIONS = {
    "seed_norm": (False, {"flarepp"}),
    "shared_projections": (True, {"flarepp"}),
    "anchored_queries": (True, {"flarepp"}),
    "residual_projections": (False, {"flarepp", "flare"}),
    "projection_layers": (2, {"flarepp", "flare"}),
    "synthesis_layers": (2, {"flarepp"}),
    "unit_scale": (True, {"flare"}),
    "orthogonal_slices": (True, {"transolver", "transolver_plus", "transolver3"}),
    "noise_at_evaluation": (True, {"transolver_plus"}),
    "slice_num": (4, set(MIXERS) - {"attention"}),
}


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_acts_on_the_mixers_that_have_it_and_raises_on_others(mixer, option):
    value, having = OPTIONS[option]
    options = {"n_layers": 1, "n_hidden": 16, "n_head": 2, "mixer": mixer}
    if mixer in having:
        assert MixerBackbone(3, 2, **options, **{option: value}).settings[option] == value
        return
    with pytest.raises(ValueError, match=f"{option}={value} has no effect with mixer='{mixer}'"):
        MixerBackbone(3, 2, **options, **{option: value})
    default = inspect.signature(MixerBackbone).parameters[option].default
    for nothing in (default, None):  # as configs of all mixers pass it
        MixerBackbone(3, 2, **options, **{option: nothing})


def test_options_of_other_mixers_raise_on_flarepp():
    for option in ("orthogonal_slices", "noise_at_evaluation"):
        with pytest.raises(ValueError, match=f"{option}=True has no effect with mixer='flarepp'"):
            FlarePP(3, 2, **SMALL, **{option: True})
