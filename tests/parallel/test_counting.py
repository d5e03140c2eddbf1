"""Counting collectives, and what the scaling example makes of their durations."""

import context_parallel as example
import pytest
import torch

from physicsnemo_flarepp.ops import all_gather, all_reduce
from physicsnemo_flarepp.parallel import CollectiveCounter, initialize, make_mesh


def test_functional_and_plain_collectives_are_counted_with_their_bytes_and_times():
    manager = initialize()
    group = make_mesh(1)["context"].get_group()
    with CollectiveCounter(timed=True) as counter:
        all_reduce(torch.ones(3), "sum", group)
        all_gather(torch.ones(5, dtype=torch.bfloat16), group)
        torch.distributed.all_reduce(torch.ones(2, dtype=torch.float64), group=group)
    manager.cleanup()
    assert counter.calls == {"all_reduce": 1, "all_gather_into_tensor": 1, "allreduce_": 1}
    assert counter.bytes == {"all_reduce": 12, "all_gather_into_tensor": 20, "allreduce_": 16}
    assert (counter.total_calls, counter.total_bytes) == (3, 48)
    assert len(counter.durations) == 5, "two launches, two waits and one plain call"
    assert min(counter.durations) > 0


def test_the_last_rank_to_come_shows_the_cost_of_a_collective():
    early, late = (10.0, [3.0, 0.5]), (10.0, [0.5, 0.5])
    assert example.split_shares(early, late) == pytest.approx((0.1, 0.125))


def test_efficiencies_compare_with_the_first_row(tmp_path):
    rows = [
        {"ranks": 1, "tokens": 10, "seconds": 8.0, "peak MiB per rank": 100.0},
        {"ranks": 4, "tokens": 10, "seconds": 2.5, "peak MiB per rank": 25.0},
    ]
    example.add_efficiencies(rows)
    assert rows[0]["time efficiency"] == rows[0]["memory efficiency"] == 1.0
    assert rows[1]["time efficiency"] == pytest.approx(0.8)
    assert rows[1]["memory efficiency"] == pytest.approx(1.0)
    example.plot(rows, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
