"""Every CUDA backend against fp64 on the CPU: results, normalisers and gradients."""

import pytest
import torch

from physicsnemo_flarepp.ops import attention, attention_with_lse, decode, encode

pytestmark = pytest.mark.gpu

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 8e-2}
B, H, M, N = 2, 3, 21, 300
# So many tokens of one sample that kernels take them in parts, alike and with a remainder.
LARGE = ((1, 8, 64, 4096), (1, 8, 64, 40_001), (2, 1, 64, 9001))


def differentiate(q, k, v, mask, both):
    """Output, normaliser, and the gradients of the output's square (and of the normaliser)."""
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    out, lse = attention_with_lse(*leaves, key_mask=mask)
    (out.double().square().sum() + (lse.double().sum() if both else 0.0)).backward()
    return out, lse, *(leaf.grad for leaf in leaves)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("width", [12, 16, 64])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_results_and_gradients_equal_double_precision(cuda, dtype, width, masked):
    rounded = [torch.randn(B, H, n, width).to(dtype) for n in (M, N, N)]
    mask = torch.rand(B, N) > 0.3 if masked else None
    expected = differentiate(*(t.double() for t in rounded), mask, both=True)
    mask = None if mask is None else mask.to(cuda)
    found = differentiate(*(t.to(cuda) for t in rounded), mask, both=True)
    for result, reference in zip(found, expected, strict=True):
        close = TOLERANCE[dtype] * float(reference.detach().abs().max().clamp(min=1.0))
        torch.testing.assert_close(result.double().cpu(), reference, rtol=0, atol=close)


@pytest.mark.parametrize("parts", [None, 1, 7])
@pytest.mark.parametrize("sizes", LARGE, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_gradients_of_many_tokens_equal_double_precision(cuda, dtype, sizes, parts):
    """In the dtypes that choose the fused kernels, as chosen, whole and in parts."""
    b, h, m, n = sizes
    q, z, k, v = (torch.randn(b, rows, h, 16).to(dtype).transpose(1, 2) for rows in (m, m, n, n))
    for call, inputs in ((encode, (q, k, v)), (decode, (k, q, z))):
        exact = [t.double().requires_grad_() for t in inputs]
        scores = exact[0] @ exact[1].mT / 4
        expected = scores.softmax(-1) @ exact[2]
        cotangent = torch.randn(expected.shape).to(dtype)
        references = torch.autograd.grad(expected, exact, cotangent.double())
        leaves = [t.to(cuda).requires_grad_() for t in inputs]
        out = call(*leaves, splits=parts)
        found = torch.autograd.grad(out, leaves, cotangent.to(cuda))
        for a, b_ in zip((out, *found), (expected, *references), strict=True):
            error = (a.double().cpu() - b_).norm() / b_.norm()
            assert error < TOLERANCE[dtype]


def test_each_backend_is_reached(cuda):
    inputs = {
        dtype: [torch.randn(B, H, n, 16, dtype=dtype, device=cuda) for n in (M, N, N)]
        for dtype in TOLERANCE
    }
    chosen = {attention.select_backend(*qkv, None) for qkv in inputs.values()}
    newer = torch.cuda.get_device_capability(cuda) >= (8, 0)
    assert chosen == ({"math", "efficient", "flash"} if newer else {"math", "efficient"})


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_rows_without_keys_are_zero(cuda, dtype):
    q, k, v = (torch.randn(B, H, n, 16, dtype=dtype, device=cuda) for n in (M, N, N))
    mask = torch.ones(B, N, dtype=torch.bool, device=cuda)
    mask[1] = False
    out, lse, *gradients = differentiate(q, k, v, mask, both=False)
    assert (out[1] == 0).all() and (lse[1] == -torch.inf).all()
    assert all((g[1] == 0).all() and torch.isfinite(g).all() for g in gradients)
