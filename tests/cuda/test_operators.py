"""Operators on emulated cards: the gradients of fp64, and stand-ins that notice a wrong call."""

import math

import pytest
import torch

from physicsnemo_flarepp.checks import Check
from physicsnemo_flarepp.checks import kernels as check_kernels
from physicsnemo_flarepp.ops import attention_backward, attention_with_lse, decode, encode, kernels
from tests.cuda.standins import Misread, emulate

LIMITS = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}
CARDS = ("sm_75", "sm_80", "sm_90")
# Samples, heads, tokens: below a part, parts alike, parts with a remainder.
SIZES = ((1, 8, 300), (1, 1, 2048), (2, 8, 2048), (1, 8, 4097), (2, 1, 4097))
M, D = 64, 16


def rows(batch, n, heads, dtype):
    """Tokens as a projection stores them: heads innermost."""
    return torch.randn(batch, n, heads, D).to(dtype).transpose(1, 2)


def reference(q, k, v, weights, cotangents):
    """Output, normaliser and gradients in fp64 by einsum."""
    leaves = q, k, v = [t.detach().double().requires_grad_() for t in (q, k, v)]
    if weights is not None and weights.requires_grad:
        weights = weights.detach().double().requires_grad_()
        leaves.append(weights)
    scores = torch.einsum("bhmd,bhnd->bhmn", q, k) * D**-0.5
    if weights is not None:
        scores = scores + weights.double().log()[:, None, None]
    results = torch.einsum("bhmn,bhnd->bhmd", scores.softmax(-1), v), scores.logsumexp(-1)
    doubled = [cotangent.double() for cotangent in cotangents]
    results = results[: len(cotangents)]
    return [*results, *torch.autograd.grad(results, leaves, doubled)]


def assert_near(found, expected, limit):
    for a, b in zip(found, expected, strict=True):
        assert (a.double() - b).norm() <= limit * b.norm()


def weighting_of(kind, batch, n):
    if kind == "plain":
        return {}
    if kind == "mask":
        return {"key_mask": torch.rand(batch, n) > 0.3}
    weights = torch.exp(torch.randn(batch, n))
    return {"key_weights": weights.requires_grad_(kind == "learned weights")}


def check(call, inputs, weighting, dtype):
    leaves = [t.detach().requires_grad_() for t in inputs]
    results = call(*leaves, **weighting)
    leaves += [t for t in weighting.values() if t.requires_grad]
    results = results if isinstance(results, tuple) else (results,)
    cotangents = [torch.randn(t.shape).to(t.dtype) for t in results]
    found = [*results, *torch.autograd.grad(results, leaves, cotangents)]
    weights = next(iter(weighting.values()), None)
    assert_near(found, reference(*inputs, weights, cotangents), LIMITS[dtype])


WEIGHTINGS = ("plain", "mask", "weights", "learned weights")
# Every card with every dtype, which choose the kernel, and both with every weighting.
PAIRED = [
    (card, dtype, WEIGHTINGS[(i + j + k) % 4])
    for i, card in enumerate(CARDS)
    for j, dtype in enumerate(LIMITS)
    for k in (0, 2)
]


@pytest.mark.parametrize("card, dtype, weighting", PAIRED, ids=str)
def test_gradients_are_those_of_fp64(card, dtype, weighting, monkeypatch):
    calls = emulate(monkeypatch, card)
    for batch, heads, n in SIZES:
        q, z, k, v = (rows(batch, length, heads, dtype) for length in (M, M, n, n))
        weights = weighting_of(weighting, batch, n)
        check(encode, (q, k, v), weights, dtype)
        check(attention_with_lse, (q, k, v), weights, dtype)
        check(decode, (k, q, z), {}, dtype)
    kind = kernels.select_backend(q, k, v, None)
    expected = set() if kind == "math" else {f"{kind} forward", f"{kind} backward"}
    assert set(calls) == expected  # the kernel that the card has for this dtype, and no other


@pytest.mark.slow
def test_gradients_of_many_tokens(monkeypatch):
    """The size at which gradients were first seen to be wrong: by half."""
    dtype = torch.bfloat16
    emulate(monkeypatch, "sm_80")
    q, z, k, v = (rows(1, n, 8, dtype) for n in (M, M, 40_000, 40_000))
    check(encode, (q, k, v), {}, dtype)
    check(decode, (k, q, z), {}, dtype)


def view_of(kind, x):
    """The same numbers in a layout that vector loads cannot read, or in another order."""
    if kind == "channels apart":
        return torch.stack((x, x), -1)[..., 0]
    if kind == "odd start":
        return torch.cat((x.new_zeros(1), x.flatten()))[1:].view(x.shape)
    return x.transpose(0, 1).contiguous().transpose(0, 1)


