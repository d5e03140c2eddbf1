"""The optimisation step: its gradient, and that it neither waits for the device nor grows."""

import gc
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.utils import parametrize
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils._python_dispatch import TorchDispatchMode

from physicsnemo_flarepp import MixerBackbone
from physicsnemo_flarepp.training.assembly import assemble, load_data, start_ranks
from physicsnemo_flarepp.training.losses import derivative_loss, field_errors
from physicsnemo_flarepp.training.optimizers import (
    ResidualAdamW,
    make_average,
    make_optimizer,
    parameter_groups,
)
from physicsnemo_flarepp.training.settings import TrainingConfig, check_config


@pytest.fixture
def parts(make_config):
    def make(**changes):
        cfg = check_config(make_config(**changes))
        ranks = start_ranks(cfg)
        return assemble(cfg, ranks, load_data(cfg, ranks))

    return make


class ReadsOfTheDevice(TorchDispatchMode):
    """Records the tensors whose values Python asks for: on a GPU each is a wait for the device."""

    def __init__(self):
        super().__init__()
        self.tensors = []
        self.called = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.called.add(function)
        if function is torch.ops.aten._local_scalar_dense.default:
            self.tensors.append(args[0])
        if function in (torch.ops.aten.nonzero.default, torch.ops.aten.masked_select.default):
            self.tensors.append(args[0])
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_step_reads_nothing_from_the_device(parts, precision):
    run = parts(training__precision=precision)
    batches = list(run.loaders.train)
    run.step(batches[:1])
    average = run.step.average
    with ReadsOfTheDevice() as reads:
        average.update_parameters(run.model)
    # The counter, which is on the host; moving it to the device would be a copy that waits.
    assert [tuple(tensor.shape) for tensor in reads.tensors] == [()]
    assert torch.ops.aten._to_copy.default not in reads.called
    run.step.average = SimpleNamespace(update_parameters=lambda model: None)
    with ReadsOfTheDevice() as reads:
        run.step(batches[:2])
        run.step(batches[2:3])
    assert reads.tensors == []


def test_average_is_that_of_torch(parts):
    """After the first update ours skips the counter, which an exponential average ignores."""
    run = parts()
    theirs = AveragedModel(run.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    for batch in run.loaders.train:
        run.step([batch])
        theirs.update_parameters(run.model)
    assert run.average.n_averaged == theirs.n_averaged == 5
    pairs = zip(run.average.parameters(), theirs.parameters(), strict=True)
    assert all(torch.equal(ours, other) for ours, other in pairs)


def test_counter_that_the_average_reads_is_on_the_host():
    average = make_average(torch.nn.Linear(2, 2, device="meta"), 0.9)
    assert average.module.weight.device.type == "meta"
    assert average.n_averaged.device.type == "cpu"


def test_steps_leave_nothing_behind(parts):
    run = parts()
    batches = list(run.loaders.train)

    def tensors_after(steps):
        for i in range(steps):
            run.step([batches[i % len(batches)]])
        gc.collect()
        # type(), because isinstance() asks the lazy modules of torch for their class.
        return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())

    tensors_after(3)
    assert tensors_after(2) == tensors_after(15)


def test_accumulated_batches_give_the_gradient_of_their_union(parts, monkeypatch):
    """Two batches of 2 and one of 4 have the same mean loss, so the same update."""
    results = []
    for accumulate, size in ((2, 2), (1, 4)):
        run = parts(training__accumulate=accumulate, data__batch_size=size)
        batches = [batch for batch, _ in zip(run.loaders.train, range(accumulate), strict=False)]
        loss = run.step(batches)
        results.append((loss, [p.detach() for p in run.model.parameters()]))
    (loss_a, a), (loss_b, b) = results
    torch.testing.assert_close(loss_a, loss_b)
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-7)


