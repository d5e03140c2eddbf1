import pytest
import torch
from streaming_cases import make_cloud, make_model, make_weights
from torch.utils._python_dispatch import TorchDispatchMode

from physicsnemo_flarepp.inference import routing_queries, routing_spectra, routing_weights

ROUTED = ["flarepp", "flarepp-anchored", "flarepp-shared", "flarepp-rms", "flare", "flare-first"]


def one_case(tokens=53):
    fx, embedding = make_cloud(tokens=tokens)
    return fx[:1], embedding[:1]


def brute_force(model, fx, embedding, block, w=1.0):
    """Queries, encode (H, M, N) and decode (H, N, M) matrices of a block, formed in full."""
    seen = {}
    mixer = model.blocks[block].mixer
    hook = mixer.register_forward_pre_hook(lambda _, args: seen.update(x=args[0]))
    model(fx, embedding, token_weights=w[None] if isinstance(w, torch.Tensor) else None)
    hook.remove()
    project, x = mixer.project, seen["x"]
    stacked = isinstance(project, torch.nn.Linear)
    parts = project(x)[0].split(mixer.dim, dim=-1) if stacked else [part(x)[0] for part in project]
    heads = [part.reshape(-1, mixer.heads, mixer.head_dim).permute(1, 0, 2) for part in parts]
    keys = heads[-2]
    if hasattr(mixer, "queries"):
        queries = mixer.queries
    else:
        source_key, source_value = heads[0], heads[0 if mixer.anchored_queries else 1]
        seeds = mixer.seed_norm(mixer.seeds)
        if mixer.normalize_source:
            mean = source_key.mean(-1, keepdim=True) if mixer.norm == "layer" else 0
            eps = 1e-5 if mixer.norm == "layer" else 1e-6
            centred = source_key - mean
            source_key = centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt()
        if hasattr(mixer, "source_weight"):
            seeds = seeds * mixer.source_weight
        if mixer.anchored_queries:
            source_value = source_key
        scores = seeds @ source_key.transpose(1, 2) / mixer.head_dim**0.5
        terms = w * scores.exp()
        queries = (terms / terms.sum(-1, keepdim=True)) @ source_value
        if mixer.anchored_queries:
            fixed = torch.nn.functional.layer_norm(mixer.anchors, mixer.anchors.shape[-1:])
            queries = fixed + mixer.gate.sigmoid() * queries
            keys = mixer.key_norm(keys)
    scale = mixer.head_dim**-0.5 if stacked else 1.0
    weights = (scale * queries @ keys.transpose(1, 2)).exp()
    encode = w * weights / (w * weights).sum(2, keepdim=True)
    decode = (weights / weights.sum(1, keepdim=True)).transpose(1, 2)
    return queries.detach(), encode.detach(), decode.detach()


@pytest.mark.parametrize("name", ROUTED)
@pytest.mark.parametrize("chunk_size", [7, 53])
def test_weights_equal_the_full_softmax(name, chunk_size):
    model, (fx, embedding) = make_model(name), one_case()
    for block, head in ((0, 2), (1, 0), (-1, -1)):
        _, encode, decode = brute_force(model, fx, embedding, block)
        got = routing_weights(
            model, fx, embedding, block=block, head=head, routes=3, chunk_size=chunk_size
        )
        masses = decode[head].mean(0)
        expected = sorted(range(5), key=lambda m: -masses[m])[:3]
        assert got.routes.tolist() == expected
        assert (got.block, got.head, got.n_routes) == (block % 2, head % 4, 5)
        torch.testing.assert_close(got.masses, masses[expected])
        torch.testing.assert_close(got.encode, encode[head, expected])
        torch.testing.assert_close(got.decode, decode[head, :, expected].T)


@pytest.mark.slow
@pytest.mark.parametrize("name", ROUTED)
@pytest.mark.parametrize("chunk_size", [7, 53])
def test_token_weights_enter_routes_masses_and_spectra(name, chunk_size):
    model, (fx, embedding) = make_model(name), one_case()
    w = make_weights()[0]
    options = {"token_weights": w[None], "chunk_size": chunk_size}
    spectra = routing_spectra(model, fx, embedding, **options)
    assert torch.allclose(
        spectra,
        routing_spectra(model, fx, embedding, **options | {"token_weights": 1e-8 * w[None]}),
    )
    for block in range(2):
        queries, encode, decode = brute_force(model, fx, embedding, block, w)
        found = routing_queries(model, fx, embedding, **options)[block]
        torch.testing.assert_close(found, queries)
        got = routing_weights(model, fx, embedding, block=block, head=1, **options)
        torch.testing.assert_close(got.masses, (decode[1].T @ w / w.sum())[got.routes])
        torch.testing.assert_close(got.encode, encode[1, got.routes])
        torch.testing.assert_close(got.decode, decode[1].T[got.routes])
        root = w.sqrt()
        whole = torch.linalg.svdvals(root[:, None] * (decode @ encode) / root)
        torch.testing.assert_close(spectra[block], whole[:, :5], rtol=1e-8, atol=1e-11)


