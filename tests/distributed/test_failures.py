"""A rank that fails or disagrees ends the job with its name on it."""

import re

import pytest
from ranks import run_ranks
from torch.multiprocessing import ProcessExitedException, ProcessRaisedException

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("fails_on_rank_1", "(?s)Process 1 .*a defect in the data of this rank"),
        # Gloo aborts the process that receives more than it expects; the launcher names it.
        (
            "other_batch_on_rank_1",
            r"process \d terminated|rank \d: all_gather_into_tensor of shape",
        ),
        ("absent_rank_1", "rank 0: all_gather_into_tensor of shape"),
    ],
)
def test_failing_rank_ends_the_job_within_the_timeout(case, message, tmp_path):
    # run_ranks would raise TimeoutError if its ranks were still there after their timeout.
    with pytest.raises((ProcessRaisedException, ProcessExitedException)) as failure:
        run_ranks([f"cases_failure.{case}"], 2, tmp_path, timeout=3.0)
    assert re.search(message, str(failure.value))


@pytest.mark.parametrize(
    ("difference", "message"),
    [
        ("batch", "rank 2 has batch size [1, 1, 1], rank 0 has [2, 2, 2]"),
        ("heads", "rank 2 has heads [2, 2], rank 0 has [4, 4]"),
        ("weights", "rank 2 has sum of parameters"),
        ("dtype", "rank 2 has dtypes of inputs ['torch.float32'"),
    ],
)
def test_debug_mode_names_the_rank_that_differs_on_all_ranks(on_four_ranks, difference, message):
    for messages in on_four_ranks["cases_features.debug_mode"]:
        assert messages[difference].startswith(
            "ValueError: the ranks of the context group disagree"
        )
        assert message in messages[difference]


def test_debug_mode_lets_equal_ranks_with_their_own_tokens_pass(on_four_ranks):
    for messages in on_four_ranks["cases_features.debug_mode"]:
        assert messages["equal"] == "no error"


def test_mesh_that_does_not_divide_the_ranks_is_refused(on_four_ranks):
    for messages in on_four_ranks["cases_features.debug_mode"]:
        assert "context_size=3 with 4 ranks; choose one of [1, 2, 4]" in messages["mesh"]
