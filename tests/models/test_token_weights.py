"""Tokens as quadrature points: the measure counts, and not how many tokens carry it."""

import copy
import math

import numpy as np
import pytest
import torch

from physicsnemo_flarepp import MixerBackbone
from physicsnemo_flarepp.mixers import MIXERS

SMALL = {"n_layers": 2, "n_hidden": 32, "n_head": 4, "slice_num": 6, "embedding_dim": 2}
N = 23
VARIANTS = {
    **{name: {"mixer": name} for name in MIXERS},
    "attention": {"mixer": "attention", "slice_num": None},
    "anchored": {"anchored_queries": True},
    "shared": {"shared_projections": True},
    "rms": {"norm": "rms"},
    "plain": {"seed_norm": False, "residual_projections": False},
}


def make_model(name="flarepp", **options):
    torch.manual_seed(0)
    model = MixerBackbone(3, 2, **{**SMALL, **VARIANTS[name], **options})
    for parameter in model.parameters():  # away from the zeros and ones of the initialisation
        torch.nn.init.normal_(parameter, std=0.3)
    return model.double().eval()


def make_inputs(n=N, batch=2):
    torch.manual_seed(1)
    fx, embedding = torch.randn(batch, n, 3).double(), torch.randn(batch, n, 2).double()
    weights = torch.exp(2 * torch.randn(batch, n).double())
    return {"fx": fx, "embedding": embedding, "token_weights": weights}


def split_token(inputs, index, shares):
    """Replace a token by as many as there are shares, which share its weight."""
    counts = torch.ones(inputs["fx"].shape[1], dtype=torch.long)
    counts[index] = len(shares)
    split = {key: value.repeat_interleave(counts, 1) for key, value in inputs.items()}
    shares = torch.tensor(shares, dtype=torch.float64)
    split["token_weights"][:, index : index + len(shares)] *= shares
    return split


@pytest.mark.parametrize("shares", [[0.5, 0.5], [0.7, 0.2, 0.1], [0.999, 0.001], [1.0, 0.0]])
@pytest.mark.parametrize("name", VARIANTS)
def test_splitting_a_token_changes_no_other_token(name, shares):
    model, inputs = make_model(name), make_inputs()
    whole = model(**inputs)
    for index in (0, 11, int(inputs["token_weights"][0].argmax())):
        y = model(**split_token(inputs, index, shares))
        kept = torch.cat((y[:, : index + 1], y[:, index + len(shares) :]), 1)
        torch.testing.assert_close(kept, whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", VARIANTS)
def test_without_weights_splitting_a_token_changes_the_others(name):
    """What the test above shows is not shown by weights that do nothing."""
    model, inputs = make_model(name), make_inputs()
    split = split_token(inputs, 5, [0.5, 0.5])
    del split["token_weights"], inputs["token_weights"]
    assert (model(**split)[:, :5] - model(**inputs)[:, :5]).abs().max() > 1e-4


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("dtype, bound", [(torch.float64, 1e-12), (torch.float32, 2e-6)])
def test_a_factor_on_the_weights_of_a_sample_changes_nothing(name, dtype, bound):
    model = make_model(name).to(dtype)
    inputs = {key: value.to(dtype) for key, value in make_inputs().items()}
    y = model(**inputs)
    for factors in ([2.0**-100, 2.0**60], [1e-30, 3.0], [1e-37, 1e30]):
        scaled = inputs["token_weights"].double() * torch.tensor(factors).double()[:, None]
        again = model(**{**inputs, "token_weights": scaled.to(dtype)})
        assert (again - y).norm() < bound * y.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_factor_changes_nothing_under_autocast_and_in_half_models(dtype):
    model, inputs = make_model().float(), make_inputs()
    inputs = {key: value.float() for key, value in inputs.items()}
    half = copy.deepcopy(model).to(dtype)
    small = {**inputs, "token_weights": inputs["token_weights"] * 2.0**-80}
    with torch.autocast("cpu", dtype):
        assert torch.equal(model(**small), model(**inputs))
    rows = {key: inputs[key].to(dtype) for key in ("fx", "embedding")}
    a, b = (half(**rows, token_weights=i["token_weights"]) for i in (inputs, small))
    assert a.dtype == dtype and torch.equal(a, b) and torch.isfinite(a).all()


@pytest.mark.parametrize("name", [name for name in VARIANTS if "transolver" not in name])
def test_weights_of_one_are_no_weights(name):
    model, inputs = make_model(name), make_inputs()
    ones = torch.full_like(inputs.pop("token_weights"), 0.3)
    y = model(**inputs)
    torch.testing.assert_close(model(**inputs, token_weights=ones), y, rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in VARIANTS if "transolver" in name])
