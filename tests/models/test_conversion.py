"""Weights of PhysicsNeMo's FLARE family as weights of ours, and back."""

import physicsnemo.models.flare
import pytest
import torch
from physicsnemo.models.flare import FLARE
from physicsnemo.models.transolver import Transolver

from physicsnemo_flarepp import LNO, FlarePP, MixerBackbone
from physicsnemo_flarepp.models import from_physicsnemo, to_physicsnemo
from tests.restated_flarepp import FLARE_PLUS_PLUS

SIZES = {"n_layers": 2, "n_hidden": 16, "n_head": 2, "slice_num": 3}
PLAIN = {
    **SIZES,
    "plain_projections": True,
    "seed_norm": False,
    "act": "gelu_exact",
    "mlp_ratio": 3,
    "embedding_dim": 3,
}
GRID = {"structured_shape": (5, 6), "unified_pos": True, "ref": 2, "embedding_dim": None}


def scramble(model):
    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.double()


def outputs(model, time=False):
    torch.manual_seed(1)
    inputs = [torch.randn(2, 30, width, dtype=torch.float64) for width in (2, 3)]
    inputs = inputs[:1] if model.unified_pos else inputs
    extra = {"time": torch.rand(2, dtype=torch.float64)} if time else {}
    return model(*inputs, **extra).detach()


def same(a, b, time=False):
    # Both hold their unified positions in fp32, and round the distances in different ways.
    tolerance = 1e-6 if a.unified_pos else 1e-12
    a, b = outputs(a, time), outputs(b, time)
    return float((a - b).norm() / b.norm()) < tolerance


@pytest.fixture(params=FLARE_PLUS_PLUS)
def flare_plus_plus(request, monkeypatch):
    cls = FLARE_PLUS_PLUS[request.param]
    monkeypatch.setattr(physicsnemo.models.flare, "FLAREPlusPlus", cls, raising=False)
    return cls


@pytest.mark.parametrize(
    "options",
    [
        {"embedding_dim": 3},
        {"embedding_dim": 3, "attn_scale": 0.7, "act": "silu", "time_input": True},
        GRID,
    ],
)
def test_flare_plus_plus_goes_both_ways(flare_plus_plus, options):
    theirs = scramble(flare_plus_plus(2, 1, **SIZES, **options))
    ours = from_physicsnemo(theirs)
    time = options.get("time_input", False)
    assert type(ours) is FlarePP and same(ours, theirs, time)
    back = to_physicsnemo(ours)
    assert type(back) is flare_plus_plus and same(back, theirs, time)


@pytest.mark.parametrize(
    "options",
    [{"embedding_dim": 3, "mlp_ratio": 2}, {"embedding_dim": 3, "time_input": True}, GRID],
)
def test_flare_goes_both_ways(options):
    theirs = scramble(FLARE(2, 1, **SIZES, **options))
    ours = from_physicsnemo(theirs)
    time = options.get("time_input", False)
    assert type(ours) is MixerBackbone and same(ours, theirs, time)
    back = to_physicsnemo(ours)
    assert type(back) is FLARE and same(back, theirs, time)


@pytest.mark.parametrize("options", [{}, {"shared_projections": True}])
def test_flarepp_with_an_identity_start_becomes_flare_plus_plus(flare_plus_plus, options):
    ours = FlarePP(2, 1, **PLAIN, **options).double()
    with torch.no_grad():
        ours.blocks[0].mixer.seeds.normal_()
    theirs = to_physicsnemo(ours)
    assert same(theirs, ours) and same(from_physicsnemo(theirs), ours)


@pytest.mark.parametrize(
    "change",
    [
        {"plain_projections": False},
        {"norm": "rms"},
        {"dropout": 0.1},
        {"seed_norm": True},
        {"anchored_queries": True},
        {"act": "gelu"},
        {"mlp_ratio": 1.5},
        {"embedding_dim": None},
        {**GRID, "structured_shape": (2, 3, 5), "unified_pos": True},
        {"mixer": "transolver"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_physicsnemo_has_no_model_for_is_refused_by_name(flare_plus_plus, change):
    options = {**PLAIN, **change}
    if "mixer" in change:
        del options["seed_norm"]
    model = MixerBackbone(2, 1, **options)
    name = "unified_pos" if "unified_pos" in change else next(iter(change))
    with pytest.raises(ValueError, match=name):
        to_physicsnemo(model)


def test_keys_and_values_that_flare_cannot_have_are_refused():
    model = scramble(MixerBackbone(2, 1, **{**PLAIN, "seed_norm": True}, mixer="flare"))
    with pytest.raises(ValueError, match="not a map of its keys that all heads share"):
        to_physicsnemo(model)


def test_other_models_are_refused():
    with pytest.raises(ValueError, match="no model for LNO"):
        to_physicsnemo(LNO(2, 1, n_hidden=16, n_head=2, slice_num=3))
    with pytest.raises(ValueError, match="Transolver computes no function of ours"):
        from_physicsnemo(Transolver(2, 1, embedding_dim=3, use_te=False, **SIZES))
    with pytest.raises(ValueError, match="FlarePP computes no function of ours"):
        from_physicsnemo(FlarePP(2, 1, **SIZES))
    with pytest.raises(ValueError, match=r"dropout is 0\.1, expected 0\.0"):
        from_physicsnemo(FLARE(2, 1, embedding_dim=3, dropout=0.1, **SIZES))


@pytest.mark.skipif("real" in FLARE_PLUS_PLUS, reason="this PhysicsNeMo has FLAREPlusPlus")
def test_a_physicsnemo_without_flare_plus_plus_is_named():
    with pytest.raises(ImportError, match=r"PhysicsNeMo 2.* has no FLAREPlusPlus"):
        to_physicsnemo(FlarePP(2, 1, **PLAIN))
