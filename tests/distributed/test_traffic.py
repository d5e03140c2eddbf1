"""What travels between ranks, counted by intercepting it."""

import pytest

pytestmark = pytest.mark.distributed

BATCH, HEADS, LATENTS, WIDTH, CHANNELS = 2, 4, 5, 8, 32
ROWS = BATCH * HEADS * LATENTS

# mixer: (collective, calls, numbers) forward and backward
DESIGN = {
    "flarepp": (
        ("all_gather_into_tensor", 2, 2 * ROWS * (WIDTH + 1)),
        ("all_reduce", 2, 2 * ROWS * WIDTH),
    ),
    "flare": (("all_gather_into_tensor", 1, ROWS * (WIDTH + 1)), ("all_reduce", 1, ROWS * WIDTH)),
    "transolver": (("all_reduce", 1, ROWS * (WIDTH + 1)),) * 2,
    "transolver3": (("all_reduce", 1, ROWS * (CHANNELS + 1)),) * 2,
}


@pytest.mark.parametrize("n_tokens", [512, 65536])
@pytest.mark.parametrize("mixer", DESIGN)
def test_collectives_are_as_designed_for_any_number_of_tokens(on_four_ranks, mixer, n_tokens):
    expected = [({name: calls}, {name: 4 * size}) for name, calls, size in DESIGN[mixer]]
    for result in on_four_ranks["cases_features.counts"]:
        assert result[mixer, n_tokens] == expected


def test_weights_cost_one_number_per_sample_and_forward_pass(on_four_ranks):
    for result in on_four_ranks["cases_features.counts_with_weights"]:
        assert result == {"calls": {"all_reduce": 1}, "bytes": {"all_reduce": 8 * BATCH}}


def test_decoding_and_encoding_without_a_group_send_nothing(on_four_ranks):
    assert on_four_ranks["cases_features.decode_is_local"] == [0] * 4


def test_tokens_come_back_whole_from_uneven_and_empty_shards(on_four_ranks):
    results = on_four_ranks["cases_features.tokens"]
    for case in results[0]["round trips"]:
        sizes, whole = zip(*(result["round trips"][case] for result in results), strict=True)
        shape, dim, _ = case
        assert sum(sizes) == shape[dim]
        assert max(sizes) - min(sizes) <= 1
        assert all(whole)


def test_gathering_tokens_refuses_to_be_differentiated(on_four_ranks):
    for result in on_four_ranks["cases_features.tokens"]:
        assert result["gradient"].startswith("ValueError: gather_tokens is not differentiable")
