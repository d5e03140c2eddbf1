import inspect
import itertools

import pytest
import torch
from physicsnemo.models.flare import FLARE
from physicsnemo.models.transolver import Transolver

from physicsnemo_flarepp import FlarePP, MixerBackbone
from physicsnemo_flarepp.mixers import MIXERS
from physicsnemo_flarepp.models.layers import InProjection
from physicsnemo_flarepp.models.token_model import unified_positions

SMALL = {"n_layers": 2, "n_hidden": 32, "n_head": 4, "slice_num": 6}


def small(cls=FlarePP, **options):
    if options.get("mixer") == "attention":
        options["slice_num"] = None
    return cls(**{"functional_dim": 3, "out_dim": 2, **SMALL, **options}).double()


def f64(*shape):
    return torch.randn(*shape, dtype=torch.float64)


@pytest.mark.parametrize("mixer", MIXERS)
def test_padded_batch_equals_its_samples_one_by_one(mixer):
    model = small(MixerBackbone, mixer=mixer, embedding_dim=2).eval()
    lengths = (11, 4, 1)
    samples = [(f64(1, n, 3), f64(1, n, 2)) for n in lengths]
    fx, embedding = torch.full((3, 11, 3), torch.nan).double(), torch.full((3, 11, 2), torch.nan)
    embedding = embedding.double()
    mask = torch.zeros(3, 11, dtype=torch.bool)
    for i, (n, (a, b)) in enumerate(zip(lengths, samples, strict=True)):
        fx[i, :n], embedding[i, :n], mask[i, :n] = a[0], b[0], True
    y = model(fx, embedding, token_mask=mask)
    for i, (n, sample) in enumerate(zip(lengths, samples, strict=True)):
        torch.testing.assert_close(y[i : i + 1, :n], model(*sample), rtol=0, atol=1e-12)
    assert (y[~mask] == 0).all()
    y.square().sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


def test_one_row_of_fx_equals_the_row_repeated():
    model = small(embedding_dim=2)
    fx, embedding = f64(2, 1, 3), f64(2, 9, 2)
    torch.testing.assert_close(
        model(fx, embedding), model(fx.expand(-1, 9, -1), embedding), rtol=0, atol=1e-13
    )


def test_one_row_of_fx_is_never_expanded_before_the_first_hidden_layer(monkeypatch):
    widths = []
    linear = torch.nn.functional.linear

    def spy(x, weight, bias=None):
        widths.append((x.shape[1], x.shape[2]))
        return linear(x, weight, bias)

    projection = InProjection(5, 8, 0, "gelu")
    monkeypatch.setattr(torch.nn.functional, "linear", spy)
    projection(torch.randn(1, 1, 3), torch.randn(1, 9, 2))
    assert widths == [(9, 2), (1, 3), (9, 8)]


def test_grid_layouts_agree_with_flat_tokens():
    model = small(embedding_dim=2, structured_shape=[3, 4])
    fx, embedding = f64(2, 3, 4, 3), f64(2, 3, 4, 2)
    on_grid = model(fx, embedding)
    assert on_grid.shape == (2, 3, 4, 2)
    flat = model(fx.flatten(1, 2), embedding.flatten(1, 2))
    assert torch.equal(on_grid.flatten(1, 2), flat)
    one_row = model(fx[:, 0, :1], embedding)  # one row of fx beside a grid embedding
    assert one_row.shape == (2, 3, 4, 2)


def test_unified_positions_agree_with_physicsnemo():
    theirs = Transolver(1, 1, structured_shape=(5, 7), unified_pos=True, ref=4, use_te=False)
    torch.testing.assert_close(unified_positions((5, 7), 4), theirs.embedding[0])
    assert unified_positions((3, 4, 5), 2).shape == (60, 8)


@pytest.mark.parametrize("shape", [(4, 5), (2, 3, 4)])
def test_unified_positions_replace_the_embedding(shape):
    model = small(structured_shape=shape, unified_pos=True, ref=3)
    assert model(f64(2, *shape, 3)).shape == (2, *shape, 2)
    assert not any("positions" in key for key in model.state_dict())


