import random
from io import BytesIO

import numpy as np
import pytest
import torch

from physicsnemo_flarepp.runs.checkpoints import (
    capture_random_state,
    gather_random_states,
    restore_own_random_state,
    restore_random_state,
)

DRAWS = {
    "python": random.random,
    "python-gauss": lambda: random.gauss(0, 1),
    "numpy": np.random.rand,
    "numpy-gauss": np.random.randn,
    "torch": lambda: torch.rand(5).tolist(),
    "torch-normal": lambda: torch.randn(3).tolist(),
    "permutation": lambda: torch.randperm(9).tolist(),
}


def stored(state):
    """Give a state as a checkpoint gives it back."""
    file = BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("name", DRAWS)
def test_draws_after_restoring_are_those_after_capturing(name):
    draw = DRAWS[name]
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(3)
    # An odd number of normal draws leaves half a pair in the generators that make pairs.
    draw()
    state = stored(capture_random_state())
    first = [draw() for _ in range(4)]
    assert [draw() for _ in range(4)] != first
    restore_random_state(state)
    assert [draw() for _ in range(4)] == first


def test_a_state_does_not_follow_its_generator():
    state = capture_random_state()
    first = torch.rand(3), np.random.rand(3), random.random()
    np.random.seed(9), torch.manual_seed(9), random.seed(9)
    restore_random_state(state)
    assert torch.equal(torch.rand(3), first[0])
    assert np.array_equal(np.random.rand(3), first[1])
    assert random.random() == first[2]


def test_without_ranks_there_is_one_state():
    states = stored(gather_random_states())
    assert len(states) == 1
    first = torch.rand(3)
    restore_own_random_state(states)
    assert torch.equal(torch.rand(3), first)


def test_states_of_more_ranks_are_refused_with_both_numbers():
    with pytest.raises(ValueError, match="of 3 ranks, but 1 are running.*start 3 ranks"):
        restore_own_random_state(gather_random_states() * 3)


def test_cuda_states_go_to_their_devices(monkeypatch):
    """No GPU here: torch.cuda is replaced by two recorded generators."""
    generators = [torch.tensor([1, 2], dtype=torch.uint8), torch.tensor([3], dtype=torch.uint8)]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(generators))
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: [g.clone() for g in generators])
    monkeypatch.setattr(
        torch.cuda, "set_rng_state", lambda state, device: generators[device].copy_(state)
    )
    state = stored(capture_random_state())
    for generator in generators:
        generator.zero_()
    restore_random_state(state)
    assert [generator.tolist() for generator in generators] == [[1, 2], [3]]

    del generators[1]
    generators[0].zero_()
    with pytest.warns(UserWarning, match="of 2 CUDA devices, 1 are here"):
        restore_random_state(state)
    assert generators[0].tolist() == [1, 2]
