import pytest
import torch
from streaming_cases import TOLERANCE, WORLD, run_rank
from torch.multiprocessing import start_processes

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What three real gloo ranks found: forks of one server that has PhysicsNeMo loaded."""
    directory = tmp_path_factory.mktemp("ranks")
    arguments = (str(directory / "rendezvous"), str(directory))
    start_processes(run_rank, arguments, nprocs=WORLD, start_method="forkserver")
    return [torch.load(directory / f"{rank}.pt") for rank in range(WORLD)]


@pytest.mark.parametrize("size", range(1, WORLD + 1))
def test_shards_streamed_by_each_rank_equal_the_whole(found, size):
    for rank in range(size):
        cases = {key: errors for key, errors in found[rank].items() if key[0] == size}
        assert len(cases) == 16
        for (_, name, dtype, weighted), errors in cases.items():
            assert max(errors) < TOLERANCE[dtype], (rank, name, dtype, weighted)


@pytest.mark.parametrize(
    "where, words",
    [
        ("embedding", "embedding holds nan at row 4"),
        ("token_weights", "token_weights holds nan at index 2 of sample 0"),
    ],
)
def test_bad_input_on_one_rank_stops_all_ranks(found, where, words):
    messages = [rank[where] for rank in found]
    assert messages[1].startswith(f"ValueError: {words}")
    for message in (messages[0], messages[2]):
        assert message.startswith("RuntimeError: rank 1 of the context group failed")
