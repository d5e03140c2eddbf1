import pytest
import streaming
import torch

pytestmark = pytest.mark.slow

SETTINGS = {"n_hidden": 32, "n_layers": 1, "mixer": "flarepp"}


@pytest.mark.parametrize("chunk, memmap", [(0, False), (500, False), (500, True)])
def test_a_row_tells_time_and_memory_of_a_finite_prediction(chunk, memmap):
    settings = {**SETTINGS, "memmap": memmap, "threads": torch.get_num_threads()}
    row = streaming.measure(20_000, chunk, settings)
    assert row["finite"] and row["cpu_us_per_token"] > 0
    assert row["peak_mb"] > 100  # the loaded process alone is larger
    # The plain forward holds several states of 20,000 x 32 numbers, a chunk a fortieth of that.
    assert row["working_mb"] < 80


def test_rows_become_a_plot(tmp_path):
    keys = ("tokens", "chunk", "cpu_us_per_token", "working_mb")
    rows = [
        dict(zip(keys, row, strict=True)) for row in ((10, 0, 1, 9), (20, 0, 1, 9), (10, 4, 1, 2))
    ]
    streaming.plot(rows, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
