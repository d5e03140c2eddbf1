"""Norms in mixed precision on CUDA against fp64 on the CPU."""

import pytest
import torch

from physicsnemo_flarepp.ops import rms_norm

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("size", [1e-3, 1.0, 6e3])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rms_norm_of_half_inputs_is_that_of_double_precision_rounded_once(cuda, dtype, size):
    x, weight = (size * torch.randn(2, 3, 301, 48)).to(dtype), 1 + 0.3 * torch.randn(48)
    grad = torch.randn(2, 3, 301, 48).to(dtype)
    exact = [t.double().requires_grad_() for t in (x, weight)]
    leaves = [t.to(cuda).requires_grad_() for t in (x, weight)]
    with torch.autocast("cuda", dtype):
        found = rms_norm(leaves[0].transpose(1, 2), leaves[1], 1e-6).transpose(1, 2)
    expected = rms_norm(*exact, 1e-6)
    found.backward(grad.to(cuda))
    expected.backward(grad.double())
    assert found.dtype == leaves[0].grad.dtype == dtype
    rounding = torch.finfo(dtype).eps / 2
    for a, b in ((found, expected), (leaves[0].grad, exact[0].grad)):
        torch.testing.assert_close(a.double().cpu(), b, rtol=1.01 * rounding, atol=rounding / 100)
    torch.testing.assert_close(leaves[1].grad.double().cpu(), exact[1].grad, rtol=1e-4, atol=1e-3)
