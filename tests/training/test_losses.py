"""The losses against norms written out."""

import numpy as np
import pytest
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

    def at(field, i, j, inside_only):
        edge = int(inside_only)
        inside = edge <= i < grid[0] - edge and edge <= j < grid[1] - edge
        return field[i, j].item() if inside else 0.0

    expected = 0.0
    for p, y in zip(prediction.view(2, *grid), target.view(2, *grid), strict=True):
        for di, dj in ((1, 0), (0, 1)):
            points = [(i, j) for i in range(5) for j in range(4)]  # all of them
            dp, dy = (
                np.array(
                    [at(f, i + di, j + dj, inner) - at(f, i - di, j - dj, inner) for i, j in points]
                )
                for f, inner in ((p, True), (y, False))  # the predicted boundary counts as 0
            )
            expected += np.linalg.norm(dp - dy) / np.linalg.norm(dy) / 2
    loss = derivative_loss(prediction, target, grid, (1,))
    assert loss.item() == pytest.approx(expected, rel=1e-12)
