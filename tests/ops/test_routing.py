import math

import pytest
import torch

from physicsnemo_flarepp.ops import attention_with_lse, decode, encode, merge_partials

B, H, M, N, D = 2, 3, 4, 29, 8


def tokens(n=N, dtype=torch.float64):
    return torch.randn(B, H, n, D, dtype=dtype)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("cuts", [[], [0], [1, 1, 9], [10, 28], list(range(1, N))])
def test_merged_chunks_equal_the_whole(cuts, weighted):
    q, k, v = tokens(M), tokens(), tokens()
    # A chunk may hold none of a sample's measure, or a millionth of it.
    weights = torch.exp(5 * torch.randn(B, N)) * (torch.rand(B, N) > 0.3)
    weights[:, -1] = 1.0
    whole, whole_lse = attention_with_lse(q, k, v, key_weights=weights if weighted else None)
    parts = [
        attention_with_lse(q, kc, vc, key_weights=wc if weighted else None)
        for kc, vc, wc in zip(
            k.tensor_split(cuts, 2),
            v.tensor_split(cuts, 2),
            weights.tensor_split(cuts, 1),
            strict=True,
        )
    ]
    out, lse = merge_partials(*zip(*parts, strict=True))
    torch.testing.assert_close(out, whole, rtol=0, atol=1e-14)
    torch.testing.assert_close(lse, whole_lse, rtol=0, atol=1e-14)


def test_merge_is_differentiable_through_outputs_and_normalisers():
    outs = torch.randn(3, 2, 4, dtype=torch.float64, requires_grad=True)
    lses = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(merge_partials, (outs, lses))


def test_merge_survives_normalisers_far_apart_and_missing():
    outs = torch.tensor([[1.0], [2.0], [3.0]], dtype=torch.float64, requires_grad=True)
    lses = torch.tensor([1e4, 1e4 + math.log(3), -math.inf], dtype=torch.float64)
    out, lse = merge_partials(outs, lses.requires_grad_())
    assert out.item() == pytest.approx(1.75) and lse.item() == pytest.approx(1e4 + math.log(4))
    out.sum().backward()
    assert torch.isfinite(outs.grad).all() and torch.isfinite(lses.grad).all()


def test_merging_nothing_gives_zero_and_minus_infinity_without_nan():
    outs = torch.zeros(2, 3, requires_grad=True)
    lses = torch.full((2,), -math.inf, requires_grad=True)
    out, lse = merge_partials(outs, lses)
    assert (out == 0).all() and lse == -math.inf
    out.sum().backward()
    assert torch.isfinite(outs.grad).all() and torch.isfinite(lses.grad).all()


def test_half_precision_partials_are_merged_in_single():
    outs = torch.tensor([[1.0], [1.0]], dtype=torch.float16)
    lses = torch.tensor([11.0, 11.0])  # exp(11) is near the largest half, their sum beyond it
    out, lse = merge_partials(outs, lses)
    assert out.dtype == torch.float16 and out.item() == 1.0
    assert lse.item() == pytest.approx(11 + math.log(2))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_encode_and_decode_are_explicit_softmaxes(masked, weighted):
    q, k, v = tokens(M), tokens(), tokens()
    mask = torch.rand(B, N) > 0.5 if masked else torch.ones(B, N, dtype=torch.bool)
    measure = torch.rand(B, N).double() if weighted else torch.ones(B, N).double()
    scores = torch.einsum("bhmd,bhnd->bhmn", q, k) / math.sqrt(D)
    gathering = scores.exp() * (measure * mask)[:, None, None]
    gathering = gathering / gathering.sum(-1, keepdim=True)
    z = encode(
        *(q, k, v), key_mask=mask if masked else None, key_weights=measure if weighted else None
    )
    torch.testing.assert_close(z, gathering @ v, rtol=0, atol=1e-13)
    spreading = scores.exp() / scores.exp().sum(2, keepdim=True)
    y = torch.einsum("bhmn,bhmd->bhnd", spreading, z)
    torch.testing.assert_close(decode(k, q, z), y, rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", ["key_mask", "key_weights"])
def test_encode_of_a_sample_without_tokens_is_zero_with_zero_gradient(name):
    q, k, v = (tokens(n).requires_grad_() for n in (M, N, N))
    weights = torch.rand(B, N)
    weights[0] = 0.0
    z = encode(q, k, v, **{name: weights > 0 if name == "key_mask" else weights})
    z.square().sum().backward()
    assert (z[0] == 0).all() and (z[1] != 0).all()
    assert all((t.grad[0] == 0).all() and torch.isfinite(t.grad).all() for t in (q, k, v))


def test_no_tokens_at_all():
    assert (encode(tokens(M), tokens(0), tokens(0)) == 0).all()
    assert (encode(tokens(M), tokens(0), tokens(0), key_weights=torch.ones(B, 0)) == 0).all()
    assert decode(tokens(0), tokens(M), tokens(M)).shape == (B, H, 0, D)


@pytest.mark.unchecked
def test_encode_names_a_mask_of_the_wrong_shape():
    with pytest.raises(ValueError, match=r"\(B, N\) = \(2, 29\), got \(2, 28\)"):
        encode(tokens(M), tokens(), tokens(), key_mask=torch.ones(B, N - 1, dtype=torch.bool))