def test_weights_of_one_are_no_weights_to_the_epsilon_of_slices(name):
    """Their epsilon counts in tokens of which there are 10,000: equal there, close elsewhere.

    With epsilon in tokens, splitting invariance and equality at every N exclude each other. Close
    is said of slices that are used: a slice of less weight than epsilon is one to damp.
    """
    model = make_model(name, n_layers=1)
    for n, bound in ((10_000, 1e-12), (500, 1e-5), (40_000, 1e-6)):
        if n == 500:  # slices of a fresh model are used alike
            model.reset_parameters()
        inputs = make_inputs(n, 1)
        ones = torch.ones_like(inputs.pop("token_weights"))
        y = model(**inputs)
        assert (model(**inputs, token_weights=ones) - y).norm() < bound * y.norm()


@pytest.mark.parametrize("name", VARIANTS)
def test_a_weight_of_zero_is_a_masked_token(name):
    model, inputs = make_model(name), make_inputs()
    mask = torch.ones(2, N, dtype=torch.bool)
    mask[0, 17:] = mask[1, 3:8] = False
    masked = model(**inputs, token_mask=mask)
    inputs["token_weights"][~mask] = 0.0
    inputs["fx"][~mask] = torch.nan  # padding may hold anything
    inputs["embedding"][~mask] = torch.inf
    y = model(**inputs)
    assert torch.equal(y, masked) and (y[~mask] == 0).all() and (y[mask] != 0).all()
    y.square().sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


def test_masked_tokens_may_have_any_weight():
    model, inputs = make_model(), make_inputs()
    mask = torch.arange(N)[None] < torch.tensor([[N], [9]])
    y = model(**inputs, token_mask=mask)
    inputs["token_weights"][~mask] = math.nan
    assert torch.equal(model(**inputs, token_mask=mask), y)


def test_a_tiny_positive_weight_is_no_padding():
    model, inputs = make_model().float(), make_inputs()
    inputs = {key: value.float() for key, value in inputs.items()}
    inputs["token_weights"][:] = 1e30
    inputs["token_weights"][:, 4] = 1e-45
    assert (model(**inputs)[:, 4] != 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["flarepp", "attention", "transolver", "transolver3"])
def test_gradients_are_those_of_finite_differences_and_weights_get_none(name):
    model = make_model(
        name, n_layers=1, n_hidden=8, n_head=2, slice_num=None if name == "attention" else 3
    )
    inputs = make_inputs(5)
    weights = inputs["token_weights"].requires_grad_()
    rows = [inputs[key].requires_grad_() for key in ("fx", "embedding")]
    assert torch.autograd.gradcheck(lambda *a: model(*a, token_weights=weights), rows)
    model(*rows, token_weights=weights).sum().backward()
    assert weights.grad is None


def weighted_softmax(scores, weights):
    terms = np.exp(scores) * weights
    return terms / terms.sum(-1, keepdims=True)


def test_both_gathers_of_flarepp_are_explicit_weighted_softmaxes():
    mixer = make_model("plain").blocks[0].mixer
    x, weights = torch.randn(1, N, 32).double(), torch.rand(1, N).double()
    parts = mixer.project(x)[0].detach().numpy().reshape(N, 4, 4, 8).transpose(1, 2, 0, 3)
    source_key, source_value, k, v = parts  # each (H, N, D)
    w = weights.numpy()
    seeds = mixer.seeds.detach().numpy()
    q = weighted_softmax(seeds @ source_key.transpose(0, 2, 1) / 8**0.5, w) @ source_value
    scores = q @ k.transpose(0, 2, 1) / 8**0.5
    z = weighted_softmax(scores, w) @ v
    spread = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    y = torch.from_numpy((spread.transpose(0, 2, 1) @ z).transpose(1, 0, 2).reshape(1, N, 32))
    torch.testing.assert_close(mixer(x, weights), mixer.out(y), rtol=0, atol=1e-12)


