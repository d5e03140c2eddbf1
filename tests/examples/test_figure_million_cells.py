import figure_million_cells
import pytest
from PIL import Image

pytestmark = pytest.mark.slow


def test_a_row_tells_time_and_memory_of_a_figure(tmp_path):
    row = figure_million_cells.measure(2_000, 1, tmp_path / "figure.png")
    assert 1_500 < row["cells"] < 2_500
    assert row["panels"] == 12  # reference, prediction and error from four sides
    assert row["seconds"] > 0 and row["CPU seconds"] > 0
    assert row["peak memory (VmHWM), GB"] > 0.1
    assert Image.open(tmp_path / "figure.png").width > 1000
