"""Plain operators: the values of the fused ones, and derivatives of any order."""

import math

import pytest
import torch
from torch.func import functional_call, hessian, jacfwd, jacrev, jvp

from physicsnemo_flarepp import FlarePP, MixerBackbone
from physicsnemo_flarepp.inference import decode_state, encode_state
from physicsnemo_flarepp.ops import (
    attention_with_lse,
    plain_operators,
    rms_norm,
    split_linear,
    unit_scale,
)
from physicsnemo_flarepp.ops.kernels import is_plain

B, H, M, N, D = 2, 1, 2, 3, 3
MIXERS = ["flarepp", "flare", "attention", "transolver", "transolver3"]
SIZES = {"n_layers": 1, "n_hidden": 8, "n_head": 2, "slice_num": 3}


def qkv():
    return tuple(torch.randn(B, H, n, D, dtype=torch.float64) for n in (M, N, N))


def attend(weights):
    return lambda q, k, v: attention_with_lse(q, k, v, key_weights=weights)


OPERATORS = {
    "attention": (attend(None), qkv),
    "weighted attention": (attend(torch.rand(B, N)), qkv),
    "split linear": (
        lambda x, w, b: split_linear(x, w, b, 2),
        lambda: [torch.randn(*shape, dtype=torch.float64) for shape in ((5, 3), (4, 3), (4,))],
    ),
    "layer norm": (
        lambda x: unit_scale(x, 1e-5, center=True),
        lambda: [torch.randn(4, 3, dtype=torch.float64)],
    ),
    "rms norm": (
        lambda x: unit_scale(x, 1e-5, center=False),
        lambda: [torch.randn(4, 3, dtype=torch.float64)],
    ),
    "rms norm with weights": (
        lambda x, weight: rms_norm(x, weight, 1e-5),
        lambda: [torch.randn(*shape, dtype=torch.float64) for shape in ((4, 3), (3,))],
    ),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_values_are_those_of_the_fused_operator(name):
    operator, make = OPERATORS[name]
    inputs = make()
    fused = operator(*inputs)
    with plain_operators():
        plain = operator(*inputs)
    torch.testing.assert_close(plain, fused, rtol=0, atol=1e-13)


@pytest.mark.parametrize("autocast", [True, False])
@pytest.mark.parametrize("name", [name for name in OPERATORS if name != "split linear"])
def test_values_in_half_precision_are_those_of_double_precision_rounded(name, autocast):
    operator, make = OPERATORS[name]
    inputs = [200 * value for value in make()]  # squares are off the range of fp16
    inputs = [value.half() for value in inputs]
    expected = operator(*(value.double() for value in inputs))
    with torch.autocast("cpu", torch.float16, enabled=autocast), plain_operators():
        found = operator(*inputs)
    for a, b in zip(*(y if isinstance(y, tuple) else (y,) for y in (found, expected)), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATORS)
def test_second_derivatives_are_those_of_finite_differences(name):
    operator, make = OPERATORS[name]
    inputs = [value.requires_grad_() for value in make()]
    with plain_operators():
        assert torch.autograd.gradcheck(operator, inputs, check_forward_ad=True)
        assert torch.autograd.gradgradcheck(operator, inputs)


def test_rows_without_keys_have_zero_derivatives():
    q, k, v = (t.requires_grad_() for t in qkv())
    mask = torch.tensor([[True] * N, [False] * N])
    with plain_operators():
        out, lse = attention_with_lse(q, k, v, key_mask=mask)
        assert (out[1] == 0).all() and (lse[1] == -math.inf).all()
        gradients = torch.autograd.grad(out.square().sum(), (q, k, v), create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in gradients), (q, k, v))
    assert all((g[1] == 0).all() and (g[0] != 0).any() for g in (*gradients, *second))