def test_loss_is_the_mean_error_in_physical_units(parts):
    run = parts()
    batch = next(iter(run.loaders.train))
    affine = run.loaders.normalizer.affine["fields"]
    with torch.no_grad():
        prediction = run.model(batch["coordinates"]).double() * affine.scale + affine.shift
        truth = batch["fields"].double() * affine.scale + affine.shift
        loss = run.step.loss(batch)
    expected = [
        (p[:, c] - y[:, c]).norm() / y[:, c].norm()
        for p, y in zip(prediction, truth, strict=True)
        for c in ([0], [1, 2, 3])
    ]
    torch.testing.assert_close(loss.double(), torch.stack(expected).mean(), rtol=1e-5, atol=0)


def test_joint_norm_runs_over_all_channels(parts):
    run = parts(training__field_norms="joint")
    batch = next(iter(run.loaders.train))
    affine = run.loaders.normalizer.affine["fields"]
    with torch.no_grad():
        prediction = run.model(batch["coordinates"]).double() * affine.scale + affine.shift
        truth = batch["fields"].double() * affine.scale + affine.shift
        loss = run.step.loss(batch)
    expected = (prediction - truth).flatten(1).norm(dim=1) / truth.flatten(1).norm(dim=1)
    torch.testing.assert_close(loss.double(), expected.mean(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("name", ["PerceiverIO", "SetTransformer", "GNOT", "LNO"])
def test_steps_of_complete_architectures_lower_the_loss(parts, name):
    slices = None if name == "GNOT" else 4
    run = parts(
        model___target_=f"physicsnemo_flarepp.{name}",
        model__slice_num=slices,
        training__div_factor=2.0,
    )
    batch = next(iter(run.loaders.train))
    losses = [run.step([batch]).item() for _ in range(8)]
    assert losses[-1] < losses[0]


def test_only_matrices_of_layers_decay(parts):
    model = parts().model
    decayed, free = parameter_groups(model, 0.1)
    names = {id(p): name for name, p in model.named_parameters()}
    assert {names[id(p)].rsplit(".", 1)[1] for p in decayed["params"]} == {"weight"}
    assert all(p.ndim == 2 for p in decayed["params"])
    free_names = [names[id(p)] for p in free["params"]]
    assert any(name.endswith("mixer.seeds") for name in free_names)
    assert {n for n in names.values() if "norm" in n or n.endswith("bias")} <= set(free_names)
    assert len(decayed["params"]) + len(free["params"]) == len(names)
    assert (decayed["weight_decay"], free["weight_decay"]) == (0.1, 0.0)


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


def test_derivative_loss_is_that_of_differences_taken_by_hand():
    grid = (5, 4)
    prediction, target = torch.rand(2, 2, 20, 1, dtype=torch.float64)

    def at(field, i, j, inside_only):
        edge = int(inside_only)
        inside = edge <= i < grid[0] - edge and edge <= j < grid[1] - edge
        return field[i, j].item() if inside else 0.0

    expected = 0.0
    for p, y in zip(prediction.view(2, *grid), target.view(2, *grid), strict=True):
        for di, dj in ((1, 0), (0, 1)):
            points = [(i, j) for i in range(5) for j in range(4)]  # all of them
            dp, dy = (
                np.array(
                    [at(f, i + di, j + dj, inner) - at(f, i - di, j - dj, inner) for i, j in points]
                )
                for f, inner in ((p, True), (y, False))  # the predicted boundary counts as 0
            )
            expected += np.linalg.norm(dp - dy) / np.linalg.norm(dy) / 2
    loss = derivative_loss(prediction, target, grid, (1,))
    assert loss.item() == pytest.approx(expected, rel=1e-12)


def test_fields_are_measured_apart():
    target = torch.rand(2, 9, 4, dtype=torch.float64)
    prediction = target.clone()
    prediction[..., 0] += 1.0
    errors = field_errors(prediction, target, (1, 3))
    torch.testing.assert_close(errors[:, 0], 3.0 / target[..., 0].norm(dim=1))
    assert errors[:, 1].max() < 1e-100
    with pytest.raises(ValueError, match=r"widths \(1, 2\) have 3 channels"):
        field_errors(prediction, target, (1, 2))
