"""The losses against norms written out."""

import torch

from physicsnemo_flarepp.training.losses import derivative_loss, relative_l2_loss


def test_the_loss_is_the_mean_over_samples_of_ratios_of_norms():
    prediction, target = torch.randn(2, 3, 4, 5, 2, dtype=torch.float64)
    expected = [
        torch.linalg.norm((p - t).flatten()) / torch.linalg.norm(t.flatten())
        for p, t in zip(prediction, target, strict=True)
    ]
    torch.testing.assert_close(relative_l2_loss(prediction, target), sum(expected) / 3)


def test_derivative_loss_is_that_of_differences_taken_by_hand():
    grid = (5, 4)
    prediction, target = torch.rand(2, 2, 20, 1, dtype=torch.float64)
    expected = 0.0
    for p, y in zip(prediction.view(2, *grid), target.view(2, *grid), strict=True):
        rows = [(v[2:] - v[:-2]) for v in (p, y)]
        columns = [(v[:, 2:] - v[:, :-2]) for v in (p, y)]
        expected += sum((a - b).norm() / b.norm() for a, b in (rows, columns)) / 2
    torch.testing.assert_close(derivative_loss(prediction, target, grid, (1,)), expected)
