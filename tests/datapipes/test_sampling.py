import numpy as np
import pytest

from physicsnemo_flarepp.datapipes.loaders import CaseSampler
from physicsnemo_flarepp.datapipes.readers.base import (
    inclusion_probabilities,
    token_rows,
    weighted_rows,
)


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


AREAS = np.random.default_rng(5).lognormal(0, 2, 60)


def test_weighted_draws_estimate_every_integral_without_bias():
    values = np.stack([np.ones(60), np.sin(np.arange(60)), np.arange(60) ** 2], -1)
    exact = AREAS @ values
    estimates, counts = [], np.zeros(60)
    for seed in range(3000):
        rows, weights = weighted_rows(AREAS, 12, (0, 1), seed)
        assert len(set(rows)) == 12 and (np.diff(rows) > 0).all()
        estimates.append(weights @ values[rows])
        counts[rows] += 1
    estimates = np.array(estimates)
    noise = estimates.std(axis=0) / np.sqrt(3000)
    assert (np.abs(estimates.mean(axis=0) - exact) < 4 * noise + 1e-9 * np.abs(exact)).all()
    likely = inclusion_probabilities(AREAS, 12)
    deviation = np.sqrt(likely * (1 - likely) / 3000)
    assert (np.abs(counts / 3000 - likely) <= 4.5 * deviation).all()


def test_probabilities_follow_the_weights_below_certainty_and_add_up():
    likely = inclusion_probabilities(AREAS, 12)
    assert likely.sum() == pytest.approx(12)
    below = likely < 1
    assert 0 < below.sum() < 60
    ratios = likely[below] / AREAS[below]
    assert ratios.max() == pytest.approx(ratios.min())
    assert AREAS[~below].min() >= AREAS[below].max()


def test_equal_weights_draw_like_cells_and_stay_equal():
    rows, weights = weighted_rows(np.full(20, 0.5), 5, (0, 1), seed=1)
    np.testing.assert_allclose(weights, 2.0)
    counts = sum(
        np.bincount(weighted_rows(np.ones(20), 5, (0, 1), seed)[0], minlength=20)
        for seed in range(800)
    )
    assert counts.min() > 140 and counts.max() < 260


@pytest.mark.parametrize("size", [2, 3, 7])
@pytest.mark.parametrize("n_points", [None, 12])
def test_shards_of_a_weighted_draw_are_a_partition_of_it(n_points, size):
    rows, weights = weighted_rows(AREAS, n_points, (0, 1), seed=4)
    parts = [weighted_rows(AREAS, n_points, (rank, size), seed=4) for rank in range(size)]
    found = np.concatenate([np.arange(60)[part[0]] for part in parts])
    np.testing.assert_array_equal(found, np.arange(60)[rows])
    np.testing.assert_array_equal(np.concatenate([part[1] for part in parts]), weights)


def test_tokens_without_weight_are_never_drawn_and_too_few_others_are_an_error():
    weights = np.where(np.arange(60) < 20, AREAS, 0.0)
    assert weighted_rows(weights, 20, (0, 1), seed=0)[0].max() < 20
    with pytest.raises(ValueError, match="21 tokens cannot be drawn by weight: 20 of 60"):
        weighted_rows(weights, 21, (0, 1), seed=0)


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
