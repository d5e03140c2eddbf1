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
    assert torch.autograd.gradcheck(lambda *a: split_linear(*a, 3), (x, w, b))


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
    assert torch.autograd.gradcheck(lambda t: unit_scale(t, 1e-5, center), x)


@pytest.mark.parametrize("autocast", [True, False])
@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_unit_scale_in_half_precision_is_the_rounded_single_one(dtype, center, autocast):
    x = (200 * torch.randn(4, 16)).to(dtype).requires_grad_()  # squares overflow fp16
    with torch.autocast("cpu", dtype, enabled=autocast):
        y = unit_scale(x, 1e-6, center)
    torch.testing.assert_close(y.float(), unit_scale(x.float(), 1e-6, center), rtol=0, atol=2e-2)
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


@pytest.mark.parametrize("center", [True, False])
def test_cuda_autocast_leaves_the_dtype_alone(center, fake_cuda_autocast):
    # LayerNorm is an fp32 operation under CUDA's autocast, not under the CPU's.
    x = torch.empty(4, 16)
    parts = split_linear(x, torch.empty(32, 16), torch.empty(32), 2)
    assert {part.dtype for part in parts} == {torch.bfloat16}
    assert unit_scale(parts[0], 1e-6, center).dtype == torch.bfloat16


def test_backward_inside_autocast_of_a_forward_outside():
    x, w, b = (t.detach().float().requires_grad_() for t in (f64(6, 4), f64(8, 4), f64(8)))
    total = sum(part.sum() for part in split_linear(x, w, b, 2))
    with torch.autocast("cpu", torch.bfloat16):
        total.backward()
    torch.testing.assert_close(x.grad, w.detach().sum(0).expand(6, -1))


def test_frozen_weights_cost_no_gradient():
    x, w, b = f64(6, 4), f64(8, 4).detach(), f64(8).detach()
    sum(part.sum() for part in split_linear(x, w, b, 2)).backward()
    assert x.grad is not None and w.grad is None


@pytest.mark.parametrize(
    "call",
    [lambda x: unit_scale(x, 1e-5, True), lambda x: split_linear(x, x[:2], x[:2, 0], 1)[0]],
)
def test_second_derivatives_raise_instead_of_being_wrong(call):
    x = f64(4, 4)
    (grad,) = torch.autograd.grad(call(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()
