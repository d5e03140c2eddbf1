"""The classifier: padding, positions, pooling, dropout, documents."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from physicsnemo_flarepp.ops import decode, encode, rotate_rows, routing
from physicsnemo_flarepp.parallel import enable_context_parallel
from physicsnemo_flarepp.sequences import SequenceClassifier

SIZES = {"n_layers": 2, "n_hidden": 16, "n_head": 2, "slice_num": 4}
MIXERS = {
    "attention": {"mixer": "attention", "slice_num": None},
    "flare": {"mixer": "flare"},
    "flare of sequences": {"mixer": "flare", "query_key_norm": True, "unit_scale": True},
    "flarepp": {},
    "flarepp, anchored": {"anchored_queries": True},
    "transolver": {"mixer": "transolver"},
}
LENGTHS = (9, 5, 1)


def make(**options):
    torch.manual_seed(0)
    return SequenceClassifier(16, 10, 12, **(SIZES | options)).double().eval()


@pytest.fixture(scope="module")
def padded():
    tokens = torch.randint(1, 16, (3, 12), generator=torch.Generator().manual_seed(1))
    mask = torch.arange(12) < torch.tensor(LENGTHS)[:, None]
    return tokens.where(mask, 0), mask


@pytest.mark.parametrize("options", MIXERS.values(), ids=MIXERS)
@pytest.mark.parametrize("pooling, positions", [("mean", "learned"), ("cls", "rotary")])
def test_padding_that_is_masked_influences_nothing(options, pooling, positions, padded):
    if options.get("mixer") == "transolver":
        positions = "learned"
    model, (tokens, mask) = make(pooling=pooling, positions=positions, **options), padded
    with torch.no_grad():
        alone = torch.cat([model(row[None, :n]) for row, n in zip(tokens, LENGTHS, strict=True)])
        # Transolver adds 1e-5 tokens to each slice, and no more with padding.
        torch.testing.assert_close(model(tokens, mask), alone)
        other = tokens.masked_fill(~mask, 7)
        assert torch.equal(model(other, mask), model(tokens, mask))
        assert not torch.allclose(model(tokens), alone), "unmasked, padding is a token"


@pytest.mark.parametrize("options", MIXERS.values(), ids=MIXERS)
def test_positions_tell_orders_apart(options, padded):
    tokens = padded[0][:1, :9]
    kinds = ("learned",) if options.get("mixer") == "transolver" else ("learned", "rotary")
    for positions in kinds:
        model = make(positions=positions, **options)
        with torch.no_grad():
            assert not torch.allclose(model(tokens), model(tokens.flip(1)), rtol=1e-9, atol=0)
    # Without positions nothing does: the mixers are equivariant.
    model = make(**options)
    torch.nn.init.zeros_(model.positions)
    with torch.no_grad():
        torch.testing.assert_close(model(tokens), model(tokens.flip(1)))


def test_learned_positions_are_added_before_every_block():
    model = make(n_layers=3)
    seen = []
    for block in model.blocks:
        block.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach()))
        block.forward = lambda x, weights=None: x
    with torch.no_grad():
        model(torch.zeros(1, 5, dtype=torch.long))
    rows = model.positions[:5].detach()
    for number, x in enumerate(seen, 1):
        expected = model.embedding.weight[0].detach() + number * rows
        torch.testing.assert_close(x[0], expected)


def test_rotary_positions_are_complex_rotations():
    x = torch.randn(2, 3, 7, 8, dtype=torch.float64)
    z = torch.complex(x[..., :4], x[..., 4:]).numpy()
    turns = np.exp(1j * np.arange(7)[:, None] * 1e4 ** (-np.arange(4) / 4))
    found = rotate_rows(x).numpy()
    np.testing.assert_allclose(found[..., :4] + 1j * found[..., 4:], z * turns, atol=1e-12)
    # Scores depend on distances only.
    q, k = (torch.randn(1, 1, 1, 8, dtype=torch.float64).expand(1, 1, 9, 8) for _ in range(2))
    scores = (rotate_rows(q) @ rotate_rows(k).mT)[0, 0]
    torch.testing.assert_close(scores[2:, 2:], scores[:-2, :-2])


def test_two_documents_are_read_alike_and_side_by_side(padded):
    model, (tokens, mask) = make(documents=2, head_layers=2), padded
    pairs, masks = (
        torch.stack((tokens, tokens.roll(1, 0)), 1),
        torch.stack((mask, mask.roll(1, 0)), 1),
    )
    vectors = []
    model.head_norm.register_forward_pre_hook(lambda _, given: vectors.append(given[0]))
    with torch.no_grad():
        assert model(pairs, masks).shape == (3, 10)
    first, second = vectors[0].split(16, 1)
    torch.testing.assert_close(first.roll(1, 0), second)
    assert [type(layer).__name__ for layer in model.head] == ["Linear", "GELU", "Linear"]


def test_two_classes_have_one_logit():
    assert SequenceClassifier(16, 2, 8, **SIZES)(torch.ones(3, 8, dtype=torch.long)).shape == (3, 1)


def test_attention_dropout_keeps_the_mean_and_is_off_in_evaluation():
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 1, n, 4) for n in (3, 6, 6))
    mask = torch.arange(6)[None] < 4
    whole = encode(q, k, v, key_mask=mask)
    draws = torch.stack([encode(q, k, v, key_mask=mask, dropout=0.3) for _ in range(4000)])
    assert (draws.mean(0) - whole).abs().max() < 0.06 and draws.std(0).min() > 0.05
    spread = torch.stack([decode(k, q, v[:, :, :3], dropout=0.3) for _ in range(4000)])
    assert (spread.mean(0) - decode(k, q, v[:, :, :3])).abs().max() < 0.06
    weights = torch.tensor([[1.0, 2.0, 0.0, 1.0, 1.0, 3.0]])
    draws = torch.stack([encode(q, k, v, key_weights=weights, dropout=0.3) for _ in range(4000)])
    assert (draws.mean(0) - encode(q, k, v, key_weights=weights)).abs().max() < 0.06
    tokens = torch.ones(2, 8, dtype=torch.long)
    for options in MIXERS.values():
        model = make(attention_dropout=0.5, **options)
        assert torch.equal(model(tokens), model(tokens))
        model.train()
        assert not torch.equal(model(tokens), model(tokens))


@pytest.mark.parametrize("place", ["embedding", "projection", "head"])
def test_every_dropout_is_at_work_in_training(place):
    model, tokens = make(**{f"{place}_dropout": 0.5}), torch.ones(2, 8, dtype=torch.long)
    assert torch.equal(model(tokens), model(tokens))
    model.train()
    assert not torch.equal(model(tokens), model(tokens))


@pytest.mark.parametrize(
    "options, reason",
    [
        ({"positions": "sine"}, "positions must be one of"),
        ({"pooling": "max"}, "pooling must be one of"),
        ({"documents": 3}, "documents must be one of"),
        ({"mixer": "mamba"}, "mixer must be one of"),
        ({"mixer": "transolver", "positions": "rotary"}, "has none"),
        ({"mixer": "attention", "slice_num": 8}, "slice_num=8 has no effect"),
        ({"query_key_norm": True}, "query_key_norm=True has no effect with mixer='flarepp'"),
        ({"positions": "rotary", "n_head": 16}, "even width per head, got 1"),
    ],
)
def test_bad_arguments_are_named(options, reason):
    with pytest.raises(ValueError, match=reason):
        make(**options)


@pytest.mark.parametrize(
    "tokens, mask, reason",
    [
        (torch.ones(2, 13, dtype=torch.long), None, "13 tokens, the model takes 1 to 12"),
        (torch.ones(2, 0, dtype=torch.long), None, "0 tokens"),
        (torch.ones(2, 2, 4, dtype=torch.long), None, r"tokens must have shape \(B, N\)"),
        (torch.ones(2, 4, dtype=torch.long), torch.ones(2, 5, dtype=torch.bool), "token_mask"),
    ],
)
def test_bad_inputs_are_named(tokens, mask, reason):
    with pytest.raises(ValueError, match=reason):
        make()(tokens, mask)


def test_rotary_keys_are_not_sharded():
    group = SimpleNamespace(group_name="anything")
    with pytest.raises(ValueError, match="cannot be sharded"):
        enable_context_parallel(make(positions="rotary"), group)


def test_attention_dropout_is_not_sharded(monkeypatch):
    monkeypatch.setattr(routing, "group_size", lambda group: 2)
    q = torch.randn(1, 1, 2, 4)
    with pytest.raises(ValueError, match="attention dropout is 0.1, but gathers of 2 ranks merge"):
        encode(q, q, q, dropout=0.1, group="anything")


@pytest.mark.parametrize("options", MIXERS.values(), ids=MIXERS)
def test_half_precision_follows_full_precision(options, padded):
    (tokens, mask), rotary = padded, options.get("mixer") != "transolver"
    model = make(pooling="cls", positions="rotary" if rotary else "learned", **options).float()
    with torch.no_grad():
        whole = model(tokens, mask)
    model.train().requires_grad_(True)
    with torch.autocast("cpu", torch.bfloat16):
        half = model(tokens, mask)
        dropped = SequenceClassifier(16, 10, 12, attention_dropout=0.1, **(SIZES | options))
        dropped(tokens, mask).sum().backward()
    half.float().sum().backward()
    assert (half - whole).norm() < 0.05 * whole.norm()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.slow
def test_the_classifier_is_one_graph(padded):
    model = make(pooling="cls", positions="rotary", attention_dropout=0.1)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(*padded), model(*padded))