def test_time_changes_the_prediction_and_is_per_sample():
    model = small(time_input=True)
    fx = f64(1, 5, 3).expand(2, -1, -1)
    y = model(fx, time=torch.tensor([0.1, 0.9], dtype=torch.float64))
    assert not torch.allclose(y[0], y[1])
    torch.testing.assert_close(y[:1], model(fx[:1], time=torch.tensor([0.1]).double()))


def test_checkpointed_blocks_give_the_same_gradients():
    torch.manual_seed(1)
    models = [small(checkpoint_blocks=flag) for flag in (False, True)]
    models[1].load_state_dict(models[0].state_dict())
    fx = f64(2, 7, 3)
    for model in models:
        model(fx).square().sum().backward()
    for a, b in zip(*(m.parameters() for m in models), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=0, atol=1e-12)
    assert FlarePP(3, 1, activation_checkpointing=True, **SMALL).checkpoint_blocks


@pytest.mark.parametrize(
    "norm, seed_norm, shared, anchored",
    list(itertools.product(["layer", "rms"], [True, False], [True, False], [True, False])),
)
def test_every_option_trains_every_parameter(norm, seed_norm, shared, anchored):
    model = small(
        norm=norm, seed_norm=seed_norm, shared_projections=shared, anchored_queries=anchored
    )
    model(f64(2, 9, 3)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().max() > 1e-12, name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("options", [{}, {"anchored_queries": True}, {"norm": "rms"}], ids=str)
def test_autocast_follows_single_precision_with_finite_gradients(dtype, options):
    model = small(**options).float()
    fx = torch.randn(2, 200, 3)
    with torch.autocast("cpu", dtype):
        y = model(fx)
    reference = model(fx)
    assert y.dtype == dtype
    assert (y.float() - reference).abs().max() < 0.05 * reference.abs().max()
    y.float().square().mean().backward()
    assert all(torch.isfinite(p.grad).all() and p.grad.dtype == p.dtype for p in model.parameters())


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_model_cast_to_a_dtype_computes_in_it(mixer, dtype):
    model = small(MixerBackbone, mixer=mixer).to(dtype)
    y = model(torch.randn(1, 40, 3, dtype=dtype))
    assert y.dtype == dtype and torch.isfinite(y).all()


def test_repeated_runs_are_bit_equal():
    model, fx = small().float(), torch.randn(2, 300, 3)
    runs = []
    for _ in range(2):
        model.zero_grad()
        y = model(fx)
        y.square().sum().backward()
        runs.append([y, *(p.grad.clone() for p in model.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_biases_start_at_zero_and_projections_at_the_identity_if_residual():
    model = FlarePP(3, 1, n_layers=1)
    for rows in model.blocks[0].mixer.project.weight.split(128):
        assert (rows - torch.eye(128)).std().item() < 0.03
    assert all((p == 0).all() for n, p in model.named_parameters() if n.endswith("bias"))
    plain = FlarePP(3, 1, n_layers=1, residual_projections=False, init="paper").blocks[0].mixer
    assert plain.project.weight.diagonal().abs().max() < 0.15


@pytest.mark.parametrize("mixer", MIXERS)
def test_only_the_weights_of_linear_layers_are_matrices(mixer):
    # Optimisers such as Muon treat every 2-D parameter as a matrix.
    options = {"anchored_queries": True} if mixer == "flarepp" else {}
    model = small(MixerBackbone, mixer=mixer, **options)
    weights = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Linear)}
    assert all(p.ndim != 2 or id(p) in weights for p in model.parameters())
    assert any(p.ndim == 3 for p in model.parameters()) == (
        mixer in ("flarepp", "flare", "transolver3")
    )


def test_names_of_activations_ignore_case():
    assert repr(small(act="GELU")) == repr(small(act="gelu"))


@pytest.mark.parametrize("act, approximate", [("gelu", "tanh"), ("gelu_exact", "none")])
def test_gelu_is_the_tanh_approximation_everywhere_unless_exact_is_asked_for(act, approximate):
    gelus = [m for m in small(act=act).modules() if isinstance(m, torch.nn.GELU)]
    assert len(gelus) == 1 + 2 + 3 + SMALL["n_layers"]  # in, its layers, out, feed-forwards
    assert {gelu.approximate for gelu in gelus} == {approximate}


def test_backbones_differ_in_the_mixer_alone():
    def outside(model):
        named = model.named_parameters()
        return {name: p.shape for name, p in named if ".mixer." not in name}

    shapes = [outside(small(MixerBackbone, mixer=mixer)) for mixer in MIXERS]
    assert all(s == shapes[0] for s in shapes)


def test_keywords_of_physicsnemos_flare_recipe_construct_flarepp():
    keywords = {  # the model block of its flare_surface.yaml
        "out_dim": 4,
        "functional_dim": 3,
        "embedding_dim": 6,
        "n_layers": 12,
        "n_hidden": 256,
        "dropout": 0.0,
        "n_head": 8,
        "act": "gelu",
        "mlp_ratio": 4,
        "slice_num": 256,
        "unified_pos": False,
        "structured_shape": None,
        "use_te": False,
        "activation_checkpointing": False,
    }
    model = FlarePP(**keywords)
    assert len(model.blocks) == 12
    assert model.blocks[0].mixer.seeds.shape == (8, 256, 32)
    assert model.blocks[0].ffn[0].out_features == 1024


@pytest.mark.parametrize(
    "share, expected",
    [(True, [0, 1, 2, 3]), (0.5, [1, 3]), (0.25, [3]), (0.0, []), (1.0, [0, 1, 2, 3])],
)
@pytest.mark.parametrize(
    "name", ["checkpoint_blocks", "activation_checkpointing", "checkpointing_ratio"]
)
def test_a_share_of_the_blocks_is_recomputed(name, share, expected):
    model = FlarePP(3, 1, **(SMALL | {"n_layers": 4}), **{name: share})
    runs = []
    for number, block in enumerate(model.blocks):
        block.register_forward_pre_hook(lambda *_, number=number: runs.append(number))
    x = torch.rand(1, 9, 3)
    model(x).sum().backward()
    assert sorted(set(n for n in runs if runs.count(n) == 2)) == expected
    assert all(p.grad is not None for p in model.parameters())
    with pytest.raises(ValueError, match="share of the blocks, 0 to 1"):
        FlarePP(3, 1, **SMALL, **{name: 1.5})


def test_configs_of_the_transolver_and_of_the_coming_flare_construct_ours(tmp_path):
    model = MixerBackbone(3, 1, **SMALL, mixer="transolver", plus=False)
    with pytest.raises(ValueError, match="transolver_plus"):
        MixerBackbone(3, 1, **SMALL, mixer="transolver", plus=True)
    names = list(inspect.signature(FlarePP).parameters)
    flare = list(inspect.signature(FLARE).parameters)
    assert names[: len(flare)] == flare and names[15] == "activation_checkpointing"
    model.save(str(tmp_path / "model.mdlus"))
    again = MixerBackbone.from_checkpoint(
        str(tmp_path / "model.mdlus"), override_args={"checkpoint_blocks": True}
    )
    assert again.checkpoint_blocks and not model.checkpoint_blocks
    assert model.meta.onnx


def test_converted_flares_of_0_3_1_still_load():
    """They have seed_norm=False, which says nothing about FLARE."""
    options = {"plain_projections": True, "residual_projections": False, "seed_norm": False}
    assert MixerBackbone(3, 1, **SMALL, mixer="flare", **options).n_hidden
    with pytest.raises(ValueError, match="seed_norm"):
        MixerBackbone(3, 1, **SMALL, mixer="flare", seed_norm=False)


def test_constructor_and_forward_accept_all_that_flare_does():

    for ours, theirs in ((FlarePP, FLARE), (FlarePP.forward, FLARE.forward)):
        missing = set(inspect.signature(theirs).parameters) - set(
            inspect.signature(ours).parameters
        )
        assert not missing
