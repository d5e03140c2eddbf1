import math
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from physicsnemo_flarepp.ops import (
    attention,
    attention_backward,
    attention_with_lse,
    kernels,
    plain_operators,
)
from physicsnemo_flarepp.ops.attention import attention_of_part

B, H, M, N, D = 2, 3, 5, 37, 16


def qkv(dtype=torch.float64, n=N, d=D):
    return tuple(torch.randn(B, H, rows, d, dtype=dtype) for rows in (M, n, n))


def some_mask(n=N):
    mask = torch.rand(B, n) > 0.4
    mask[:, 0] = True
    return mask


def some_weights(n=N, spread=3.0):
    """Weights over several orders of magnitude, some of them 0."""
    weights = torch.exp(spread * torch.randn(B, n, dtype=torch.float64))
    return weights * some_mask(n)


WEIGHTINGS = {
    "plain": lambda n=N: {},
    "masked": lambda n=N: {"key_mask": some_mask(n)},
    "weighted": lambda n=N: {"key_weights": some_weights(n)},
    "both": lambda n=N: {"key_mask": some_mask(n), "key_weights": some_weights(n)},
}


def softmax_by_loops(q, k, v, key_mask=None, key_weights=None):
    """Brute force, one row at a time, in numpy fp64."""
    q, k, v = (t.double().numpy() for t in (q, k, v))
    out, lse = np.zeros(q.shape), np.full(q.shape[:3], -np.inf)
    measure = np.ones((q.shape[0], k.shape[2]))
    for factor in (key_mask, key_weights):
        measure = measure if factor is None else measure * factor.double().numpy()
    for b, h, m in np.ndindex(*q.shape[:3]):
        scores = [float(q[b, h, m] @ k[b, h, n]) / math.sqrt(D) for n in range(k.shape[2])]
        terms = [measure[b, n] * math.exp(score) for n, score in enumerate(scores)]
        if sum(terms) > 0:
            out[b, h, m] = sum(term * v[b, h, n] for n, term in enumerate(terms)) / sum(terms)
            lse[b, h, m] = math.log(sum(terms))
    return torch.from_numpy(out), torch.from_numpy(lse)


TOLERANCE = {torch.float64: 1e-13, torch.float32: 2e-6, torch.bfloat16: 3e-2, torch.float16: 4e-3}


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_output_and_normaliser_equal_brute_force(dtype, weighting):
    q, k, v = qkv(dtype)
    weighting = WEIGHTINGS[weighting]()
    out, lse = attention_with_lse(q, k, v, **weighting)
    reference, reference_lse = softmax_by_loops(q, k, v, **weighting)
    torch.testing.assert_close(out.double(), reference, rtol=0, atol=TOLERANCE[dtype])
    torch.testing.assert_close(lse.double(), reference_lse, rtol=0, atol=TOLERANCE[dtype])
    assert out.dtype == dtype and lse.is_contiguous()
    assert lse.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_both_results_have_the_gradients_of_finite_differences(weighting):
    inputs = tuple(t[:, :1, :, :4].clone().requires_grad_() for t in qkv(n=6))
    weighting = WEIGHTINGS[weighting](6)
    assert torch.autograd.gradcheck(lambda *a: attention_with_lse(*a, **weighting), inputs)


@pytest.mark.parametrize("n_queries, splits", [(M, 1), (M, 2), (9, 3)])
@pytest.mark.parametrize("backend", ["cpu", "math", "plain"])
def test_weights_have_the_gradients_of_finite_differences(backend, n_queries, splits, monkeypatch):
    if backend != "plain":
        monkeypatch.setattr(attention, "select_backend", lambda *_: backend)
    q, k, v = (torch.randn(B, 2, n, 4, dtype=torch.float64) for n in (n_queries, 6, 6))
    weights, mask = torch.rand(B, 6, dtype=torch.float64) + 0.1, torch.ones(B, 6, dtype=torch.bool)
    mask[0, 2] = False
    inputs = [t.requires_grad_() for t in (q, k, v, weights)]

    def both(q, k, v, weights):
        with plain_operators() if backend == "plain" else nullcontext():
            options = {"key_mask": mask, "key_weights": weights, "splits": splits}
            return attention_with_lse(q, k, v, **options)

    assert torch.autograd.gradcheck(both, inputs)
    assert torch.autograd.gradcheck(lambda *a: both(*a)[0], inputs)  # no gradient of lse


