"""Random states and stop requests over two real gloo ranks, started once for both."""

import sys
from pathlib import Path

import pytest
import torch
from torch.multiprocessing import start_processes

sys.path.insert(0, str(Path(__file__).parent))

from state_rank_cases import WORLD, run_rank  # noqa: E402

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    directory = tmp_path_factory.mktemp("ranks")
    start_processes(run_rank, (str(directory),), nprocs=WORLD, start_method="forkserver")
    return [torch.load(directory / f"{rank}.pt") for rank in range(WORLD)]


def test_each_rank_gets_its_own_random_state_back(found):
    for rank in found:
        assert rank["random"]["ranks"] == WORLD
        assert rank["random"]["again"] == rank["random"]["first"]
    assert found[0]["random"]["first"] != found[1]["random"]["first"]


def test_another_number_of_ranks_is_refused_with_both_numbers(found):
    for rank in found:
        assert "of 4 ranks, but 2 are running" in rank["random"]["error"]


def test_all_ranks_stop_at_the_step_where_one_got_a_signal(found):
    assert found[0]["stops"] == {"step": 2, "requested": False, "signal": None}
    assert found[1]["stops"] == {"step": 2, "requested": True, "signal": "SIGUSR1"}
