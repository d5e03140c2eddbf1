"""The planner counts what steps need, and says what fits."""

import pytest
import torch

from physicsnemo_flarepp import MixerBackbone
from physicsnemo_flarepp.ops import decode
from physicsnemo_flarepp.training.losses import relative_l2_loss
from physicsnemo_flarepp.training.planning import OperatorCounter, StepCosts, plan
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
    counts = StepCosts(model, 1, "fp32")
    kept = saved_bytes(model, torch.rand(1, tokens, 4), torch.rand(1, tokens, 3))
    assert kept < counts.peak("plain", tokens) - counts.held(tokens) < 1.3 * kept


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_counts_on_small_clouds_hold_for_larger_ones(precision):
    model, tokens = MixerBackbone(4, 2, **SIZES, mixer="transolver"), 9000
    counts = StepCosts(model, 2, precision)
    cloud = [torch.rand(2, tokens, width) for width in (4, 3, 2)]
    with OperatorCounter() as counter:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            y = model(*cloud[:2])
        relative_l2_loss(y.float(), cloud[2]).backward()
    assert counts.peak("plain", tokens) - counts.held(tokens) == pytest.approx(
        counter.peak, rel=0.02
    )


def test_what_is_recomputed_or_streamed_needs_less():
    counts = StepCosts(MixerBackbone(4, 2, **{**SIZES, "n_layers": 3}), 1, "fp32")
    plain, recomputed = (counts.peak(way, 10**6) for way in ("plain", "recomputed"))
    streamed = counts.peak("streamed", 10**6, 4096)
    assert plain > 1.5 * recomputed > 10 * (streamed - counts.held(10**6))
    assert counts.waiting(10**6) == 4 * 10**6 * 32 * 4


@pytest.mark.parametrize(
    "mixer, precision", [("flarepp", "bf16"), ("flare", "fp32"), ("transolver", "bf16")]
)
def test_times_of_a_plan_agree_with_each_other(mixer, precision):
    """By counts alone: the one time that is measured is a factor of all."""
    steps = plan(
        MixerBackbone(6, 4, n_layers=4, mixer=mixer),
        8_800_000,
        precision=precision,
        memory=80e9,
        ranks=(8,),
    )
    plain, recomputed, context, streamed = (step.seconds for step in steps)
    assert plain < recomputed < 4 / 3 * plain, "every block once more forwards, which is a third"
    assert context == pytest.approx(plain / 8)
    assert plain <= streamed <= 1.6 * plain


@pytest.mark.parametrize(("width", "per_token"), [(0, 0), (64, 2048), (32, 1024)])
def test_workspaces_of_cuda_kernels_are_counted_where_they_are_needed(width, per_token):
    """8 heads of 16 channels: 2 KB per token in fp32, 1 KB in flash attention."""
    n_tokens = 3000
    q, k, v = (torch.rand(1, 8, rows, 16, requires_grad=True) for rows in (n_tokens, 64, 64))
    out = decode(q, k, v)

    def peak(width):
        with OperatorCounter(width) as counter:
            torch.autograd.grad(out.sum(), (q, k, v), retain_graph=True)
        return counter.peak

    assert peak(width) - peak(0) == per_token * n_tokens


def test_the_model_and_the_random_state_stay_as_they_were():
    model = MixerBackbone(4, 2, **SIZES, checkpoint_blocks=True)
    before = torch.random.get_rng_state()
    plan(model, 10**6, memory=1e9)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert model.checkpoint_blocks and all(p.grad is None for p in model.parameters())


def test_command_says_what_fits(capsys):
    arguments = "model.n_hidden=32 model.n_layers=1 --tokens 1000000 --memory 500MB --ranks 4"
    plans = verb("plan")(arguments.split())
    fits = {step.name.split(",")[0]: step.fits for step in plans[10**6]}
    assert (fits["plain"], fits["streamed"]) == (False, True)
    shown = capsys.readouterr().out
    assert "1,000,000 tokens" in shown and "| plain |" in shown
