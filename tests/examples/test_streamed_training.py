import plan_accuracy
import pytest
import streamed_training
import torch

pytestmark = pytest.mark.slow

SIZES = {"n_hidden": 32, "n_layers": 1, "mixer": "flarepp"}


def test_rows_tell_ratio_time_and_memory_of_a_step():
    settings = {**SIZES, "threads": torch.get_num_threads(), "offload": "cpu"}
    settings |= {"memmap": False, "stream_dtype": None}
    plain, streamed = streamed_training.compare(2000, [500], 1, settings)
    assert plain["ratio"] == 1 and streamed["ratio"] > 0
    row = streamed_training.measure(20_000, 500, settings)
    assert row["states_mb"] == round(20_000 * 32 * 2 * 4 / 1e6)
    # The plain step holds tens of states of 20,000 x 32 numbers, a chunk a fortieth of that.
    assert row["working_mb"] < 40 and 0 < row["loss"] < 2


def test_a_prediction_of_the_planner_is_near_the_peak():
    row = plan_accuracy.measure("plain", 20_000, {**SIZES, "chunk": 500})
    assert row["predicted_mb"] > 60
    # The C library keeps freed blocks here; processes of the script are told not to.
    assert -40 < row["off_percent"] < 30
