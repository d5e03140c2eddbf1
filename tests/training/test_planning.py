"""The planner counts what steps need, and says what fits."""

import pytest
import torch

from physicsnemo_flarepp import MixerBackbone
from physicsnemo_flarepp.training.losses import relative_l2_loss
from physicsnemo_flarepp.training.planning import LiveBytes, StepMemory, plan
from tests.commands.calling import verb

SIZES = {"n_layers": 1, "n_hidden": 32, "n_head": 4, "slice_num": 8, "embedding_dim": 3}


def saved_bytes(model, *inputs):
    """What autograd keeps between forward and backward pass, each storage once."""
    kept = {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(*inputs)
    own = {p.untyped_storage().data_ptr() for p in (*model.parameters(), *inputs)}
    return sum(size for pointer, size in kept.items() if pointer not in own)


def test_peak_of_a_plain_step_is_what_autograd_keeps_and_little_more():
    model, tokens = MixerBackbone(4, 2, **SIZES), 6000
    counts = StepMemory(model, 1, "fp32")
    kept = saved_bytes(model, torch.rand(1, tokens, 4), torch.rand(1, tokens, 3))
    assert kept < counts.plain(tokens) - counts.held(tokens) < 1.3 * kept


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_counts_on_small_clouds_hold_for_larger_ones(precision):
    model, tokens = MixerBackbone(4, 2, **SIZES, mixer="transolver"), 9000
    counts = StepMemory(model, 2, precision)
    cloud = [torch.rand(2, tokens, width) for width in (4, 3, 2)]
    with LiveBytes() as live:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            y = model(*cloud[:2])
        relative_l2_loss(y.float(), cloud[2]).backward()
    assert counts.plain(tokens) - counts.held(tokens) == pytest.approx(live.peak, rel=0.02)


def test_what_is_recomputed_or_streamed_needs_less():
    counts = StepMemory(MixerBackbone(4, 2, **{**SIZES, "n_layers": 3}), 1, "fp32")
    plain, recomputed, streamed = (
        counts.plain(10**6),
        counts.recomputed(10**6),
        counts.streamed(10**6, 4096),
    )
    assert plain > 1.5 * recomputed > 10 * (streamed - counts.held(10**6))
    assert counts.waiting(10**6) == 4 * 10**6 * 32 * 4


def test_the_model_and_the_random_state_stay_as_they_were():
    model = MixerBackbone(4, 2, **SIZES, checkpoint_blocks=True)
    before = torch.random.get_rng_state()
    plan(model, 10**6, memory=1e9)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert model.checkpoint_blocks and all(p.grad is None for p in model.parameters())


def test_command_says_what_fits(capsys):
    arguments = "model.n_hidden=32 model.n_layers=1 --tokens 1000000 --memory 500MB --ranks 4"
    plans = verb("plan")(arguments.split())
    fits = {way.name.split(",")[0]: way.fits for way in plans[10**6]}
    assert (fits["plain"], fits["streamed"]) == (False, True)
    shown = capsys.readouterr().out
    assert "1,000,000 tokens" in shown and "| plain |" in shown
