"""Learning rates over the steps of a run."""

import pytest
import torch

from physicsnemo_flarepp.training.config import TrainingConfig
from physicsnemo_flarepp.training.optimizers import make_schedule


def rates(steps, **settings):
    """The rates of both groups that a schedule gives to the steps of a run."""
    weights = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    groups = [{"params": [weights[0]], "lr": 1.0}, {"params": [weights[1]], "lr": 10.0}]
    schedule = make_schedule(torch.optim.SGD(groups), TrainingConfig(**settings), steps)
    found = []
    for _ in range(steps):
        found.append(schedule.get_last_lr())
        schedule.optimizer.step()
        schedule.step()
    assert all(b == pytest.approx(10 * a) for a, b in found)
    return [a for a, _ in found]


def test_cosine_rises_over_the_warm_up_and_falls_to_zero():
    found = rates(104, schedule="cosine", warmup_steps=4)
    assert found[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert found[54] == pytest.approx(0.5) and found[-1] == pytest.approx(0, abs=1e-3)
    assert found[4:] == sorted(found[4:], reverse=True)


def test_wsd_is_constant_between_warm_up_and_decay():
    found = rates(100, schedule="wsd", warmup_steps=9, decay_fraction=0.2)
    assert found[:10] == pytest.approx([0.1 * i for i in range(1, 11)])
    assert found[9:81] == [1.0] * 72
    assert found[80:] == pytest.approx([1 - 0.05 * i for i in range(20)])


@pytest.mark.parametrize("schedule", ["cosine", "wsd"])
def test_a_warm_up_fits_the_length_of_the_run(schedule):
    short = rates(50, schedule=schedule)  # of which 100 would be the warm-up
    assert short == rates(50, schedule=schedule, warmup_steps=5)
    assert max(short) == 1.0 and short.index(1.0) == 5
