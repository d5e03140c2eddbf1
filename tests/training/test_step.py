"""The optimisation step: its gradient, and that it neither waits for the device nor grows."""

import gc

import pytest
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils._python_dispatch import TorchDispatchMode

from physicsnemo_flarepp.training import planning
from physicsnemo_flarepp.training.config import check_config
from physicsnemo_flarepp.training.optimizers import (
    clip_gradients,
    make_average,
    parameter_groups,
)
from physicsnemo_flarepp.training.run import assemble, load_data, start_ranks


@pytest.fixture
def assembled(make_config):
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


@pytest.mark.parametrize(
    "precision, optimizer",
    [("fp32", "adamw"), ("bf16", "adamw"), ("fp32", "muon"), ("fp16", "muon")],
)
def test_step_reads_nothing_from_the_device(assembled, precision, optimizer):
    run = assembled(training__precision=precision, training__optimizer=optimizer)
    batches = list(run.loaders.train)
    run.step(batches[:1])
    run.step(batches[1:2])  # the second update of the average finds its tensors
    with ReadsOfTheDevice() as reads:
        run.step(batches[:2])
        run.step(batches[2:3])
    assert reads.tensors == []
    with ReadsOfTheDevice() as reads:
        run.average.update_parameters(run.model)
    # torch moves its counter to the device, a copy that waits.
    assert reads.tensors == [] and torch.ops.aten._to_copy.default not in reads.called


def test_average_is_that_of_torch(assembled):
    """After the first update ours leaves the counter, which an exponential average ignores."""
    run = assembled()
    theirs = AveragedModel(run.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    for batch in run.loaders.train:
        run.step([batch])
        theirs.update_parameters(run.model)
    assert (run.average.n_averaged, theirs.n_averaged) == (1, 5)
    pairs = zip(run.average.parameters(), theirs.parameters(), strict=True)
    assert all(torch.equal(ours, other) for ours, other in pairs)


class LargestSeen(torch.nn.Linear):
    """A layer that replaces its buffer, as many do."""

    def __init__(self):
        super().__init__(2, 2)
        self.register_buffer("largest", torch.zeros(()))

    def forward(self, x):
        self.largest = torch.maximum(self.largest, x.abs().max())
        return super().forward(x)


def test_average_follows_buffers_that_a_model_replaces_and_states_that_are_loaded():
    model = LargestSeen()
    average = make_average(model, 0.9)
    begin = {name: value.clone() for name, value in average.state_dict().items()}
    for size in (1.0, 2.0, 3.0):
        model(torch.full((1, 2), size))
        average.update_parameters(model)
    assert average.module.largest == 3
    with torch.no_grad():
        model.weight.fill_(5)
    average.load_state_dict(begin)
    average.update_parameters(model)  # the first one copies
    assert torch.equal(average.module.weight, model.weight)


@pytest.mark.parametrize("largest", [0.1, 1e3])
def test_clipping_is_that_of_torch(largest):
    shapes = [(3, 4), (5,), (2, 2, 2)]
    ours, theirs = ([torch.zeros(shape) for shape in shapes] for _ in range(2))
    for a, b in zip(ours, theirs, strict=True):
        a.grad = torch.randn_like(a)
        b.grad = a.grad.clone()
    clip_gradients([torch.zeros(3)], largest)  # frozen
    clip_gradients([*ours, torch.zeros(3)], largest)
    norm = torch.nn.utils.clip_grad_norm_(theirs, largest)
    assert (norm > largest) == (largest < 1)
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(ours, theirs, strict=True))


def test_counter_that_the_average_reads_is_on_the_host():
    average = make_average(torch.nn.Linear(2, 2, device="meta"), 0.9)
    assert average.module.weight.device.type == "meta"
    assert average.n_averaged.device.type == "cpu"


