import numpy as np
import pytest

from physicsnemo_flarepp.datapipes.sampling import CaseSampler, token_rows


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("n_points", [None, 5, 100])
def test_shards_of_a_draw_are_a_partition_of_it(n_points, size):
    whole = np.arange(11)[token_rows(11, n_points, (0, 1), seed=4)]
    parts = [np.arange(11)[token_rows(11, n_points, (rank, size), seed=4)] for rank in range(size)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    assert len(set(whole)) == min(11, n_points or 11)


def test_draws_are_uniform_over_tokens():
    counts = sum(np.bincount(token_rows(20, 5, (0, 1), seed), minlength=20) for seed in range(800))
    # Each token is drawn 200 times on average, with a standard deviation of 12.
    assert counts.min() > 140 and counts.max() < 260


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_test_cases_are_read_exactly_once_over_ranks(size):
    ranks = [list(CaseSampler(7, (rank, size))) for rank in range(size)]
    assert sorted(case for rank in ranks for case in rank) == list(range(7))
    assert [len(CaseSampler(7, (rank, size))) for rank in range(size)] == [len(r) for r in ranks]


@pytest.mark.parametrize("size", [1, 2, 3, 9])
def test_training_ranks_read_equally_many_cases_and_all_of_them(size):
    options = {"shuffle": True, "seed": 3, "equal_counts": True}
    ranks = [list(CaseSampler(7, (rank, size), **options)) for rank in range(size)]
    assert {len(rank) for rank in ranks} == {-(-7 // size)}
    assert {case for rank in ranks for case in rank} == set(range(7))


def test_order_depends_on_seed_and_epoch_only():
    sampler = CaseSampler(20, shuffle=True, seed=1)
    orders = []
    for epoch in (0, 1, 2, 1):
        sampler.set_epoch(epoch)
        orders.append(list(sampler))
    assert orders[1] == orders[3] and orders[0] != orders[1] != orders[2]
    fresh = CaseSampler(20, shuffle=True, seed=1)
    fresh.set_epoch(2)
    assert list(fresh) == orders[2]
    assert list(CaseSampler(20, shuffle=True, seed=2)) != orders[0]


def test_skipping_resumes_inside_an_epoch_and_ends_with_it():
    sampler = CaseSampler(9, (1, 2), shuffle=True)
    whole = list(sampler)
    sampler.skip(2)
    assert list(sampler) == whole[2:] and len(sampler) == len(whole) - 2
    sampler.set_epoch(0)
    assert list(sampler) == whole
    with pytest.raises(ValueError, match="cannot skip 5 cases: this rank reads 4"):
        sampler.skip(5)


def test_wrong_shards_are_refused():
    with pytest.raises(ValueError, match=r"data shard is \(rank, size\) = \(2, 2\)"):
        CaseSampler(3, (2, 2))
