import warnings
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch._decomp import decomposition_table

from physicsnemo_flarepp import FlarePP
from physicsnemo_flarepp.mixers import make_norm
from physicsnemo_flarepp.ops import pointwise, rms_norm, split_linear, unit_scale


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


def rms_by_hand(x, weight, eps):
    """RMSNorm from its definition."""
    return weight * x / (x.square().mean(-1, keepdim=True) + eps) ** 0.5


@pytest.mark.parametrize("autocast", [True, False])
@pytest.mark.parametrize("size", [1e-6, 1.0, 6e3])  # of a number; squares are off the range of fp16
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rms_norm_of_half_inputs_is_that_of_double_precision_rounded_once(dtype, size, autocast):
    x, weight = (size * torch.randn(2, 300, 48)).to(dtype), 1 + 0.3 * torch.randn(48)
    grad = (min(1.0, 1e3 * size) * torch.randn(2, 300, 48)).to(dtype)
    leaves = x.requires_grad_(), weight.requires_grad_()
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    with torch.autocast("cpu", dtype, enabled=autocast):
        found = rms_norm(*leaves, 1e-6)
    expected = rms_by_hand(*exact, 1e-6)
    found.backward(grad)
    expected.backward(grad.double())
    assert (found.dtype, x.grad.dtype, weight.grad.dtype) == (dtype, dtype, torch.float32)
    rounding = torch.finfo(dtype).eps / 2
    for a, b in ((found, expected), (x.grad, exact[0].grad)):
        torch.testing.assert_close(a.double(), b, rtol=1.01 * rounding, atol=1e-4 * rounding)
    torch.testing.assert_close(weight.grad.double(), exact[1].grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("weight_dtype", [torch.float32, torch.float64])
def test_rms_norm_of_one_dtype_and_of_two_has_the_same_derivatives(weight_dtype):
    x = torch.randn(3, 4, 8, dtype=torch.float64).transpose(0, 1)
    weight = torch.randn(8, dtype=weight_dtype)
    leaves, exact = [[t.detach().clone().requires_grad_() for t in (x, weight)] for _ in range(2)]
    rms_norm(*leaves, 1e-3).sin().sum().backward()
    rms_by_hand(exact[0], exact[1].double(), 1e-3).sin().sum().backward()
    for a, b in zip(leaves, exact, strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-6, atol=1e-6)


def test_rms_norm_calls_the_kernel_of_gpus_as_torch_defines_it(fake_cuda_autocast):
    x, weight = torch.empty(2, 5, 16, dtype=torch.bfloat16), torch.empty(16)
    assert rms_norm(x, weight, 1e-6).dtype == torch.bfloat16
    saved = x, weight, torch.empty(2, 5, 1)
    ctx = SimpleNamespace(saved_tensors=saved, needs_input_grad=(True, True, False))
    with torch.no_grad():
        dx, dw, _ = pointwise._RmsNorm.backward(ctx, torch.empty_like(x))
    assert (dx.dtype, dx.shape, dw.dtype, dw.shape) == (
        *(x.dtype, x.shape),
        *(torch.float32, (16,)),
    )


def test_the_kernel_of_gpus_is_defined_as_ours():
    x, weight, grad = torch.randn(5, 16).bfloat16(), torch.randn(16), torch.randn(5, 16).bfloat16()
    leaves = x.requires_grad_(), weight.requires_grad_()
    ours = torch.autograd.grad(rms_norm(*leaves, 1e-6), leaves, grad)
    kernel = decomposition_table[torch.ops.aten._fused_rms_norm_backward.default]
    scale = torch.rsqrt(x.detach().float().square().mean(-1, keepdim=True) + 1e-6)
    theirs = kernel(grad.float(), x.detach().float(), [16], scale, weight.detach(), [True, True])
    torch.testing.assert_close(ours, (theirs[0].bfloat16(), theirs[1]))


def test_rms_norm_keeps_its_input_and_one_number_per_row():
    kept = []
    x, weight = torch.randn(50, 8).bfloat16().requires_grad_(), torch.ones(8, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        rms_norm(x, weight, 1e-6)
    assert sum(t.numel() * t.element_size() for t in kept) == 2 * x.numel() + 4 * (50 + 8)
    assert any(t.data_ptr() == x.data_ptr() for t in kept)


@pytest.mark.parametrize("anchored", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_models_in_mixed_precision_stay_on_fused_norms(dtype, anchored):
    sizes = {"n_layers": 1, "n_hidden": 16, "n_head": 2, "slice_num": 4}
    model = FlarePP(3, 1, norm="rms", anchored_queries=anchored, **sizes)
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # torch says it once a process
    try:
        with warnings.catch_warnings(), torch.autocast("cpu", dtype):
            warnings.simplefilter("error")
            model(torch.rand(1, 20, 3)).float().square().mean().backward()
    finally:
        torch.set_warn_always(before)
    assert all(p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.unchecked
def test_rms_norm_compiles_under_autocast_for_every_number_of_rows():
    norm = make_norm("rms", 16)

    def run(x):
        with torch.autocast("cpu", torch.bfloat16):
            return norm(x)

    torch._dynamo.reset()
    compiled = torch.compile(run, fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (12, 31):
        x = torch.randn(2, rows, 16).bfloat16().requires_grad_()
        found, expected = (
            torch.autograd.grad(call(x).float().sin().sum(), (x, norm.weight))
            for call in (compiled, run)
        )
        torch.testing.assert_close(found, expected)


def test_rms_norm_has_the_weights_and_the_name_that_checkpoints_of_torchs_have():
    ours, theirs = make_norm("rms", 16), torch.nn.RMSNorm(16, eps=1e-6)
    assert repr(ours) == repr(theirs)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(5, 16)
    assert torch.equal(ours(x), theirs(x))


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