def test_the_choice_ends_with_the_block_even_after_an_error():
    with pytest.raises(ZeroDivisionError), plain_operators():
        assert is_plain()
        raise ZeroDivisionError
    assert not is_plain()


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("mixer", MIXERS)
def test_hessian_of_a_model_is_that_of_finite_differences(mixer, norm):
    sizes = SIZES | ({"slice_num": None} if mixer == "attention" else {})
    model = MixerBackbone(2, 1, mixer=mixer, norm=norm, **sizes).double().eval()
    x = torch.rand(1, 4, 2, dtype=torch.float64)

    def energy(x):
        return model(x).square().sum()

    step = 1e-5
    with plain_operators():
        found = torch.autograd.functional.hessian(energy, x).reshape(8, 8)
        torch.testing.assert_close(hessian(energy)(x).reshape(8, 8), found, rtol=0, atol=1e-12)
        expected = torch.empty(8, 8, dtype=torch.float64)
        for i, shift in enumerate(step * torch.eye(8, dtype=torch.float64)):
            above, below = (jacrev(energy)(x + sign * shift.view_as(x)) for sign in (1, -1))
            expected[i] = (above - below).flatten() / (2 * step)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-8)


def test_forward_mode_agrees_with_reverse_mode():
    model = FlarePP(2, 1, **SIZES).double()
    x, direction = torch.rand(2, 1, 6, 2, dtype=torch.float64)
    weights = dict(model.named_parameters())
    with plain_operators():
        _, along = jvp(lambda x: functional_call(model, weights, (x,)), (x,), (direction,))
        forward, reverse = jacfwd(model)(x), jacrev(model)(x)
    torch.testing.assert_close(forward, reverse, rtol=0, atol=1e-12)
    torch.testing.assert_close((forward * direction).sum((-1, -2, -3)), along, rtol=0, atol=1e-12)


def test_a_loss_on_the_laplacian_trains_every_weight():
    model = FlarePP(2, 1, **SIZES).double()
    x = torch.rand(1, 6, 2, dtype=torch.float64, requires_grad=True)
    with plain_operators():
        u = model(x)
    (du,) = torch.autograd.grad(u.sum(), x, create_graph=True)
    second = [torch.autograd.grad(du[..., i].sum(), x, create_graph=True)[0] for i in (0, 1)]
    laplacian = second[0][..., 0] + second[1][..., 1]
    (laplacian + 1).square().mean().backward()
    without = [
        name for name, p in model.named_parameters() if p.grad is None or not (p.grad != 0).any()
    ]
    assert without == ["out_projection.4.bias"], "all but the free constant in u"


def test_points_decoded_from_a_state_have_second_derivatives():
    model = FlarePP(2, 1, **SIZES).double().eval()
    cloud, probe = torch.rand(1, 30, 2, dtype=torch.float64), torch.rand(1, 1, 2).double()
    state = encode_state(model, cloud)

    def value(point):
        return decode_state(model, point, None, state, progress=False).sum()

    with plain_operators():
        found = torch.autograd.functional.hessian(value, probe).reshape(2, 2)
    step = 1e-4
    axes = [step * torch.eye(2, dtype=torch.float64)[i].view_as(probe) for i in (0, 1)]
    for i, a in enumerate(axes):
        for j, b in enumerate(axes):
            corners = [value(probe + s * a + t * b) * s * t for s in (1, -1) for t in (1, -1)]
            assert abs(sum(corners) / (4 * step**2) - found[i, j]) < 1e-5


@pytest.mark.parametrize("fused", ["model", "attention"])
@pytest.mark.parametrize("transform", ["grad", "vmap", "jvp", "forward mode"])
def test_without_it_transforms_name_it(transform, fused):
    model = FlarePP(functional_dim=2, out_dim=1, n_layers=1, n_hidden=16, n_head=2)
    x, heads = torch.rand(1, 9, 2), torch.rand(1, 2, 9, 8)

    def call(x):
        if fused == "model":
            return model(x).sum()
        return attention_with_lse(x, heads, heads)[1].sum()

    x = x if fused == "model" else heads

    def forward_mode():
        with torch.autograd.forward_ad.dual_level():
            return call(torch.autograd.forward_ad.make_dual(x, x))

    ways = {
        "grad": lambda: torch.func.grad(call)(x),
        "vmap": lambda: torch.func.vmap(call)(torch.stack((x, x))),
        "jvp": lambda: jvp(call, (x,), (x,)),
        "forward mode": forward_mode,
    }
    with pytest.raises(RuntimeError, match="plain_operators"):
        ways[transform]()
    with plain_operators():
        ways[transform]()


def test_without_it_second_derivatives_raise():
    model = FlarePP(2, 1, **SIZES)
    x = torch.rand(1, 6, 2, requires_grad=True)
    with pytest.raises(RuntimeError):
        (du,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        du.square().sum().backward()