@pytest.mark.parametrize("plain", [False, True])
def test_a_weight_of_zero_has_no_gradient_and_a_tiny_one_that_of_its_limit(plain):
    q, k, v = qkv()
    cotangent = torch.randn(B, H, M, D, dtype=torch.float64)
    weights = torch.rand(B, N, dtype=torch.float64) + 0.1

    def value(weight, learned=False):
        with plain_operators() if plain else nullcontext():
            leaf = torch.cat((torch.full((B, 1), weight).double(), weights[:, 1:]), 1)
            leaf.requires_grad_(learned)
            return leaf, (attention_with_lse(q, k, v, key_weights=leaf)[0] * cotangent).sum(
                (1, 2, 3)
            )

    def gradient(weight):
        leaf, loss = value(weight, True)
        return torch.autograd.grad(loss.sum(), leaf)[0][:, 0]

    assert (gradient(0.0) == 0).all()
    limit = (value(1e-7)[1] - value(0.0)[1]) / 1e-7
    torch.testing.assert_close(gradient(1e-30), limit, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_gradients_of_weights_in_every_precision(dtype):
    q, k, v = qkv(dtype)
    cotangents = torch.randn(B, H, M, D).to(dtype), torch.randn(B, H, M)
    weights = some_weights(spread=1.0)
    found = []
    for inputs in ((q, k, v), [t.double() for t in (q, k, v)]):
        leaf = weights.clone().requires_grad_()
        results = attention_with_lse(*inputs, key_weights=leaf)
        total = sum((a * b).sum() for a, b in zip(results, cotangents, strict=True))
        found.append(torch.autograd.grad(total, leaf)[0] * weights)
    limit = {torch.bfloat16: 3e-2, torch.float16: 4e-3}.get(dtype, 1e-5)
    assert (found[0] - found[1]).norm() < limit * found[1].norm()


def test_parts_of_a_known_attention_have_the_gradients_of_the_whole():
    q, k, v = qkv()
    weights = some_weights()
    leaves = [t.clone().requires_grad_() for t in (q, k, v, weights)]
    whole = attention_with_lse(*leaves[:3], key_weights=leaves[3])
    cotangents = [torch.randn_like(t) for t in whole]
    expected = torch.autograd.grad(whole, leaves, cotangents)
    whole = tuple(t.detach() for t in whole)
    shares = []
    for rows in (slice(11), slice(11, None)):
        part = [q, k[:, :, rows], v[:, :, rows], weights[:, rows]]
        part = [t.clone().requires_grad_() for t in part]
        results = attention_of_part(*part[:3], whole, key_weights=part[3])
        shares.append(torch.autograd.grad(results, part, cotangents))
    torch.testing.assert_close(shares[0][0] + shares[1][0], expected[0], rtol=0, atol=1e-12)
    for i, axis in ((1, 2), (2, 2), (3, 1)):
        joined = torch.cat([share[i] for share in shares], axis)
        torch.testing.assert_close(joined, expected[i], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("size", [1e-3, 1.0, 7e4, 5e6])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradients_of_the_normaliser_of_any_size_are_exact_in_half_precision(dtype, size):
    """Keys that nearly share the weight make small gradients of large ones."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 1, n, 8).to(dtype).requires_grad_() for n in (3, 4096, 4096))
    cotangent = size * torch.randn(1, 1, 3)
    found = torch.autograd.grad(attention_with_lse(q, k, v)[1], k, cotangent)[0]
    wide = [x.detach().double().requires_grad_() for x in (q, k)]
    scores = wide[0] @ wide[1].mT * 8**-0.5
    expected = torch.autograd.grad(scores.logsumexp(-1), wide[1], cotangent.double())[0]
    if dtype == torch.float16:  # what it can hold
        expected = expected.where(expected.abs() > 1e-4, found.double())
    assert (found - expected).norm() <= 4 * torch.finfo(dtype).eps * expected.norm()


def on_cpu_kernel(monkeypatch):
    """Let the CPU kernels answer for those of CUDA, which take no bias or one of their dtype."""
    aten = torch.ops.aten
    kernel, kernel_backward = (
        aten._scaled_dot_product_flash_attention_for_cpu,
        aten._scaled_dot_product_flash_attention_for_cpu_backward,
    )

    def flash(q, k, v, scale):
        return *kernel(q, k, v, 0.0, False, scale=scale), None

    def flash_backward(grad, q, k, v, out, lse, *unread, scale):
        return kernel_backward(grad, q, k, v, out, lse, 0.0, False, scale=scale)

    def efficient(q, k, v, bias, compute_lse, scale):
        assert bias is None or bias.dtype == q.dtype
        bias = None if bias is None else bias[:, :1, :1]
        out, lse = kernel(q, k, v, 0.0, False, attn_mask=bias, scale=scale)
        return out, torch.nn.functional.pad(lse, (0, -M % 32), value=math.inf), None, None

    def efficient_backward(grad, q, k, v, bias, out, lse, *unread, scale):
        bias = None if bias is None else bias[:, :1, :1]
        lse = lse[..., :M]
        return kernel_backward(grad, q, k, v, out, lse, 0.0, False, attn_mask=bias, scale=scale)

    monkeypatch.setattr(aten, "_scaled_dot_product_flash_attention", flash)
    monkeypatch.setattr(aten, "_scaled_dot_product_flash_attention_backward", flash_backward)
    monkeypatch.setattr(aten, "_scaled_dot_product_efficient_attention", efficient)
    monkeypatch.setattr(
        aten, "_scaled_dot_product_efficient_attention_backward", efficient_backward
    )


def results(inputs, cotangents, **weighting):
    """Output, normaliser and the three gradients of a loss of both."""
    inputs = [t.detach().clone().requires_grad_() for t in inputs]
    out, lse = attention_with_lse(*inputs, **weighting)
    total = sum((a * b).sum() for a, b in zip((out, lse), cotangents, strict=True))
    return [out.detach(), lse.detach(), *torch.autograd.grad(total, inputs)]


@pytest.mark.parametrize("spread", [1.0, 4.0])
@pytest.mark.parametrize("weighting", ["masked", "weighted"])
@pytest.mark.parametrize(
    "backend, dtype",
    [
        ("flash", torch.bfloat16),
        ("flash", torch.float16),
        ("efficient", torch.float16),
        ("efficient", torch.float32),
    ],
)
def test_weights_survive_kernels_without_a_precise_bias(
    backend, dtype, weighting, spread, monkeypatch
):
    """Against fp64: as close with weights in columns as the CPU kernel with its fp32 bias."""
    inputs = qkv(dtype)
    weighting = {"masked": {"key_mask": some_mask()}, "weighted": {}}[weighting]
    weighting = weighting or {"key_weights": some_weights(spread=spread)}
    cotangents = torch.randn(B, H, M, D).to(dtype), torch.randn(B, H, M)
    doubled = [t.double() for t in cotangents]
    exact = results([t.double() for t in inputs], doubled, **weighting)
    with_bias = results(inputs, cotangents, **weighting)
    on_cpu_kernel(monkeypatch)
    monkeypatch.setattr(attention, "select_backend", lambda *_: backend)
    with_columns = results(inputs, cotangents, **weighting)
    for a, b, reference in zip(with_columns, with_bias, exact, strict=True):
        error, usual = ((t.double() - reference).norm() for t in (a, b))
        assert error < 1.2 * usual + 1e-5 * reference.norm()


@pytest.mark.parametrize("scale", [1e-3, 0.25, 3.0, 1e6])
def test_columns_add_log_weights_to_the_scores_for_any_scale(scale):
    q, k, v = qkv(torch.float16)
    log_weights = 10 * torch.randn(B, N)
    log_weights[:, 3] = -math.inf
    wide_q, wide_k, wide_v = kernels._append_columns(q, k, v, log_weights, scale)
    added = scale * (wide_q.double() @ wide_k.double().mT - q.double() @ k.double().mT)
    expected = log_weights[:, None, None].double().expand(B, H, M, N)
    finite = expected > -math.inf
    assert (added - expected)[finite].abs().max() < 1e-5
    assert added[~finite].max() < -1e4
    assert wide_v.shape == (B, H, N, D + 8) and torch.equal(wide_v[..., :D], v)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_factor_on_all_weights_changes_the_normaliser_alone(dtype):
    q, k, v = qkv(dtype)
    weights = some_weights()
    out, lse = attention_with_lse(q, k, v, key_weights=weights)
    for factor in (1e-30, 7.0, 1e30):
        scaled, scaled_lse = attention_with_lse(q, k, v, key_weights=factor * weights)
        close = {"rtol": 0, "atol": 20 * TOLERANCE[dtype]}
        torch.testing.assert_close(scaled, out, **close)
        torch.testing.assert_close(scaled_lse - math.log(factor), lse, **close)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_weights_of_one_are_no_weights(dtype):
    q, k, v = qkv(dtype)
    for ones in (torch.ones(B, N), torch.ones(B, N, dtype=torch.bool)):
        for a, b in zip(
            attention_with_lse(q, k, v, key_weights=ones), attention_with_lse(q, k, v), strict=True
        ):
            torch.testing.assert_close(a, b, rtol=0, atol=TOLERANCE[dtype])


def test_keys_that_share_a_weight_are_one_key():
    q, k, v = qkv()
    weights = torch.rand(B, N, dtype=torch.float64)
    shares = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    split_k, split_v = (torch.cat((t, t[:, :, 4:5], t[:, :, 4:5]), 2) for t in (k, v))
    split = torch.cat((weights, weights[:, 4:5] * shares[1:]), 1)
    split[:, 4] *= shares[0]
    for a, b in zip(
        attention_with_lse(q, split_k, split_v, key_weights=split),
        attention_with_lse(q, k, v, key_weights=weights),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_math_reference_agrees_with_the_fused_kernel(dtype):
    q, k, v = qkv(dtype)
    weights = some_weights().to(torch.float32)
    out, lse = attention_with_lse(q, k, v, key_weights=weights)
    math_out, math_lse = kernels._math_forward(q, k, v, weights.log(), D**-0.5)
    close = {"rtol": 0, "atol": TOLERANCE[dtype]}
    torch.testing.assert_close(math_out, out, **close)
    torch.testing.assert_close(math_lse, lse, **close)
    grad = torch.randn_like(out)
    fused = attention_backward(grad, q, k, v, out, lse, scale=D**-0.5, key_weights=weights)
    plain = kernels._math_backward(grad, q, k, v, out, lse, weights.log(), D**-0.5)
    for a, b in zip(fused, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=4 * TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_autocast_does_not_round_the_scores_of_the_unfused_kernel(dtype):
    # Values wider than keys, which no fused kernel serves; scores of 1e5 overflow fp16.
    q, k = (300 * torch.randn(1, 1, n, 8) for n in (3, 9))
    inputs = [t.to(dtype).requires_grad_() for t in (q, k, torch.randn(1, 1, 9, 12))]
    found = []
    for enabled in (True, False):
        with torch.autocast("cpu", torch.float16, enabled=enabled):
            out, lse = attention_with_lse(*inputs)
            found.append([out, lse, *torch.autograd.grad(out.sum() + lse.sum(), inputs)])
    assert found[0][0].dtype == dtype and found[0][1].dtype == torch.float32
    assert found[0][1].isfinite().all()
    torch.testing.assert_close(*found, rtol=0, atol=0)


@pytest.mark.parametrize("as_weights", [False, True])
@pytest.mark.parametrize("backend", ["cpu", "math"])
def test_rows_without_keys_give_zero_and_minus_infinity(backend, as_weights, monkeypatch):
    monkeypatch.setattr(attention, "select_backend", lambda *_: backend)
    q, k, v = (t.requires_grad_() for t in qkv())
    mask = some_mask()
    mask[1] = False
    weighting = {"key_weights": 3.0 * mask} if as_weights else {"key_mask": mask}
    out, lse = attention_with_lse(q, k, v, **weighting)
    assert (out[1] == 0).all() and (lse[1] == -math.inf).all()
    assert torch.isfinite(lse[0]).all()
    out.square().sum().backward()
    for t in (q, k, v):
        assert torch.isfinite(t.grad).all() and (t.grad[1] == 0).all() and (t.grad[0] != 0).any()


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("strided", ["q", "k", "v", "grad_out", "out"])
def test_rows_whose_channels_are_apart_in_memory_count_as_any_others(strided, splits):
    # Handed such queries, torch's CPU kernel writes its result to other places than it returns.
    sizes = {"grad_out": M, "q": M, "k": N, "v": N}
    tensors = {name: torch.randn(B, H, n, D) for name, n in sizes.items()}

    def run(tensors, apart=None):
        def stored(name, value):
            return value.mT.contiguous().mT if name == apart else value

        t = {name: stored(name, value) for name, value in tensors.items()}
        out, lse = attention_with_lse(t["q"], t["k"], t["v"], splits=splits)
        options = {"out": stored("out", out), "lse": lse, "scale": D**-0.5, "splits": splits}
        return out, lse, *attention_backward(**t, **options)

    torch.testing.assert_close(run(tensors, strided), run(tensors))


@pytest.mark.parametrize("n_queries, n_keys", [(M, 0), (0, N), (0, 0)])
def test_empty_axes_are_defined(n_queries, n_keys):
    q, k, v = qkv(n=n_keys)
    q = q[:, :, :n_queries].requires_grad_()
    k.requires_grad_()
    out, lse = attention_with_lse(q, k, v)
    assert out.shape == (B, H, n_queries, D) and (out == 0).all()
    assert lse.shape == (B, H, n_queries) and (lse == -math.inf).all()
    (out.sum() + lse.exp().sum()).backward()
    assert (q.grad == 0).all() and k.grad.shape == k.shape


def test_backward_with_the_global_pair_differentiates_global_attention():
    q, k, v = qkv()
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    out, lse = attention_with_lse(*leaves)
    grad = torch.randn_like(out)
    out.backward(grad)
    cut = 11
    shares = [
        attention_backward(
            grad, q, k[:, :, s], v[:, :, s], out.detach(), lse.detach(), scale=D**-0.5
        )
        for s in (slice(cut), slice(cut, None))
    ]
    torch.testing.assert_close(shares[0][0] + shares[1][0], leaves[0].grad, rtol=0, atol=1e-13)
    for i in (1, 2):
        whole = torch.cat([share[i] for share in shares], 2)
        torch.testing.assert_close(whole, leaves[i].grad, rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    "dtype, masked, head, expected",
    [
        (torch.bfloat16, False, 16, "flash"),
        (torch.float16, False, 16, "flash"),
        (torch.float16, True, 16, "flash"),
        (torch.bfloat16, True, 248, "flash"),
        (torch.bfloat16, True, 256, "math"),
        (torch.float32, False, 16, "efficient"),
        (torch.float32, True, 16, "efficient"),
        (torch.float64, False, 16, "math"),
        (torch.float32, False, 12, "math"),
        (torch.float16, False, 264, "math"),
    ],
)
def test_cuda_inputs_reach_a_kernel_that_takes_them(dtype, masked, head, expected):
    # There is no GPU here: fake CUDA tensors run torch's own shape and argument checks.
    with FakeTensorMode():
        q, k, v = (torch.empty(B, H, n, head, dtype=dtype, device="cuda") for n in (M, N, N))
        mask = torch.ones(B, N, dtype=torch.bool, device="cuda") if masked else None
        assert attention.select_backend(q, k, v, mask) == expected
        log_weights = attention._log_weights(mask, dtype)
        out, lse = kernels.FORWARD[expected](q, k, v, log_weights, 0.25)
        grads = kernels.BACKWARD[expected](out, q, k, v, out, lse, log_weights, 0.25)
    assert out.shape == q.shape and lse.shape == (B, H, M)
    assert [g.shape for g in grads] == [q.shape, k.shape, v.shape]


@pytest.mark.parametrize(
    "dtype, expected",
    [(torch.float16, "efficient"), (torch.bfloat16, "math"), (torch.float32, "efficient")],
)
def test_gpus_before_ampere_are_spared_the_flash_kernel(dtype, expected, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0))
    with FakeTensorMode():
        q = torch.empty(B, H, M, 16, dtype=dtype, device="cuda")
        assert attention.select_backend(q, q, q, None) == expected


def test_efficient_kernel_sees_the_padded_normaliser_it_wrote(monkeypatch):
    """A stand-in with the kernel's documented lse layout: rows padded to 32 with +inf."""
    seen = {}

    def forward(q, k, v, bias, compute_lse, scale):
        out, lse = kernels._math_forward(q, k, v, None, scale)
        return out, torch.nn.functional.pad(lse, (0, 32 - M), value=math.inf), None, None

    def backward(grad, q, k, v, bias, out, lse, seed, offset, dropout, wanted, scale):
        seen["lse"] = lse
        return *kernels._math_backward(grad, q, k, v, out, lse[..., :M], None, scale), None

    aten = torch.ops.aten
    monkeypatch.setattr(aten, "_scaled_dot_product_efficient_attention", forward)
    monkeypatch.setattr(aten, "_scaled_dot_product_efficient_attention_backward", backward)
    monkeypatch.setattr(attention, "select_backend", lambda *_: "efficient")
    q, k, v = (t.requires_grad_() for t in qkv(torch.float32))
    out, lse = attention_with_lse(q, k, v)
    assert lse.shape == (B, H, M) and torch.isfinite(lse).all()
    out.sum().backward()
    assert seen["lse"].shape == (B, H, 32) and (seen["lse"][..., M:] == math.inf).all()
    assert torch.isfinite(q.grad).all() and (q.grad != 0).any()


@pytest.mark.slow
@pytest.mark.unchecked
@pytest.mark.parametrize("weighting", ["masked", "both"])
def test_compiled_without_graph_break_equals_eager(weighting):
    def loss(q, k, v, weighting):
        out, lse = attention_with_lse(q, k, v, **weighting)
        return out.square().sum() + lse.sum()

    results = []
    for f in (loss, torch.compile(loss, fullgraph=True, dynamic=True, backend="aot_eager")):
        torch.manual_seed(1)
        inputs = [t.requires_grad_() for t in qkv()]
        options = WEIGHTINGS[weighting]()
        inputs += [t.requires_grad_() for t in options.values() if t.is_floating_point()]
        value = f(*inputs[:3], options)
        value.backward()
        results.append([value.detach(), *(t.grad for t in inputs)])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    "change, error, words",
    [
        (lambda q, k, v, m: (q[0], k, v, m), ValueError, r"shape \(B, H, tokens, D\)"),
        (lambda q, k, v, m: (q, k[:, :, :3], v, m), ValueError, "disagree"),
        (lambda q, k, v, m: (q.float(), k, v, m), TypeError, "share one floating dtype"),
        (lambda q, k, v, m: (q, k, v, m.int()), TypeError, "key_mask must be boolean"),
        (lambda q, k, v, m: (q, k, v, m[:, :-1]), ValueError, r"\(B, N\) = \(2, 37\)"),
    ],
)
def test_bad_input_is_named(change, error, words):
    q, k, v, mask = change(*qkv(), some_mask())
    with pytest.raises(error, match=words):
        attention_with_lse(q, k, v, key_mask=mask)


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf, -math.inf])
def test_bad_weights_are_named_with_sample_and_index(value):
    q, k, v = qkv()
    weights = torch.ones(B, N)
    weights[1, 30] = weights[1, 35] = value
    with pytest.raises(ValueError, match=f"key_weights holds {value} at index 30 of sample 1"):
        attention_with_lse(q, k, v, key_weights=weights)
    mask = weights == 1  # what is masked may hold anything
    out, _ = attention_with_lse(q, k, v, key_weights=weights, key_mask=mask)
    assert torch.equal(out, attention_with_lse(q, k, v, key_mask=mask)[0])


@pytest.mark.unchecked
@pytest.mark.parametrize(
    "weights, error, words",
    [
        (torch.ones(B, N - 1), ValueError, r"key_weights must .* = \(2, 37\), got \(2, 36\)"),
        (torch.ones(N), ValueError, r"key_weights must .* = \(2, 37\), got \(37,\)"),
        (torch.ones(B, N).int(), TypeError, "key_weights must be of a floating dtype"),
        (torch.ones(B, N, device="meta"), ValueError, "k, key_weights must be on one device"),
    ],
)
def test_weights_that_do_not_fit_are_named(weights, error, words):
    with pytest.raises(error, match=words):
        attention_with_lse(*qkv(), key_weights=weights)
