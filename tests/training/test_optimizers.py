"""Weight decay acts on the distance of residual projections from the identity; Muon."""

import pytest
import torch
from torch.nn.utils import parametrize
from torch.utils._python_dispatch import TorchDispatchMode

from physicsnemo_flarepp import MixerBackbone
from physicsnemo_flarepp.training.config import TrainingConfig
from physicsnemo_flarepp.training.optimizers import (
    ResidualAdamW,
    block_matrices,
    make_optimizer,
    orthogonal_factors,
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


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_a_step_that_the_gradient_scaler_skips_changes_nothing(name):
    model = MixerBackbone(2, 1, mixer="flare", n_layers=1, n_hidden=8, n_head=2, slice_num=2)
    optimizer = make_optimizer(model, TrainingConfig(weight_decay=0.5, optimizer=name))
    scaler = torch.amp.GradScaler("cpu")

    def step(factor):
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(1, 5, 2)).sum() * factor).backward()
        scaler.step(optimizer)
        scaler.update()

    step(1.0)
    parts = getattr(optimizer, "optimizers", [optimizer])
    state = [value for part in parts for s in part.state.values() for value in s.values()]
    kept = [tensor.detach() for tensor in (*model.parameters(), *state)]
    before = [tensor.clone() for tensor in kept]
    step(torch.inf)
    assert all(torch.equal(a, b) for a, b in zip(before, kept, strict=True))
    step(1.0)
    assert not any(torch.equal(a, b) for a, b in zip(before, kept, strict=True) if a.any())


class HostReads(TorchDispatchMode):
    """Counts the numbers that operators fetch to the host; on a GPU each waits for the device."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function.overloadpacket is torch.ops.aten._local_scalar_dense
        return function(*args, **(kwargs or {}))


def test_a_scaled_step_reads_nothing_on_the_host():
    model = MixerBackbone(2, 1, n_layers=2, n_hidden=8, n_head=2, slice_num=2)
    optimizer = make_optimizer(model, TrainingConfig(weight_decay=0.5))
    model(torch.ones(1, 5, 2)).sum().backward()
    optimizer.grad_scale, optimizer.found_inf = torch.ones(()), torch.zeros(())  # as a scaler
    with HostReads() as reads:
        optimizer.step()
    assert reads.count == 0


def test_muon_steps_every_projection_as_torchs_does_on_its_own():
    """It gets W where the model stores I + W, one matrix per map.

    torch's rounds to bfloat16, which only gradients of good condition bear.
    """
    torch.manual_seed(0)
    model = MixerBackbone(2, 1, mixer="flarepp", n_layers=1, n_hidden=16, n_head=2, slice_num=4)
    settings = TrainingConfig(optimizer="muon", muon_learning_rate=0.1, weight_decay=0.5)
    optimizer = make_optimizer(model, settings)
    stored = model.blocks[0].mixer.project.weight
    maps = [torch.nn.Parameter(rows.detach() - torch.eye(16)) for rows in stored.split(16)]
    theirs = torch.optim.Muon(maps, lr=0.1, weight_decay=0.5, adjust_lr_fn="match_rms_adamw")
    for _ in range(3):
        stored.grad = torch.randn(64, 16)
        for weight, gradient in zip(maps, stored.grad.split(16), strict=True):
            weight.grad = gradient.clone()
        optimizer.step()
        theirs.step()
    moved = torch.cat([weight + torch.eye(16) for weight in maps])
    assert (stored - moved).norm() < 0.02 * (stored - torch.eye(16).repeat(4, 1)).norm()


@pytest.mark.parametrize("shape", [(10, 128, 128), (3, 400, 384)])  # two groups, one map each
def test_orthogonal_factors_of_many_maps_are_those_of_each(shape):
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    options = ((3.4445, -4.7750, 2.0315), 5, 1e-7)
    each = torch.cat([orthogonal_factors(matrix[None], *options) for matrix in matrices])
    torch.testing.assert_close(orthogonal_factors(matrices, *options), each, rtol=0, atol=1e-4)


@pytest.mark.parametrize("shape", [(5, 5), (3, 7), (7, 3)])
def test_orthogonal_factors_bring_singular_values_near_one_and_keep_their_directions(shape):
    matrix = torch.randn(2, *shape, dtype=torch.float64)
    factor = orthogonal_factors(matrix, (3.4445, -4.7750, 2.0315), 12, 1e-7)
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    inside = u.mT @ factor @ v.mT
    values = inside.diagonal(dim1=1, dim2=2)
    assert (inside - torch.diag_embed(values)).abs().max() < 1e-9
    assert ((values > 0.6) & (values < 1.3)).all()


def test_muon_takes_the_matrices_of_the_blocks_and_adamw_all_else():
    model = MixerBackbone(2, 1, n_layers=2, n_hidden=8, n_head=2, slice_num=2)
    adamw, muon = make_optimizer(model, TrainingConfig(optimizer="muon")).optimizers
    names = {id(p): name for name, p in model.named_parameters()}
    theirs = [[names[id(p)] for g in o.param_groups for p in g["params"]] for o in (adamw, muon)]
    assert sorted(theirs[0] + theirs[1]) == sorted(names.values())
    assert {name.split(".", 2)[2] for name in theirs[1]} == {
        "mixer.project.weight",
        "mixer.out.weight",
        "ffn.0.weight",
        "ffn.2.weight",
    }
    with pytest.raises(ValueError, match="Linear has no `blocks`.*set it to 'adamw'"):
        block_matrices(torch.nn.Linear(2, 2))


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
