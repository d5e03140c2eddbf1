"""What the fused kernels answer with a dead process or with numbers is an error by name here."""

import pytest
import torch

from physicsnemo_flarepp.ops import (
    attention_backward,
    attention_with_lse,
    decode,
    encode,
    global_sum,
    merge_over_group,
    merge_partials,
    sum_over_group,
)

pytestmark = pytest.mark.unchecked
B, H, M, N, D = 2, 3, 5, 7, 8


def rows(n, d=D, **kind):
    return torch.randn(B, H, n, d, **kind)


def backward_arguments():
    q, k, v = rows(M), rows(N), rows(N)
    out, lse = attention_with_lse(q, k, v)
    names = ("grad_out", "q", "k", "v", "out", "lse")
    return dict(zip(names, (torch.ones_like(out), q, k, v, out, lse), strict=True))


def half(tensor):
    return tensor.half()


def elsewhere(tensor):
    return tensor.to("meta")


@pytest.mark.parametrize(
    "name, change, error, words",
    [
        ("grad_out", lambda t: t[:, :, :2], ValueError, r"grad_out must .* \(2, 3, 5, 8\), got"),
        ("grad_out", lambda t: t[:, :, :0], ValueError, "grad_out must have shape"),
        ("grad_out", half, TypeError, "q, grad_out, out must share one floating dtype"),
        ("grad_out", elsewhere, ValueError, "one device, got cpu, meta, cpu"),
        ("q", lambda t: t[:1], ValueError, "disagree"),
        ("q", lambda t: t[:, :, :0], ValueError, "grad_out must have shape"),
        ("q", lambda t: t[..., :4], ValueError, "disagree"),
        ("k", lambda t: t[:, :, :0], ValueError, "disagree"),
        ("k", lambda t: t[:, :1], ValueError, "disagree"),
        ("k", half, TypeError, "q, k, v must share one floating dtype"),
        ("v", lambda t: t[0], ValueError, r"shape \(B, H, tokens, D\)"),
        ("v", lambda t: t[..., :3], ValueError, r"grad_out must .* \(2, 3, 5, 3\)"),
        ("out", lambda t: t[..., :4], ValueError, r"out must have shape \(B, H, M, E\)"),
        ("out", torch.Tensor.double, TypeError, "q, grad_out, out must share"),
        ("lse", lambda t: t[:, :, :3], ValueError, "shape of lse and one axis more"),
        ("lse", lambda t: t[:, :, :0], ValueError, "shape of lse and one axis more"),
        ("lse", lambda t: t[..., None], ValueError, "shape of lse and one axis more"),
        ("lse", half, TypeError, "lse fp32 or fp64"),
        ("lse", elsewhere, ValueError, "out, lse must be on one device"),
    ],
)
def test_attention_backward_names_what_does_not_fit(name, change, error, words):
    arguments = backward_arguments()
    arguments[name] = change(arguments[name])
    with pytest.raises(error, match=words):
        attention_backward(**arguments, scale=D**-0.5)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_scores_need_a_positive_finite_scale(scale):
    q, k, v = rows(M), rows(N), rows(N)
    calls = (
        lambda: attention_with_lse(q, k, v, scale=scale),
        lambda: attention_backward(**backward_arguments(), scale=scale),
        lambda: encode(q, k, v, scale=scale),
        lambda: decode(k, q, q, scale=scale),
    )
    for call in calls:
        with pytest.raises(ValueError, match="scale must be positive and finite, got"):
            call()


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda: encode(rows(M), rows(N), rows(N - 1)), ValueError, "disagree"),
        (lambda: encode(rows(M), rows(N, 4), rows(N)), ValueError, "disagree"),
        (lambda: encode(rows(M, 0), rows(N, 0), rows(N)), ValueError, "at least one channel"),
        (lambda: encode(rows(M), rows(N), rows(N).double()), TypeError, "one floating dtype"),
        (lambda: encode(rows(M), rows(N), rows(N, device="meta")), ValueError, "one device"),
        (lambda: decode(rows(N), rows(M), rows(M - 1)), ValueError, r"k \(B,H,M,D\).*disagree"),
        (lambda: decode(rows(N)[0], rows(M), rows(M)), ValueError, "k, q, z must have shape"),
        (lambda: decode(rows(N).half(), rows(M), rows(M)), TypeError, "k, q, z must share"),
        (lambda: merge_partials([], []), ValueError, "at least one: got 0 and 0"),
        (lambda: merge_partials([rows(M)], []), ValueError, "got 1 and 0"),
        (lambda: merge_partials(rows(M), rows(M)), ValueError, "one axis more"),
        (lambda: merge_partials(rows(M), rows(M)[..., 0].half()), TypeError, "fp32 or fp64"),
        (lambda: merge_over_group(rows(M), rows(N)[..., 0], None), ValueError, "one axis more"),
        (lambda: merge_over_group(rows(M).int(), rows(M)[..., 0], None), TypeError, "floating"),
        (lambda: sum_over_group(torch.ones(2).int(), None), TypeError, "x must share one floating"),
        (lambda: global_sum(torch.ones(2).int(), None), TypeError, "x must share one floating"),
    ],
)
def test_every_other_operation_names_what_does_not_fit(call, error, words):
    with pytest.raises(error, match=words):
        call()


@pytest.mark.parametrize("empty", ["batch", "heads", "latents", "tokens"])
def test_empty_axes_give_zeros_and_not_a_dead_process(empty):
    sizes = {"batch": B, "heads": H, "latents": M, "tokens": N, empty: 0}
    b, h, m, n = sizes.values()
    q, k, v, z = (torch.randn(b, h, r, D, requires_grad=True) for r in (m, n, n, m))
    out, lse = attention_with_lse(q, k, v)
    gathered, spread = encode(q, k, v), decode(k, q, z)
    assert out.shape == gathered.shape == (b, h, m, D) and spread.shape == k.shape
    assert not any(t.any() for t in (out, gathered, spread)) and lse.shape == (b, h, m)
    grads = attention_backward(torch.ones_like(out), q, k, v, out, lse, scale=1.0)
    assert [g.shape for g in grads] == [q.shape, k.shape, v.shape]
    assert not any(g.any() for g in grads)
    (out.sum() + spread.sum()).backward()
    assert not any(t.grad.any() for t in (q, k, v, z) if t.grad is not None)
