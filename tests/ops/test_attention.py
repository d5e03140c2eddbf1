import math

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from physicsnemo_flarepp.ops import attention, attention_backward, attention_with_lse

B, H, M, N, D = 2, 3, 5, 37, 16


def qkv(dtype=torch.float64, n=N, d=D):
    return tuple(torch.randn(B, H, rows, d, dtype=dtype) for rows in (M, n, n))


def some_mask(n=N):
    mask = torch.rand(B, n) > 0.4
    mask[:, 0] = True
    return mask


def softmax_by_loops(q, k, v, mask):
    """Brute force, one row at a time, in numpy fp64."""
    q, k, v = (t.double().numpy() for t in (q, k, v))
    out, lse = np.zeros(q.shape), np.full(q.shape[:3], -np.inf)
    for b, h, m in np.ndindex(*q.shape[:3]):
        keys = np.flatnonzero(mask[b].numpy()) if mask is not None else range(k.shape[2])
        if len(keys) == 0:
            continue
        weights = [math.exp(float(q[b, h, m] @ k[b, h, n]) / math.sqrt(D)) for n in keys]
        out[b, h, m] = sum(w * v[b, h, n] for w, n in zip(weights, keys, strict=True)) / sum(
            weights
        )
        lse[b, h, m] = math.log(sum(weights))
    return torch.from_numpy(out), torch.from_numpy(lse)


TOLERANCE = {torch.float64: 1e-13, torch.float32: 2e-6, torch.bfloat16: 3e-2, torch.float16: 4e-3}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_output_and_normaliser_equal_brute_force(dtype, masked):
    q, k, v = qkv(dtype)
    mask = some_mask() if masked else None
    out, lse = attention_with_lse(q, k, v, key_mask=mask)
    reference, reference_lse = softmax_by_loops(q, k, v, mask)
    torch.testing.assert_close(out.double(), reference, rtol=0, atol=TOLERANCE[dtype])
    torch.testing.assert_close(lse.double(), reference_lse, rtol=0, atol=TOLERANCE[dtype])
    assert out.dtype == dtype and lse.is_contiguous()
    assert lse.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


@pytest.mark.parametrize("masked", [False, True])
def test_both_results_have_the_gradients_of_finite_differences(masked):
    inputs = tuple(t[:, :1, :, :4].clone().requires_grad_() for t in qkv(n=6))
    mask = some_mask(6) if masked else None
    assert torch.autograd.gradcheck(lambda *a: attention_with_lse(*a, key_mask=mask), inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_math_reference_agrees_with_the_fused_kernel(dtype):
    q, k, v = qkv(dtype)
    mask = some_mask()
    out, lse = attention_with_lse(q, k, v, key_mask=mask)
    math_out, math_lse = attention._math_forward(q, k, v, mask, D**-0.5)
    close = {"rtol": 0, "atol": TOLERANCE[dtype]}
    torch.testing.assert_close(math_out, out, **close)
    torch.testing.assert_close(math_lse, lse, **close)
    grad = torch.randn_like(out)
    fused = attention_backward(grad, q, k, v, out, lse, scale=D**-0.5, key_mask=mask)
    plain = attention._math_backward(grad, q, k, v, out, lse, mask, D**-0.5)
    for a, b in zip(fused, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=4 * TOLERANCE[dtype])


@pytest.mark.parametrize("backend", ["cpu", "math"])
def test_rows_without_keys_give_zero_and_minus_infinity(backend, monkeypatch):
    monkeypatch.setattr(attention, "select_backend", lambda *_: backend)
    q, k, v = (t.requires_grad_() for t in qkv())
    mask = some_mask()
    mask[1] = False
    out, lse = attention_with_lse(q, k, v, key_mask=mask)
    assert (out[1] == 0).all() and (lse[1] == -math.inf).all()
    assert torch.isfinite(lse[0]).all()
    out.square().sum().backward()
    for t in (q, k, v):
        assert torch.isfinite(t.grad).all() and (t.grad[1] == 0).all() and (t.grad[0] != 0).any()


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
        (torch.float16, True, 16, "efficient"),
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
        out, lse = attention._FORWARD[expected](q, k, v, mask, 0.25)
        grads = attention._BACKWARD[expected](out, q, k, v, out, lse, mask, 0.25)
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
        out, lse = attention._math_forward(q, k, v, None, scale)
        return out, torch.nn.functional.pad(lse, (0, 32 - M), value=math.inf), None, None

    def backward(grad, q, k, v, bias, out, lse, seed, offset, dropout, wanted, scale):
        seen["lse"] = lse
        return *attention._math_backward(grad, q, k, v, out, lse[..., :M], None, scale), None

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


def test_compiled_without_graph_break_equals_eager():
    def loss(q, k, v, mask):
        out, lse = attention_with_lse(q, k, v, key_mask=mask)
        return out.square().sum() + lse.sum()

    results = []
    for f in (loss, torch.compile(loss, fullgraph=True, dynamic=True, backend="aot_eager")):
        torch.manual_seed(1)
        inputs = [t.requires_grad_() for t in qkv()]
        value = f(*inputs, some_mask())
        value.backward()
        results.append([value.detach(), *(t.grad for t in inputs)])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


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