@pytest.mark.parametrize("options", [{"checkpoint_blocks": True}, {"structured_shape": (4, 5)}])
def test_recomputed_blocks_and_grids(options):
    plain, model = make_model(), make_model(**options)
    inputs = make_inputs(20)
    expected = plain(**inputs)
    if "structured_shape" in options:
        for key in ("fx", "embedding"):
            inputs[key] = inputs[key].unflatten(1, (4, 5))
    y = model(**inputs)
    torch.testing.assert_close(y.reshape(2, 20, 2), expected, rtol=0, atol=1e-14)
    y.sum().backward()
    expected.sum().backward()
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=0, atol=1e-12)


def test_one_row_of_fx_is_spread_over_weighted_tokens():
    model, inputs = make_model(), make_inputs()
    row = inputs.pop("fx")[:, :1]
    y = model(row, **inputs)
    torch.testing.assert_close(y, model(row.expand(-1, N, -1), **inputs), rtol=0, atol=1e-12)


@pytest.mark.slow
def test_exported_program_takes_weights():
    model, tokens = make_model(n_layers=1), torch.export.Dim("tokens", min=2)
    dynamic = {key: {1: tokens} for key in make_inputs()}
    program = torch.export.export(model, (), make_inputs(), dynamic_shapes=dynamic)
    inputs = make_inputs(31)
    torch.testing.assert_close(program.module()(**inputs), model(**inputs))


def bad_weights(index, value):
    weights = torch.ones(2, N)
    weights[index] = value
    return weights


@pytest.mark.parametrize(
    "weights, error, words",
    [
        (bad_weights((1, 7), -1.0), ValueError, "token_weights holds -1.0 at index 7 of sample 1"),
        (bad_weights((0, 2), math.nan), ValueError, "holds nan at index 2 of sample 0"),
        (bad_weights((1, 0), math.inf), ValueError, "holds inf at index 0 of sample 1"),
        (bad_weights(1, 0.0), ValueError, "token_weights of sample 1 are 0 for every token"),
        (torch.ones(2, N).double() * 1e308, ValueError, "sample 0 add up to inf; rescale"),
        (torch.ones(2, N - 1), ValueError, r"token_weights must .* = \(2, 23\), got \(2, 22\)"),
        (torch.ones(N), ValueError, r"token_weights must .* = \(2, 23\), got \(23,\)"),
        (torch.ones(2, N, 1), ValueError, r"token_weights must .* got \(2, 23, 1\)"),
        (torch.ones(2, N).long(), TypeError, "token_weights must be of a floating dtype"),
    ],
)
def test_bad_weights_are_named(weights, error, words):
    inputs = {**make_inputs(), "token_weights": weights}
    with pytest.raises(error, match=words):
        make_model()(**inputs)


@pytest.mark.parametrize("value", [-1e-6, math.nan, math.inf])
@pytest.mark.parametrize("name", ["flarepp", "transolver"])
def test_values_that_nobody_reads_still_give_nan(name, value, monkeypatch):
    """As in compiled models, which skip the checks."""
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    inputs = make_inputs()
    inputs["token_weights"][1, 3] = value
    y = make_model(name)(**inputs)
    assert torch.isfinite(y[0]).all() and torch.isnan(y[1]).any(-1).all()


def test_weights_of_a_call_without_tokens_are_named():
    with pytest.raises(ValueError, match="token_weights of sample 0 are 0 .* it has no token"):
        make_model()(**make_inputs(0))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["flarepp", "flare", "attention", "transolver", "transolver3"])
def test_a_forward_pass_on_cuda_reads_no_value(name, fake_cuda_autocast):
    """A fake CUDA tensor has no values, so reading one, which would wait for the GPU, raises."""
    model = MixerBackbone(3, 2, **{**SMALL, **VARIANTS[name]})
    fx, embedding = torch.empty(2, N, 3), torch.empty(2, N, 2)
    mask, weights = torch.empty(2, N, dtype=torch.bool), torch.empty(2, N)
    for weighting in ({"token_weights": weights}, {"token_mask": mask, "token_weights": weights}):
        y = model(fx, embedding, **weighting)
        assert y.shape == (2, N, 2) and y.device.type == "cuda"
        with pytest.raises(RuntimeError):
            bool(y.sum() > 0)
    with pytest.raises(ValueError, match="token_weights must have shape"):
        model(fx, embedding, token_weights=weights[:, 1:])
    with pytest.raises(ValueError, match="fx, token_weights must be on one device"):
        model(fx, embedding, token_weights=torch.ones(2, N, device="cpu"))
