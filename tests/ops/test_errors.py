"""The relative L2 error against norms, and what it does at zeros; R² against its ends."""

import math

import pytest
import torch

from physicsnemo_flarepp.ops.errors import field_errors, r_squared, relative_l2


def test_relative_l2_is_the_ratio_of_norms_per_sample():
    prediction, target = torch.randn(2, 3, 4, 5, 2, dtype=torch.float64)
    expected = [
        torch.linalg.norm((p - t).flatten()) / torch.linalg.norm(t.flatten())
        for p, t in zip(prediction, target, strict=True)
    ]
    torch.testing.assert_close(relative_l2(prediction, target), torch.stack(expected))


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
    assert error.item() == 0
    assert (prediction.grad == 0).all()


def test_fields_are_measured_apart():
    target = torch.rand(2, 9, 4, dtype=torch.float64)
    prediction = target.clone()
    prediction[..., 0] += 1.0
    errors = field_errors(prediction, target, (1, 3))
    torch.testing.assert_close(errors[:, 0], 3.0 / target[..., 0].norm(dim=1))
    assert (errors[:, 1] == 0).all()
    with pytest.raises(ValueError, match=r"widths \(1, 2\) have 3 channels"):
        field_errors(prediction, target, (1, 2))


def test_a_target_of_zero_gives_zero_if_predicted_and_infinity_if_not():
    target = torch.zeros(1, 5, 2)
    prediction = torch.tensor([0.0, 1.0]).expand(1, 5, 2)
    assert field_errors(prediction, target, (1, 1)).tolist() == [[0.0, float("inf")]]


def test_a_field_of_zeros_predicted_exactly_spoils_no_gradient():
    target = torch.tensor([0.0, 2.0]).expand(1, 5, 2)
    prediction = torch.tensor([0.0, 3.0]).expand(1, 5, 2).clone().requires_grad_()
    errors = field_errors(prediction, target, (1, 1))
    errors.sum().backward()
    assert errors.tolist() == [[0.0, 0.5]]
    # |p - 2| / (2 sqrt 5) has the slope (p - 2) / (sqrt 5 * 2 sqrt 5) at every token
    torch.testing.assert_close(prediction.grad, torch.tensor([0.0, 0.1]).expand(1, 5, 2))


def test_a_prediction_that_is_no_number_has_an_error_that_is_none():
    prediction = torch.full((1, 4, 1), torch.nan)
    assert relative_l2(prediction, torch.ones(1, 4, 1)).isnan().all()
    assert relative_l2(prediction, torch.zeros(1, 4, 1)).isnan().all()


@pytest.mark.unchecked
def test_different_shapes_are_refused():
    with pytest.raises(ValueError, match=r"\(1, 3, 1\) and \(1, 3, 2\)"):
        relative_l2(torch.ones(1, 3, 1), torch.ones(1, 3, 2))


def test_r_squared_is_1_for_the_truth_and_0_for_its_mean():
    target = torch.tensor([1.0, 5.0, 3.0], dtype=torch.float64)
    assert r_squared(target, target) == 1
    assert r_squared(torch.full_like(target, 3.0), target) == pytest.approx(0)
    assert r_squared(target[[1, 0, 2]], target) == pytest.approx(1 - (16 + 16) / 8)


@pytest.mark.parametrize("target", [torch.ones(1), torch.ones(4)], ids=["one case", "no spread"])
def test_r_squared_is_undefined_without_spread(target):
    assert math.isnan(r_squared(2 * target, target))


def test_splitting_a_token_with_its_weight_leaves_the_error_as_it_is():
    prediction, target = torch.randn(2, 2, 7, 4, dtype=torch.float64)
    weights = torch.rand(2, 7, dtype=torch.float64)
    weights[1, 2] = 0.0
    whole = field_errors(prediction, target, (1, 3), token_weights=weights)
    split = torch.cat([torch.arange(7), torch.tensor([3, 3])])
    shares = weights[:, split] / torch.where(split == 3, 3.0, 1.0)
    parts = field_errors(prediction[:, split], target[:, split], (1, 3), token_weights=shares)
    torch.testing.assert_close(parts, whole, rtol=1e-12, atol=0)
    root = weights.sqrt()[..., None]
    plain = field_errors(prediction * root, target * root, (1, 3))
    torch.testing.assert_close(whole, plain, rtol=1e-12, atol=0)


@pytest.mark.parametrize("scale", [1e-35, 1.0, 1e30])
def test_only_ratios_of_weights_matter(scale):
    prediction, target = torch.randn(2, 1, 50, 1)
    weights = torch.rand(1, 50) + 0.1
    expected = relative_l2(prediction, target, token_weights=weights)
    found = relative_l2(prediction, target, token_weights=scale * weights)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected)


def test_tokens_of_weight_zero_do_not_count_even_if_they_hold_nan():
    prediction, target = torch.randn(2, 1, 5, 1)
    expected = relative_l2(prediction[:, :4], target[:, :4])
    prediction[:, 4] = torch.nan
    prediction.requires_grad_()
    weights = torch.tensor([[2.0, 2.0, 2.0, 2.0, 0.0]])
    error = relative_l2(prediction, target, token_weights=weights)
    error.sum().backward()
    torch.testing.assert_close(error, expected)
    assert prediction.grad.isfinite().all()


@pytest.mark.parametrize("bad", [-1.0, torch.nan, torch.inf])
def test_a_bad_weight_is_named(bad):
    weights = torch.ones(2, 5)
    weights[1, 3] = bad
    with pytest.raises(ValueError, match="at index 3 of sample 1"):
        relative_l2(torch.ones(2, 5, 1), torch.ones(2, 5, 1), token_weights=weights)
