"""Every attention kernel that could be chosen on a device, against softmax in fp64.

The reference is written out with ``einsum`` on the CPU and knows nothing of the kernels. Keys are
cut in two shards, as two ranks own them: the forward kernel runs on each and the pairs are merged;
the backward kernel runs on each with the *global* output and log-normaliser of the reference, so
that a fault of one kernel does not appear as one of the other.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from ..ops import attention_backward, attention_with_lse, decode, encode, merge_partials
from ..ops.kernels import select_backend
from .findings import REPORT, Finding, gradient_errors, judge, relative_error

# Samples, heads, queries, keys, channels of keys and of values: odd sizes, one key, tokens as
# queries, wide heads, heads that no fused kernel takes.
SIZES = ((2, 3, 21, 301, 16, 16), (1, 2, 5, 1, 8, 8), (1, 1, 301, 7, 16, 16),
         (2, 2, 33, 130, 64, 64), (1, 2, 9, 40, 12, 20))  # fmt: skip
# So many tokens that kernels take them in parts on any GPU, alike and with a remainder.
LARGE_SIZES = ((1, 8, 32, 4096, 16, 16), (1, 8, 32, 4999, 16, 16))
PARTS = (None, 1, 3)  # as chosen, the whole, some
WEIGHTINGS = ("plain", "mask", "weights")
# Of norms, to the size of the result. A wrong scale, layout or mask is off by a tenth or more.
LIMITS = {torch.float64: 1e-11, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}


@dataclass(frozen=True)
class Case:
    """One call of a kernel: sizes (B, H, M, N, D, E), dtype, and how the keys are weighted."""

    sizes: tuple[int, int, int, int, int, int]
    dtype: torch.dtype
    weighting: str

    def __str__(self) -> str:
        """Name it for a message."""
        return "B={} H={} M={} N={} D={} E={}".format(*self.sizes) + f", {self.weighting}"

    def inputs(self) -> tuple[list[Tensor], Tensor | None, Tensor]:
        """Return q, k, v in the dtype, weights, and a gradient of the output, on the CPU."""
        b, h, m, n, d, e = self.sizes
        draw = torch.Generator().manual_seed(sum(self.sizes))
        # With heads innermost, as the layers of a model store them.
        tensors = [
            torch.randn(b, rows, h, width, generator=draw).to(self.dtype).transpose(1, 2)
            for rows, width in ((m, d), (n, d), (n, e), (m, e))
        ]
        weights = None
        if self.weighting == "mask":
            weights = torch.rand(b, n, generator=draw) > 0.4
            weights[-1, : n // 2] = False  # one sample has nothing in the first shard
            weights[:, -1] = True
        elif self.weighting == "weights":
            weights = torch.exp(2 * torch.randn(b, n, generator=draw))
        return tensors[:3], weights, tensors[3]


def explicit_attention(q: Tensor, k: Tensor, v: Tensor, weights: Tensor | None):
    """Return output and log-normaliser in the dtype of the inputs, written out."""
    scores = torch.einsum("bhmd,bhnd->bhmn", q, k) / math.sqrt(q.shape[-1])
    if weights is not None:
        scores = scores + weights.to(q.dtype).log()[:, None, None]
    lse = scores.logsumexp(-1)
    return torch.einsum("bhmn,bhnd->bhmd", torch.exp(scores - lse[..., None]), v), lse


def forward_errors(case: Case, device: torch.device) -> dict[str, float]:
    """Return the errors of one call, and of shards and parts that are merged."""
    (q, k, v), weights, _ = case.inputs()
    expected = explicit_attention(q.double(), k.double(), v.double(), weights)
    q, k, v = (t.to(device) for t in (q, k, v))
    weights = None if weights is None else weights.to(device)
    pairs = [
        attention_with_lse(q, *shard, key_weights=mine, splits=1)
        for *shard, mine in _shards(k, v, weights)
    ]
    merged = merge_partials(*zip(*pairs, strict=True))
    whole, parts = (
        attention_with_lse(q, k, v, key_weights=weights, splits=splits) for splits in (1, 3)
    )
    errors = [[relative_error(*pair) for pair in zip(found, expected, strict=True)]
              for found in (whole, merged, parts)]  # fmt: skip
    return {
        "output": errors[0][0],
        "log-normaliser": errors[0][1],
        "two shards merged": max(errors[1]),
        "three parts": max(errors[2]),
    }


def backward_errors(case: Case, device: torch.device) -> dict[str, float]:
    """Return the errors of the gradients that two shards give with the global pair."""
    (q, k, v), weights, grad = case.inputs()
    leaves = [t.double().requires_grad_() for t in (q, k, v)]
    out, lse = explicit_attention(*leaves, weights)
    expected = torch.autograd.grad(out, leaves, grad.double())
    pair = out.to(device, q.dtype), lse.to(device, torch.promote_types(q.dtype, torch.float32))
    pair = tuple(t.detach() for t in pair)
    q, k, v, grad = (t.to(device) for t in (q, k, v, grad))
    weights = None if weights is None else weights.to(device)
    scale = q.shape[-1] ** -0.5
    shares = [
        attention_backward(grad, q, *shard, *pair, scale=scale, key_weights=mine)
        for *shard, mine in _shards(k, v, weights)
    ]
    dq, dk, dv = zip(*shares, strict=True)
    found = dq[0].double() + dq[1].double(), torch.cat(dk, 2), torch.cat(dv, 2)
    # With one key the softmax is constant: what is left of dq and dk is rounding.
    errors = gradient_errors(found, expected)
    return {f"gradient of {name}": error for name, error in zip("qkv", errors, strict=True)}


def own_operator_errors(case: Case, device: torch.device) -> dict[str, float]:
    """Return the errors of encode and decode as models call them, through autograd, in parts."""
    (short, long, other), weights, _ = case.inputs()
    mine = {"key_weights": None if weights is None else weights.to(device)}
    errors = {}
    for call, inputs, seen, given in (
        (encode, (short, long, other), weights, mine),
        (decode, (long, short, short.flip(2)), None, {}),
    ):
        name = call.__name__
        exact = [t.double().requires_grad_() for t in inputs]
        reference = explicit_attention(*exact, seen)[0]
        cotangent = torch.cos(torch.arange(reference.numel())).view(reference.shape).to(case.dtype)
        references = torch.autograd.grad(reference, exact, cotangent.double())
        for parts in PARTS:
            leaves = [t.to(device).requires_grad_() for t in inputs]
            out = call(*leaves, splits=parts, **given)
            gradients = torch.autograd.grad(out, leaves, cotangent.to(device))
            how = {None: "as chosen", 1: "whole"}.get(parts, f"in {parts} parts")
            errors[f"{name} {how}"] = relative_error(out, reference)
            errors[f"gradients of {name} {how}"] = max(gradient_errors(gradients, references))
    return errors


def kernel_findings(device: torch.device) -> Iterator[Finding]:
    """Yield a finding for each kernel, dtype and direction, and for torch's own choice."""
    groups: dict[tuple[str, torch.dtype], list[Case]] = {}
    for dtype, sizes, weighting in product(LIMITS, SIZES, WEIGHTINGS):
        case = Case(sizes, dtype, weighting)
        inputs, weights, _ = case.inputs()
        backend = select_backend(*(t.to(device) for t in inputs), weights)
        groups.setdefault((backend, dtype), []).append(case)
    for (backend, dtype), cases in groups.items():
        name = f"kernel {backend} {short_name(dtype)}"
        yield _worst(f"{name} forward", cases, forward_errors, device)
        yield _worst(f"{name} backward", cases, backward_errors, device)
    for dtype in LIMITS:
        cases = [Case(sizes, dtype, "plain") for sizes in SIZES]
        cases += [Case(sizes, dtype, kind) for sizes in LARGE_SIZES for kind in WEIGHTINGS]
        yield _worst(f"encode, decode {short_name(dtype)}", cases, own_operator_errors, device)


