import re

import numpy as np
import pytest

from physicsnemo_flarepp.visualization import plot_spectrum

pytestmark = pytest.mark.slow


def test_spectrum_counts_the_routes_that_carry(small):
    values = np.zeros((2, 3, 8))
    values[0, :, 0] = 1
    values[1, :, :4] = 1
    drawn = plot_spectrum({"a": values, "b": values[:1, :, :5]}, theme=small)
    assert drawn.effective_rank == {"a": (1.0, 4.0), "b": (1.0,)}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.ones((2, 3)), "the spectrum of 'a' has shape (2, 3)"),
        (np.arange(6.0).reshape(1, 2, 3), "the largest first"),
        (np.full((1, 1, 3), np.nan), "finite singular values"),
    ],
)
def test_bad_spectra_are_named(values, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        plot_spectrum({"a": values})


def test_spectrum_explains_its_band_and_its_floor_where_it_has_one(small, sheets):
    for last in (1e-9, 1e-7):
        plot_spectrum({"a": np.geomspace(1, last, 8) * np.ones((1, 2, 1))}, theme=small)
    deep, shallow = ([text.get_text() for text in sheet.figure.texts] for sheet in sheets)
    band = "line: geometric mean of the heads; band: from the least to the greatest head"
    assert band in deep and band in shallow
    assert [any("10$^{-8}$" in words for words in texts) for texts in (deep, shallow)] == [1, 0]
    # The floor that is told is the one that is drawn.
    lowest = [sheet.figure.axes[0].lines[0].get_ydata().min() for sheet in sheets]
    np.testing.assert_allclose(lowest, [1e-8, 1e-7])


def test_lines_are_the_geometric_mean_over_heads_and_bands_their_range(small, sheets):
    heads = np.array([[1.0, 1e-2, 1e-4], [1.0, 1e-4, 1e-4], [1.0, 0.1, 1e-4]])
    plot_spectrum({"a": 5 * heads[None]}, theme=small)
    (axis,) = sheets[0].figure.axes
    np.testing.assert_allclose(axis.lines[0].get_ydata(), [1.0, 10 ** (-7 / 3), 1e-4])
    band = axis.collections[0].get_paths()[0].vertices[:, 1]
    np.testing.assert_allclose([band.min(), band.max()], [1e-4, 1.0])
