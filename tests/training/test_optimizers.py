"""Weight decay acts on the distance of residual projections from the identity."""

import pytest
import torch
from torch.nn.utils import parametrize

from physicsnemo_flarepp import MixerBackbone
from physicsnemo_flarepp.training.config import TrainingConfig
from physicsnemo_flarepp.training.optimizers import (
    ResidualAdamW,
    make_optimizer,
    parameter_groups,
)


class AddIdentity(torch.nn.Module):
    """The parametrisation of a residual projection that stores W and computes with I + W."""

    def forward(self, weight):
        eye = torch.eye(weight.shape[1], dtype=weight.dtype)
        return weight + eye.repeat(len(weight) // len(eye), 1)

    def right_inverse(self, weight):
        eye = torch.eye(weight.shape[1], dtype=weight.dtype)
        return weight - eye.repeat(len(weight) // len(eye), 1)


@pytest.mark.parametrize("mixer", ["flarepp", "flare", "transolver3"])
def test_decay_acts_on_the_distance_of_residual_projections_from_the_identity(mixer):
    sizes = {"n_layers": 2, "n_hidden": 16, "n_head": 2, "slice_num": 4}
    ours, apart = (MixerBackbone(2, 1, mixer=mixer, **sizes).double() for _ in range(2))
    apart.load_state_dict(ours.state_dict())
    settings = TrainingConfig(learning_rate=0.1, weight_decay=0.5)
    optimizer = make_optimizer(ours, settings)
    if mixer != "transolver3":
        for block in apart.blocks:
            parametrize.register_parametrization(block.mixer.project, "weight", AddIdentity())
    # torch's AdamW on W itself; the parametrised weight has left its Linear, so it is added.
    decayed, free = parameter_groups(apart, settings.weight_decay)
    moved = [p for name, p in apart.named_parameters() if "parametrizations" in name]
    decayed["params"] = [*decayed["params"], *moved]
    free["params"] = [p for p in free["params"] if all(p is not q for q in moved)]
    theirs = torch.optim.AdamW([decayed, free], lr=0.1, fused=True)
    x = torch.rand(2, 9, 2, dtype=torch.float64)
    for _ in range(5):
        for model, chosen in ((ours, optimizer), (apart, theirs)):
            chosen.zero_grad()
            (model(x) - 1).square().sum().backward()
            chosen.step()
    torch.testing.assert_close(ours(x), apart(x), rtol=1e-9, atol=1e-9)
    if mixer != "transolver3":
        for a, b in zip(ours.blocks, apart.blocks, strict=True):
            torch.testing.assert_close(a.mixer.project.weight, b.mixer.project.weight)


def test_a_step_that_the_gradient_scaler_skips_leaves_the_identity_alone():
    model = MixerBackbone(2, 1, mixer="flare", n_layers=1, n_hidden=8, n_head=2, slice_num=2)
    optimizer = make_optimizer(model, TrainingConfig(weight_decay=0.5))
    before = [p.detach().clone() for p in model.parameters()]
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(torch.rand(1, 5, 2)).sum() * torch.inf).backward()
    scaler.step(optimizer)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_optimizer_states_of_plain_adamw_go_on():
    model = MixerBackbone(2, 1, n_layers=1, n_hidden=8, n_head=2, slice_num=2)
    plain = torch.optim.AdamW(parameter_groups(model, 0.1), fused=True)
    model(torch.rand(1, 5, 2)).sum().backward()
    plain.step()
    optimizer = make_optimizer(model, TrainingConfig(weight_decay=0.1))
    assert isinstance(optimizer, ResidualAdamW)
    optimizer.load_state_dict(plain.state_dict())
    assert optimizer.state_dict().keys() == plain.state_dict().keys()
    assert [s["step"] for s in optimizer.state.values()] == [1] * len(list(model.parameters()))
