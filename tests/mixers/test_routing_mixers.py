import itertools

import numpy as np
import pytest
import torch

from physicsnemo_flarepp.mixers import MIXERS, FlareMixer, FlarePPMixer
from physicsnemo_flarepp.ops import encode
from tests.mixers.references import flare, flarepp

DIM, HEADS, M, N = 16, 2, 3, 23


def scattered(mixer):
    """Move every parameter off its special initial value."""
    with torch.no_grad():
        for p in mixer.parameters():
            p.copy_(torch.randn_like(p) * 0.5)
    return mixer.double()


def build(name, **options):
    mixer = MIXERS[name](DIM, HEADS, **({} if name == "attention" else {"slice_num": M}), **options)
    return scattered(mixer).eval()


FLAGS = ("seed_norm", "shared_projections", "anchored_queries")
VARIANTS = [
    dict(zip(FLAGS, flags, strict=True)) for flags in itertools.product([True, False], repeat=3)
]
DEEP = [
    {"projection_layers": 2},
    {"synthesis_layers": 2},
    {"projection_layers": 1, "synthesis_layers": 2, "anchored_queries": True},
]


@pytest.mark.parametrize("options", [*VARIANTS, *DEEP], ids=str)
def test_flarepp_equals_explicit_softmaxes_in_fp64(options):
    mixer = build("flarepp", **options)
    x = torch.randn(1, N, DIM, dtype=torch.float64)
    flags = ({"seed_norm": True} | options).get
    _, expected = flarepp(mixer, x[0].numpy(), *(flags(name, False) for name in FLAGS))
    np.testing.assert_allclose(mixer(x)[0].detach().numpy(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("options", [{}, {"projection_layers": 4, "unit_scale": True}], ids=str)
def test_flare_equals_explicit_softmaxes_in_fp64(options):
    mixer = build("flare", **options)
    x = torch.randn(1, N, DIM, dtype=torch.float64)
    _, expected = flare(mixer, x[0].numpy(), 1 if options else None)
    np.testing.assert_allclose(mixer(x)[0].detach().numpy(), expected, rtol=0, atol=1e-12)


def test_a_mixer_without_a_part_refuses_its_depth():
    with pytest.raises(ValueError, match="synthesis_layers=1 has no effect with shared_projec"):
        build("flarepp", synthesis_layers=1, shared_projections=True)
    with pytest.raises(ValueError, match="residual_projections=False, but projections with layers"):
        build("flare", projection_layers=1, residual_projections=False)


@pytest.mark.parametrize("reference, name", [(flare, "flare"), (flarepp, "flarepp")])
def test_routing_matrix_of_each_head_has_rank_at_most_the_latents(reference, name):
    matrix, _ = reference(build(name), np.random.default_rng(0).normal(size=(N, DIM)))
    values = np.linalg.svd(matrix, compute_uv=False)
    assert (values[:, M:] < 1e-13).all() and (values[:, M - 1] > 1e-6).all()


@pytest.mark.parametrize("name", MIXERS)
def test_gradients_equal_finite_differences(name):
    mixer = build(name)
    x = torch.randn(1, 5, DIM, dtype=torch.float64, requires_grad=True)
    names, parameters = zip(*mixer.named_parameters(), strict=True)

    def loss(x, *parameters):
        weights = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(mixer, weights, (x,)).square().sum()

    assert torch.autograd.gradcheck(loss, (x, *parameters), fast_mode=True)


@pytest.mark.parametrize("name", MIXERS)
def test_permuting_tokens_permutes_the_output(name):
    mixer = build(name)
    x = torch.randn(2, N, DIM, dtype=torch.float64)
    order = torch.randperm(N)
    torch.testing.assert_close(mixer(x)[:, order], mixer(x[:, order]), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", MIXERS)
def test_masked_tokens_influence_no_other(name):
    mixer = build(name)
    x = torch.randn(2, N, DIM, dtype=torch.float64)
    mask = torch.ones(2, N, dtype=torch.bool)
    mask[1, 9:] = False
    y = mixer(x, mask)
    torch.testing.assert_close(y[:1], mixer(x[:1]), rtol=0, atol=1e-12)
    torch.testing.assert_close(y[1:, :9], mixer(x[1:, :9]), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", MIXERS)
def test_no_tokens_give_no_output(name):
    assert build(name)(torch.zeros(2, 0, DIM, dtype=torch.float64)).shape == (2, 0, DIM)


def queries_used(mixer, x, monkeypatch):
    """The queries of the last gather, as the mixer passes them on."""
    seen = []
    module = __import__(type(mixer).__module__, fromlist=["encode"])

    def spy(q, *args, **kwargs):
        seen.append(q.detach())
        return encode(q, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(module, "encode", spy)
        mixer(x)
    return seen[-1]


@pytest.mark.parametrize("cls, dynamic", [(FlarePPMixer, True), (FlareMixer, False)])
def test_queries_follow_the_input_for_flarepp_only(cls, dynamic, monkeypatch):
    mixer = scattered(cls(DIM, HEADS, M))
    a, b = (queries_used(mixer, torch.randn(1, N, DIM).double(), monkeypatch) for _ in range(2))
    assert a.shape == (1, HEADS, M, DIM // HEADS)
    assert torch.equal(a, b) != dynamic


def test_parameter_count_of_the_options():
    count = {
        "plain": lambda m: 4 * DIM * (DIM + 1),
        "shared_projections": lambda m: 2 * DIM * (DIM + 1),
        "anchored_queries": lambda m: 3 * DIM * (DIM + 1),
    }
    for option, expected in count.items():
        mixer = FlarePPMixer(DIM, HEADS, M, **({} if option == "plain" else {option: True}))
        assert sum(p.numel() for p in mixer.project.parameters()) == expected(mixer)


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_cuda_autocast_gives_attention_one_dtype(options, fake_cuda_autocast):
    mixer = FlarePPMixer(DIM, HEADS, M, **options)
    projected = mixer.project_tokens(torch.empty(1, N, DIM))
    queries = mixer.anchor(mixer.seed_queries(projected[0]))
    assert {t.dtype for t in (*projected, queries)} == {torch.bfloat16}


def test_heads_must_divide_the_width():
    with pytest.raises(ValueError, match="dim=16, heads=3"):
        FlareMixer(16, 3, 4)