@pytest.mark.slow
def test_steps_leave_nothing_behind(assembled):
    run = assembled()
    batches = list(run.loaders.train)

    def tensors_after(steps):
        for i in range(steps):
            run.step([batches[i % len(batches)]])
        gc.collect()
        # type(), because isinstance() asks the lazy modules of torch for their class.
        return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())

    tensors_after(3)
    few = tensors_after(2)
    assert tensors_after(15) <= few  # fewer, where garbage of other tests goes meanwhile


def test_accumulated_batches_give_the_gradient_of_their_union(assembled, monkeypatch):
    """Two batches of 2 and one of 4 have the same mean loss, so the same update."""
    results = []
    for accumulate, size in ((2, 2), (1, 4)):
        run = assembled(training__accumulate=accumulate, data__batch_size=size)
        batches = [batch for batch, _ in zip(run.loaders.train, range(accumulate), strict=False)]
        loss = run.step(batches)
        results.append((loss, [p.detach() for p in run.model.parameters()]))
    (loss_a, a), (loss_b, b) = results
    torch.testing.assert_close(loss_a, loss_b)
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-7)


def test_loss_is_the_mean_error_in_physical_units(assembled):
    run = assembled()
    batch = next(iter(run.loaders.train))
    affine = run.loaders.normalizer.affine["fields"]
    with torch.no_grad():
        prediction = run.model(batch["coordinates"]).double() * affine.scale + affine.shift
        truth = batch["fields"].double()
        loss = run.step.loss(batch)
    expected = [
        (p[:, c] - y[:, c]).norm() / y[:, c].norm()
        for p, y in zip(prediction, truth, strict=True)
        for c in ([0], [1, 2, 3])
    ]
    torch.testing.assert_close(loss.double(), torch.stack(expected).mean(), rtol=1e-5, atol=0)


