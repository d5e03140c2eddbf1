import pytest
import torch
import torch.nn.functional as F

from physicsnemo_flarepp.ops import split_linear, unit_scale


def f64(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def test_split_linear_equals_linear_and_chunk():
    x, w, b = f64(2, 5, 4), f64(12, 4), f64(12)
    for part, reference in zip(
        split_linear(x, w, b, 3), F.linear(x, w, b).chunk(3, -1), strict=True
    ):
        torch.testing.assert_close(part, reference, rtol=0, atol=1e-14)
    torch.autograd.gradcheck(lambda *a: split_linear(*a, 3), (x, w, b))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_split_linear_follows_autocast(dtype):
    x, w, b = (t.detach().float().requires_grad_() for t in (f64(6, 4), f64(8, 4), f64(8)))
    with torch.autocast("cpu", dtype):
        parts = split_linear(x, w, b, 2)
        reference = F.linear(x, w, b)
    assert parts[0].dtype == reference.dtype == dtype
    assert torch.equal(torch.cat(parts, -1), reference)
    sum(p.float().sum() for p in parts).backward()
    assert x.grad.dtype == w.grad.dtype == b.grad.dtype == torch.float32


@pytest.mark.parametrize("center", [True, False])
def test_unit_scale_is_the_norm_without_weights(center):
    x = f64(3, 7, 8)
    reference = F.layer_norm(x, (8,), eps=1e-5) if center else F.rms_norm(x, (8,), eps=1e-5)
    torch.testing.assert_close(unit_scale(x, 1e-5, center), reference, rtol=0, atol=1e-14)
    torch.autograd.gradcheck(lambda t: unit_scale(t, 1e-5, center), x)


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_unit_scale_keeps_half_dtypes_finite(dtype, center):
    x = (200 * torch.randn(4, 16)).to(dtype).requires_grad_()  # squares overflow fp16
    y = unit_scale(x, 1e-6, center)
    y.float().square().sum().backward()
    assert y.dtype == x.grad.dtype == dtype
    assert torch.isfinite(y).all() and torch.isfinite(x.grad).all()


def test_unit_scale_keeps_its_result_and_not_its_input():
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        x = f64(50, 8)
        y = unit_scale(x, 1e-5, True)
    assert sum(t.numel() for t in kept) == y.numel() + 50
    assert all(t.data_ptr() != x.data_ptr() for t in kept)
