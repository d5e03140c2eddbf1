"""Limits of fields and errors, by their definition in the paper."""

import numpy as np
import pytest

from physicsnemo_flarepp.visualization import plot_comparison
from physicsnemo_flarepp.visualization.canvases import field_limits
from tests.visualization.looking import near


def quantile_by_sorting(values, percent):
    """Percentile by sorting and linear interpolation, written out."""
    ordered = np.sort(values)
    place = percent / 100 * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


@pytest.mark.slow
def test_limits_follow_the_papers_definition(grid, small):
    rng = np.random.default_rng(0)
    truth = rng.normal(size=77)
    models = {"a": truth + 0.1 * rng.normal(size=77), "b": truth + 0.3 * rng.normal(size=77)}
    drawn = plot_comparison(grid, truth, models, field="u", theme=small)
    larger = max(quantile_by_sorting(np.abs(m - truth), 99.5) for m in models.values())
    np.testing.assert_allclose(drawn.error_limits, (-larger, larger), rtol=1e-12)
    expected = [quantile_by_sorting(truth, p) for p in (0.5, 99.5)]
    np.testing.assert_allclose(drawn.field_limits, expected, rtol=1e-12)
    for name, values in models.items():
        error = (sum((values - truth) ** 2) / sum(truth**2)) ** 0.5
        assert drawn.relative_l2[name] == pytest.approx(error)


def test_limits_are_those_of_the_tokens_in_the_picture(grid, small):
    truth, x, y = grid.points[:, 0].copy(), grid.points[:, 0], grid.points[:, 1]
    error = np.where(x > 1.5, 50.0, 0.01 * (1 + x))
    crop = (0.0, 1.0, 0.0, 0.8)
    drawn = plot_comparison(grid, truth, {"a": truth + error}, field="u", crop=crop, theme=small)
    seen = (x <= 1.0) & (y <= 0.8)
    assert drawn.error_limits[1] == pytest.approx(quantile_by_sorting(error[seen], 99.5))
    assert drawn.field_limits[1] == pytest.approx(quantile_by_sorting(truth[seen], 99.5))
    # The figure of merit is that of the whole case.
    assert drawn.relative_l2["a"] == pytest.approx(np.linalg.norm(error) / np.linalg.norm(truth))


def test_error_scale_is_shared(grid, small):
    truth = np.zeros(77) + 1.0
    models = {"small": truth + 0.25, "large": truth + 1.0}
    drawn = plot_comparison(grid, truth, models, field="u", theme=small)
    colors = small.errors()
    middle = drawn.panel("error", "small").shape[0] // 2, 45
    assert near(drawn.panel("error", "large")[middle], colors(1.0))
    assert near(drawn.panel("error", "small")[middle], colors(0.625), tolerance=5)


def test_all_errors_zero_still_has_a_scale(grid, small):
    truth = np.linspace(0, 1, 77)
    drawn = plot_comparison(grid, truth, {"exact": truth}, field="u", theme=small)
    assert drawn.error_limits == (-1.0, 1.0)
    panel = drawn.panel("error", "exact")
    assert near(panel[panel.shape[0] // 2, 45], small.error_colors[2], 1)


def test_sparse_fields_and_references_of_zero_have_scales(grid, small):
    peak = np.zeros(1000)
    peak[3] = 7.0
    assert field_limits(peak) == (0.0, 7.0)
    zero = np.zeros(77)
    models = {"exact": zero, "off": zero + 1}
    drawn = plot_comparison(grid, zero, models, field="u", theme=small)
    assert drawn.relative_l2 == {"exact": 0.0, "off": np.inf}
