import numpy as np
import pytest

from physicsnemo_flarepp.visualization import Theme, plot_parity


def test_parity_gives_r_squared_of_each_model_and_quantity(small):
    rng = np.random.default_rng(0)
    truth = {"drag": rng.random(9), "lift": rng.random(9)}
    models = {n: {q: v + s * rng.normal(size=9) for q, v in truth.items()} for n, s in [("a", 0.1)]}
    drawn = plot_parity(truth, models, theme=small)
    for quantity, true in truth.items():
        residual = np.var(true) * 9
        expected = 1 - np.sum((models["a"][quantity] - true) ** 2) / residual
        assert drawn.r_squared["a"][quantity] == pytest.approx(expected)


def test_bad_parity_input_is_named():
    truth = {"drag": np.ones(3)}
    with pytest.raises(ValueError, match=r"drag of 'a' has shape \(2,\), expected \(3,\)"):
        plot_parity(truth, {"a": {"drag": np.ones(2)}})
    with pytest.raises(ValueError, match=r"'a' predicts \['lift'\], not 'drag'"):
        plot_parity(truth, {"a": {"lift": np.ones(3)}})
    with pytest.raises(ValueError, match="drag of 'a' holds nan for case number 1"):
        plot_parity(truth, {"a": {"drag": np.array([1, np.nan, 1])}})


def test_names_of_a_parity_are_above_its_axes_and_keep_their_scores():
    truth = {"drag": np.array([0.1, 0.2, 0.3])}
    names = ["short", "a run with a name that is much longer than the axes are wide, by far"]
    small = Theme(dpi=100)
    drawn = plot_parity(truth, {name: truth for name in names}, theme=small)
    more = plot_parity(truth, {name: truth for name in "abcde"}, theme=small)
    assert more.image.shape[0] - drawn.image.shape[0] == 48  # three lines more
    assert (drawn.image[:, -4:] == 255).all()
    blue, orange = (np.array([0x00, 0x72, 0xB2]), np.array([0xD5, 0x5E, 0x00]))
    for color, line in ((blue, 0), (orange, 1)):
        row = drawn.image[14 + 8 + 16 * line - 10 : 14 + 8 + 16 * line + 2, 60:78].astype(int)
        assert (np.abs(row - color).max(-1) < 40).any()