@pytest.mark.parametrize("kind", ["channels apart", "odd start", "other order"])
@pytest.mark.parametrize("card, dtype", [("sm_75", torch.float16), ("sm_80", torch.float16),
                                         ("sm_80", torch.float32)], ids=str)  # fmt: skip
def test_views_that_a_kernel_would_misread_are_copied(card, dtype, kind, monkeypatch):
    emulate(monkeypatch, card)
    q, k, v, grad = (rows(2, n, 4, dtype) for n in (M, 300, 300, M))
    out, lse = attention_with_lse(q, k, v)
    given = [grad, q, k, v, out, lse]
    expected = attention_backward(*given, scale=D**-0.5)
    for i, x in enumerate(given):
        changed = [*given[:i], view_of(kind, x), *given[i + 1 :]]
        found = attention_backward(*changed, scale=D**-0.5)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
        torch.testing.assert_close(attention_with_lse(*changed[1:4])[0], out, rtol=0, atol=0)


H, N = 4, 40
AS_GIVEN = {
    "lse of one sample": ("flash", "lse", lambda x: x[0].clone().expand(2, -1, -1)),
    "lse in half": ("flash", "lse", lambda x: x.half()),
    "fp32": ("flash", "q", lambda x: x.float()),
    "channels apart": ("flash", "k", lambda x: view_of("channels apart", x)),
    "odd head": ("flash", "k", lambda x: x[..., :12]),
    "odd start": ("flash", "v", lambda x: view_of("odd start", x)),
    "lse not padded": ("efficient", "lse", lambda x: x[..., :50]),
    "lse padded by 0": ("efficient", "q", lambda x: x[:, :, :50]),
    "lse off alignment": ("efficient", "lse", lambda x: torch.zeros(2, H, M + 3)[..., :M]),
    "fp32 bias": ("efficient", "bias", lambda x: torch.zeros(2, H, M, N)),
    "bias off alignment": ("efficient", "bias", lambda x: torch.ones(2, H, M, 41).half()[..., :N]),
    "out of one head": ("efficient", "out", lambda x: x[-1:, -1:, -1:].expand(2, H, M, -1)),
}  # fmt: skip


@pytest.mark.parametrize("name", AS_GIVEN)
def test_stand_ins_notice_what_a_kernel_would_misread(name, monkeypatch):
    emulate(monkeypatch, "sm_80")
    kind, changed, change = AS_GIVEN[name]
    sizes = {"grad": M, "q": M, "k": N, "v": N}
    given = {key: rows(2, n, H, torch.float16) for key, n in sizes.items()}
    given |= {"bias": None} if kind == "efficient" else {}
    given |= {"out": rows(2, M, H, torch.float16), "lse": torch.zeros(2, H, M)}
    state = torch.empty(0, dtype=torch.uint64)
    call = getattr(torch.ops.aten, f"_scaled_dot_product_{kind}_attention_backward")
    rest = {
        "flash": (None, None, M, N, 0.0, False, state, state),
        "efficient": (state, state, 0.0, [True, True, True, False]),
    }[kind]
    call(*given.values(), *rest, scale=0.25)
    given[changed] = change(given[changed])
    with pytest.raises(Misread):
        call(*given.values(), *rest, scale=0.25)


def misread_normalisers(monkeypatch):
    """A flash backward pass that reads lse from its first address on, whatever its strides."""
    right = kernels.BACKWARD["flash"]

    def wrong(grad_out, q, k, v, out, lse, log_weights, scale):
        stored = torch.empty(0).set_(lse.untyped_storage())[lse.storage_offset() :]
        seen = stored.repeat(math.ceil(lse.numel() / stored.numel()))[: lse.numel()]
        return right(grad_out, q, k, v, out, seen.view(lse.shape), log_weights, scale)

    monkeypatch.setitem(kernels.BACKWARD, "flash", wrong)


@pytest.mark.slow
@pytest.mark.parametrize("card", ["sm_75", "sm_80"])
def test_the_check_of_a_machine_fails_on_a_kernel_that_misreads(card, monkeypatch):
    monkeypatch.setattr(check_kernels, "LIMITS", {torch.float16: 1e-2})
    check = Check("kernels", check_kernels.kernel_findings, "")
    emulate(monkeypatch, card)
    found = list(check.run(torch.device("cpu")))
    assert {finding.status for finding in found} == {"pass"}, [f for f in found if f.advice]
    if card == "sm_75":
        monkeypatch.setattr(kernels, "heads_innermost", torch.Tensor.contiguous)
    else:
        misread_normalisers(monkeypatch)
    failed = {f.name: f.figures for f in check.run(torch.device("cpu")) if f.status == "FAIL"}
    if card == "sm_75":
        assert "Misread" in failed["kernels"]  # the stand-in refuses to read past the output
    else:
        assert "a backward kernel misreads" in failed["encode, decode float16"]