def test_joint_norm_runs_over_all_channels(assembled):
    run = assembled(training__field_norms="joint")
    batch = next(iter(run.loaders.train))
    affine = run.loaders.normalizer.affine["fields"]
    with torch.no_grad():
        prediction = run.model(batch["coordinates"]).double() * affine.scale + affine.shift
        truth = batch["fields"].double()
        loss = run.step.loss(batch)
    expected = (prediction - truth).flatten(1).norm(dim=1) / truth.flatten(1).norm(dim=1)
    torch.testing.assert_close(loss.double(), expected.mean(), rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    "changes",
    [
        {"training__accumulate": 2},
        {"data__weights": "measure", "training__norm": "measure"},
        {"training__precision": "fp16", "training__field_norms": "joint"},
    ],
    ids=["accumulate", "measure", "fp16"],
)
def test_streamed_steps_are_plain_steps(assembled, changes):
    runs = [assembled(training__stream=stream, **changes) for stream in (None, 7)]
    exact = changes.get("training__precision") != "fp16"
    size = changes.get("training__accumulate", 1)
    batches = list(runs[0].loaders.train)
    losses = [[run.step(batches[i : i + size]).item() for i in range(0, 4, size)] for run in runs]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5 if exact else 1e-2)
    if exact:
        for a, b in zip(*(run.average.parameters() for run in runs), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    with torch.no_grad():
        found, expected = (run.evaluation.predict(batches[0]) for run in runs)
    assert not found.requires_grad
    torch.testing.assert_close(found, expected, rtol=1e-3 if exact else 0.1, atol=1e-2)


@pytest.mark.parametrize(
    "memory, expected", [(1e12, None), (2e6, 256)], ids=["that fits", "that does not"]
)
def test_auto_streams_what_does_not_fit(assembled, monkeypatch, memory, expected):
    monkeypatch.setattr(planning, "total_memory", lambda device: memory)
    run = assembled(training__stream="auto")
    choice = run.step.loss.choice
    assert [choice(2, 48), choice(1, 10**5)] == [None, expected]


@pytest.mark.parametrize("name", ["PerceiverIO", "SetTransformer", "GNOT", "LNO"])
def test_steps_of_complete_architectures_lower_the_loss(assembled, name):
    slices = None if name == "GNOT" else 4
    run = assembled(
        model___target_=f"physicsnemo_flarepp.{name}",
        model__slice_num=slices,
        training__div_factor=2.0,
    )
    batch = next(iter(run.loaders.train))
    losses = [run.step([batch]).item() for _ in range(8)]
    assert losses[-1] < losses[0]


def test_only_matrices_of_layers_decay(assembled):
    model = assembled().model
    decayed, free = parameter_groups(model, 0.1)
    names = {id(p): name for name, p in model.named_parameters()}
    assert {names[id(p)].rsplit(".", 1)[1] for p in decayed["params"]} == {"weight"}
    assert all(p.ndim == 2 for p in decayed["params"])
    free_names = [names[id(p)] for p in free["params"]]
    assert any(name.endswith("mixer.seeds") for name in free_names)
    assert {n for n in names.values() if "norm" in n or n.endswith("bias")} <= set(free_names)
    assert len(decayed["params"]) + len(free["params"]) == len(names)
    assert (decayed["weight_decay"], free["weight_decay"]) == (0.1, 0.0)


def test_the_measure_norm_is_that_of_an_integral_and_moves_the_loss(assembled):
    run = assembled(data__weights="measure", training__norm="measure")
    batch = next(iter(run.loaders.train))
    prediction = run.step.loss.predict(batch)
    root = batch["weights"].double().sqrt()[..., None]
    off, true = (prediction - batch["fields"]) * root, batch["fields"] * root
    expected = [
        off[..., part].flatten(1).norm(dim=1) / true[..., part].flatten(1).norm(dim=1)
        for part in (slice(0, 1), slice(1, 4))
    ]
    loss = run.step.loss(batch)
    torch.testing.assert_close(loss.double(), torch.stack(expected).mean(), rtol=1e-5, atol=0)
    plain = assembled(data__weights="measure")
    assert abs(plain.step.loss(batch) - loss) > 1e-3 * loss


def test_weights_reach_the_gathers_of_the_model(assembled):
    weighted, plain = assembled(data__weights="measure"), assembled()
    batch = next(iter(weighted.loaders.train))
    assert torch.equal(weighted.step.loss.adapter(batch)["token_weights"], batch["weights"])
    with torch.no_grad():
        found, expected = (
            weighted.step.loss.predict(batch),
            plain.step.loss.predict(batch.exclude("weights")),
        )
        even = batch.clone()
        even["weights"] = torch.full_like(batch["weights"], 0.3)
        torch.testing.assert_close(weighted.step.loss.predict(even), expected)
    assert (found - expected).abs().max() > 1e-3 * expected.abs().max()


def test_models_without_weights_say_so_once(assembled):
    changes = {
        "model": {"_target_": "physicsnemo.models.transolver.transolver.Transolver"},
        "data__weights": "measure",
    }
    changes["model"] |= {"n_layers": 1, "n_hidden": 16, "n_head": 2, "slice_num": 4}
    changes["model"] |= {"unified_pos": False, "use_te": False}
    with pytest.warns(UserWarning, match="Transolver takes no token weights"):
        run = assembled(**changes)
    assert run.step.loss(next(iter(run.loaders.train))).isfinite()


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"training__norm": "areas"}, "training.norm is 'areas'; choose one of tokens, measure"),
        ({"training__norm": "measure"}, "data.weights is 'none'"),
        (
            {"data__weights": "measure", "data__sampling_density": "area"},
            "training.norm is 'tokens'",
        ),
        ({"training__clip_norm": 0.0}, "training.clip_norm is 0.0, expected a positive norm"),
        ({"training__stream": 0}, "training.stream is 0; choose a number of tokens"),
        ({"training__stream": "always"}, "training.stream is 'always'; choose a number"),
        ({"training__stream": 9, "training__compile": True}, "training.compile is true"),
        (
            {"training__stream": 9, "training__derivative_weight": 0.1},
            "differences of training.derivative_weight couple tokens",
        ),
    ],
)
def test_settings_that_do_not_fit_each_other_are_refused(make_config, changes, message):
    with pytest.raises(ValueError, match=message):
        check_config(make_config(**changes))