def test_all_routes_are_shares_of_a_whole():
    model, (fx, embedding) = make_model(), one_case()
    got = routing_weights(model, fx, embedding, block=0, head=0, chunk_size=20)
    assert got.routes.sort().values.tolist() == [0, 1, 2, 3, 4]
    ones = torch.ones(53, dtype=torch.float64)
    torch.testing.assert_close(got.decode.sum(0), ones)
    torch.testing.assert_close(got.encode.sum(1), ones[:5])
    torch.testing.assert_close(got.masses.sum(), ones[0])


@pytest.mark.parametrize("name", ["flarepp", "flare"])
@pytest.mark.parametrize("chunk_size", [3, 20])
def test_spectra_equal_those_of_the_whole_matrix(name, chunk_size):
    model, (fx, embedding) = make_model(name), one_case()
    got = routing_spectra(model, fx, embedding, chunk_size=chunk_size)
    assert got.shape == (2, 4, 5)
    for block in range(2):
        _, encode, decode = brute_force(model, fx, embedding, block)
        whole = torch.linalg.svdvals(decode @ encode)  # (H, N, N)
        torch.testing.assert_close(got[block], whole[:, :5], rtol=1e-9, atol=1e-12)
        assert whole[:, 5:].max() < 1e-12


def test_fewer_tokens_than_routes_leave_zeros():
    model, (fx, embedding) = make_model(), one_case(tokens=3)
    got = routing_spectra(model, fx, embedding)
    assert got.shape == (2, 4, 5)
    assert (got[..., 3:] < 1e-12).all() and (got[..., 0] > 0.5).all()


@pytest.mark.parametrize("name", ROUTED)
def test_queries_equal_those_of_the_forward_pass(name):
    model, (fx, embedding) = make_model(name), one_case()
    got = routing_queries(model, fx, embedding, chunk_size=9)
    for block in range(2):
        torch.testing.assert_close(got[block], brute_force(model, fx, embedding, block)[0])


def test_queries_of_flarepp_follow_the_case_and_those_of_flare_do_not():
    fx, embedding = make_cloud()
    change = {}
    for name in ("flarepp", "flare"):
        first, second = (
            routing_queries(make_model(name), fx[i : i + 1], embedding[i : i + 1]) for i in (0, 1)
        )
        change[name] = (first - second).abs().max().item()
    assert change["flarepp"] > 1e-3 and change["flare"] == 0


class LargestResult(TorchDispatchMode):
    """Remembers the largest tensor that an operation makes, stored inputs aside."""

    def __init__(self):
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.numbers = max(self.numbers, tensor.numel())
        return result


@pytest.mark.slow
def test_nothing_larger_than_routes_times_tokens_is_formed():
    # Many routes and a narrow model: M x chunk would be far above routes x N.
    tokens, routes = 600, 2
    model = make_model(n_hidden=4, n_head=1, slice_num=300, n_layers=1, mlp_ratio=1.0)
    fx, embedding = one_case(tokens=tokens)
    with LargestResult() as seen:
        routing_weights(model, fx, embedding, block=0, head=0, routes=routes, chunk_size=60)
    most = max(routes * tokens, 60 * 8, model.blocks[0].mixer.seeds.numel())
    # The residual stream of the whole case has 4 channels and is what prediction keeps as well.
    assert seen.numbers <= max(most, 4 * tokens)


def test_unfit_models_and_arguments_are_named():
    fx, embedding = one_case()
    with pytest.raises(TypeError, match="Transolver3Mixer has no routing queries"):
        routing_weights(make_model("transolver3"), fx, embedding, block=0, head=0)
    with pytest.raises(TypeError, match="must be a FlarePP, a MixerBackbone, or PhysicsNeMo"):
        routing_spectra(torch.nn.Linear(3, 1), fx)
    model = make_model()
    with pytest.raises(ValueError, match="block is 2, but the model has 2"):
        routing_weights(model, fx, embedding, block=2, head=0)
    with pytest.raises(ValueError, match="head is -5, but the model has 4"):
        routing_weights(model, fx, embedding, block=0, head=-5)
    with pytest.raises(ValueError, match="routes is 6, expected 1 to 5"):
        routing_weights(model, fx, embedding, block=0, head=0, routes=6)
    both = make_cloud()
    with pytest.raises(ValueError, match="batch of 2; give one case"):
        routing_queries(model, *both)
