"""A kernel that is wrong is found, named, and told by what is wrong with it."""

import pytest
import torch

from physicsnemo_flarepp.checks import FAILED
from physicsnemo_flarepp.checks import kernels as kernel_checks
from physicsnemo_flarepp.checks.kernels import kernel_findings
from physicsnemo_flarepp.ops import kernels

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def few_tokens(monkeypatch):
    """Mistakes show in small calls, too; tests/cuda has the large ones, where parts are wrong."""
    monkeypatch.setattr(kernel_checks, "LARGE_SIZES", ((1, 2, 4, 96, 8, 8),))


def failures():
    return {f.name: f for f in kernel_findings(CPU) if f.status == FAILED}


def transposed_normaliser(kernel):
    def broken(*arguments):
        out, lse = kernel(*arguments)
        return out, lse.transpose(1, 2).reshape(lse.shape)

    return broken


def padded_normaliser(kernel):
    """Rows stay where they are in memory, but are read at the length of padded ones."""

    def broken(*arguments):
        out, lse = kernel(*arguments)
        rows = torch.nn.functional.pad(lse, (0, -lse.shape[-1] % 32))
        return out, rows.flatten()[: lse.numel()].view(lse.shape)

    return broken


def wrong_scale(kernel):
    return lambda *arguments: kernel(*arguments[:-1], 1.1 * arguments[-1])


def dropped_mask(kernel):
    return lambda *arguments: kernel(*arguments[:-2], None, arguments[-1])


def own_normaliser(kernel):
    """A backward kernel that normalises its shard by itself instead of by the global pair."""

    def broken(grad, q, k, v, out, lse, log_weights, scale):
        out, lse = kernels._math_forward(q, k, v, log_weights, scale)
        return kernel(grad, q, k, v, out, lse, log_weights, scale)

    return broken


def test_kernels_of_this_machine_pass_and_all_are_looked_at():
    findings = {f.name: f for f in kernel_findings(CPU)}
    dtypes = ("float64", "float32", "float16", "bfloat16")
    names = {
        f"kernel {backend} {dtype} {direction}"
        for backend in ("cpu", "math")
        for dtype in dtypes
        for direction in ("forward", "backward")
    }
    assert set(findings) == names | {f"encode, decode {dtype}" for dtype in dtypes}
    assert not any(f.status == FAILED for f in findings.values())


@pytest.mark.parametrize(
    "mistake, words",
    [
        (transposed_normaliser, "log-normaliser is in another layout"),
        (padded_normaliser, "log-normaliser is in another layout"),
        (wrong_scale, "the scale, the layout"),
        (dropped_mask, "the mask or the weights are dropped"),
    ],
)
def test_a_broken_forward_kernel_is_named_with_its_mistake(mistake, words, monkeypatch):
    monkeypatch.setitem(kernels.FORWARD, "cpu", mistake(kernels.FORWARD["cpu"]))
    found = failures()
    dtypes = ("float64", "float32", "float16", "bfloat16")
    # The operators that models call use the kernel too, where they take parts.
    names = {f"kernel cpu {dtype} forward" for dtype in dtypes}
    assert names == set(found) - {f"encode, decode {dtype}" for dtype in dtypes}
    for name in names:
        assert words in found[name].figures and "training.precision" in found[name].advice


@pytest.mark.parametrize(
    "mistake, words",
    [
        (wrong_scale, "the scale, the layout"),
        (dropped_mask, "the mask or the weights are dropped"),
        (own_normaliser, "use of the log-normaliser"),
    ],
)
def test_a_broken_backward_kernel_is_named_with_its_mistake(mistake, words, monkeypatch):
    monkeypatch.setitem(kernels.BACKWARD, "math", mistake(kernels.BACKWARD["math"]))
    found = failures()
    dtypes = ("float64", "float32", "float16", "bfloat16")
    names = {f"kernel math {dtype} backward" for dtype in dtypes}
    assert names == set(found) - {f"encode, decode {dtype}" for dtype in dtypes}
    assert all(words in found[name].figures for name in names)


def test_a_wrong_operator_of_torch_is_found_where_models_call_it(monkeypatch):
    attend = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        torch.nn.functional,
        "scaled_dot_product_attention",
        lambda q, k, v, scale: attend(q, k, v, scale=1.0),
    )
    monkeypatch.setenv("FLAREPP_SPLITS", "1")
    assert "encode, decode float32" in failures()