def _worst(name: str, cases: list[Case], measure, device: torch.device) -> Finding:
    """Return the largest error of a kernel over its cases, and what it points to."""
    found = [(error, what, case) for case in cases for what, error in measure(case, device).items()]
    error, what, case = max(found, key=lambda item: item[0])
    limit = LIMITS[case.dtype]
    figures = f"error {error:.1e} (limit {limit:.0e}) over {len(cases)} cases"
    wrong = {(what, case.weighting) for error, what, case in found if error > limit}
    if not wrong:
        return judge(name, error, limit, figures, "")
    figures += f"; worst: {what}, {case}; {_suspicion(wrong)}"
    advice = "results with this kernel are wrong: train with another precision (training.precision)"
    return judge(name, error, limit, figures, f"{advice}, update torch, and {REPORT}")


def _suspicion(wrong: set[tuple[str, str]]) -> str:
    """Say which mistake would give these wrong quantities."""
    plain = {what for what, weighting in wrong if weighting == "plain"}
    if not plain:
        return "only weighted keys are wrong: the mask or the weights are dropped or misread"
    if "log-normaliser" in plain and "output" not in plain:
        return "the log-normaliser is in another layout or base than expected"
    if not plain & {"output", "log-normaliser"} and plain & {"two shards merged", "three parts"}:
        return "one call is right, merging parts is not"
    if all(what.startswith("gradients of") for what in plain):
        return "a backward kernel misreads the layout of the log-normaliser or of the output"
    return "the scale, the layout or the use of the log-normaliser is wrong"


def short_name(dtype: torch.dtype) -> str:
    """Return a dtype's name without its package."""
    return str(dtype).removeprefix("torch.")


def _shards(k: Tensor, v: Tensor, weights: Tensor | None):
    """Cut keys, values and weights after a third of the keys."""
    cut = k.shape[2] // 3
    for part in (slice(cut), slice(cut, None)):
        yield k[:, :, part], v[:, :, part], None if weights is None else weights[:, part]
