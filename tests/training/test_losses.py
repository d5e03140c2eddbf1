"""The relative L2 error in one process."""

import pytest
import torch

from physicsnemo_flarepp.training.losses import relative_l2, relative_l2_loss


def test_relative_l2_is_the_ratio_of_norms_per_sample():
    prediction, target = torch.randn(2, 3, 4, 5, 2, dtype=torch.float64)
    expected = [
        torch.linalg.norm((p - t).flatten()) / torch.linalg.norm(t.flatten())
        for p, t in zip(prediction, target, strict=True)
    ]
    torch.testing.assert_close(relative_l2(prediction, target), torch.stack(expected))
    mean = sum(expected) / 3
    torch.testing.assert_close(relative_l2_loss(prediction, target), mean)


def test_masked_tokens_do_not_count_even_if_they_hold_nan():
    prediction, target = torch.randn(2, 1, 6, 2)
    mask = torch.tensor([[True, True, True, True, False, False]])
    expected = relative_l2(prediction[:, :4], target[:, :4])
    prediction[:, 4:] = torch.nan
    prediction.requires_grad_()
    error = relative_l2(prediction, target, token_mask=mask)
    error.sum().backward()
    torch.testing.assert_close(error, expected)
    assert prediction.grad.isfinite().all()
    assert (prediction.grad[:, 4:] == 0).all()


def test_half_precision_fields_are_compared_in_fp32():
    target = torch.full((1, 70000, 1), 2.0, dtype=torch.float16)
    assert relative_l2(1.5 * target, target).item() == pytest.approx(0.5, rel=1e-6)


def test_exact_prediction_has_a_finite_gradient():
    prediction = torch.ones(1, 3, 1, requires_grad=True)
    error = relative_l2(prediction, torch.ones(1, 3, 1))
    error.sum().backward()
    assert error.item() < 1e-15
    assert (prediction.grad == 0).all()


def test_different_shapes_are_refused():
    with pytest.raises(ValueError, match=r"\(1, 3, 1\) and \(1, 3, 2\)"):
        relative_l2(torch.ones(1, 3, 1), torch.ones(1, 3, 2))
