import numpy as np
import pytest
from matplotlib.colors import to_rgb

from physicsnemo_flarepp.visualization import DARK, LIGHT

# Linear RGB seen by an eye without red or green cones (Vienot, Brettel and Mollon 1999).
PROTANOPIA = np.array([[0.11238, 0.88762, 0], [0.11238, 0.88762, 0], [0.00401, -0.00401, 1]])
DEUTERANOPIA = np.array([[0.29275, 0.70725, 0], [0.29275, 0.70725, 0], [-0.02234, 0.02234, 1]])


def lightness(rgb):
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    y = linear @ [0.2126, 0.7152, 0.0722]
    return 116 * np.cbrt(np.maximum(y, 0.008856)) - 16


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
class TestTheme:
    def test_middle_of_the_error_map_is_the_neutral_colour(self, theme):
        middle = np.array(theme.errors()(0.5)[:3])
        np.testing.assert_allclose(middle, to_rgb(theme.error_colors[2]), atol=1e-9)
        assert np.ptp(middle) < 0.05

    def test_error_grows_more_distinct_on_both_sides(self, theme):
        values = lightness(theme.errors()(np.linspace(0, 1, 101))[:, :3])
        away = np.abs(values - values[50])
        assert (np.diff(away[50:]) > -1e-6).all() and (np.diff(away[:51]) < 1e-6).all()
        assert min(away[0], away[-1]) > 40

    def test_fields_are_ordered_by_lightness(self, theme):
        assert (np.diff(lightness(theme.fields()(np.linspace(0, 1, 101))[:, :3])) > 0).all()

    @pytest.mark.parametrize("eye", [PROTANOPIA, DEUTERANOPIA], ids=["protan", "deutan"])
    def test_signs_of_errors_differ_for_colour_blind_readers(self, theme, eye):
        for size in (0.25, 0.5):
            low, high = (np.array(theme.errors()(0.5 + s * size / 2)[:3]) for s in (-1, 1))
            seen = [eye @ color**2.2 for color in (low, high)]
            assert np.abs(seen[0] - seen[1]).max() > 0.1

    def test_no_data_is_grey_and_not_a_colour_of_the_scales(self, theme):
        grey = np.array(to_rgb(theme.no_data))
        assert np.ptp(grey) < 0.06
        for colors in (theme.fields(), theme.errors()):
            used = colors(np.linspace(0, 1, 257))[:, :3]
            assert np.abs(used - grey).max(1).min() > 0.08

    def test_curves_stand_out_from_the_page(self, theme):
        page = np.array(to_rgb(theme.background))
        assert len(theme.line_colors()) >= 5
        for color in theme.line_colors():
            assert np.abs(np.array(to_rgb(color)) - page).max() > 0.3
