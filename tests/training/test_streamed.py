"""A streamed training step is the plain one: its loss, every gradient, and nothing upon errors."""

import copy
import errno
import itertools
import os
import signal
import threading

import numpy as np
import pytest
import torch

from physicsnemo_flarepp import GNOT, LNO, MixerBackbone, PerceiverIO, SetTransformer
from physicsnemo_flarepp.inference import encode_state, predict
from physicsnemo_flarepp.ops import plain_operators
from physicsnemo_flarepp.ops.errors import relative_l2
from physicsnemo_flarepp.ops.kernels import is_plain
from physicsnemo_flarepp.training import streamed_gradients, streamed_step
from tests.inference.streaming_cases import (
    BATCH,
    MODELS,
    STORES,
    TOKENS,
    make_cloud,
    make_model,
    make_weights,
)

COMPLETE = {cls.__name__: cls for cls in (PerceiverIO, SetTransformer, GNOT, LNO)}
LENGTHS = torch.tensor([[TOKENS - 4], [3]])


def make(name, dtype=torch.float64):
    if name not in COMPLETE:
        return make_model(name, dtype)
    torch.manual_seed(0)
    sizes = {"n_layers": 2, "n_hidden": 32, "n_head": 4, "embedding_dim": 3}
    sizes |= {} if name == "GNOT" else {"slice_num": 5}
    model = COMPLETE[name](4, 2, **sizes)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model.to(dtype).eval()


def make_case(dtype=torch.float64, kind="whole"):
    """Inputs of a model with a target; padding holds NaN."""
    (fx, embedding), target = make_cloud(dtype), torch.randn(BATCH, TOKENS, 2, dtype=dtype)
    case = {"fx": fx, "embedding": embedding, "target": target}
    if kind != "whole":
        case["token_mask"] = torch.arange(TOKENS)[None] < LENGTHS
        for value in (fx, embedding, target):
            value[~case["token_mask"]] = torch.nan
    if kind == "weighted":
        case["token_weights"] = make_weights()
        case["token_weights"][1, :2] = 1.0  # the mask leaves three tokens of this sample
    return case


def plain_step(model, case, loss=None):
    """The loss by plain autograd, with gradients in ``.grad``."""
    inputs = {key: value for key, value in case.items() if key != "target"}
    prediction, target = model(**inputs), case["target"].reshape(BATCH, -1, 2)
    prediction = prediction.reshape(target.shape)
    if loss is None:
        loss = relative_l2(prediction, target, token_mask=case.get("token_mask")).mean()
    else:
        loss = loss(prediction, target)
    loss.backward()
    return loss.detach()


def gradients(model):
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def worst_difference(model, expected):
    """Largest relative difference of a gradient; one that cancels to rounding has none."""
    found = gradients(model)
    assert found.keys() == expected.keys()
    total = max(gradient.norm() for gradient in expected.values())
    return max(
        ((found[name] - g).norm() / max(g.norm(), 1e-3 * total)).item()
        for name, g in expected.items()
    )


def compare(model, case, loss=None, plain_loss=None, **options):
    """Relative differences of the loss and of the gradients between both steps."""
    expected = plain_step(model, case, plain_loss)
    reference = gradients(model)
    model.zero_grad()
    found = streamed_step(model, **case, loss=loss, **options)
    return abs(found / expected - 1).item(), worst_difference(model, reference)


@pytest.mark.parametrize("kind", ["whole", "weighted"])
@pytest.mark.parametrize("name", [*MODELS, *COMPLETE])
def test_every_mixer_with_a_mask_and_weights(name, kind):
    assert max(compare(make(name), make_case(kind=kind), chunk_size=11)) < 1e-10


@pytest.mark.parametrize("chunk_size", [1, 7, TOKENS - 1, TOKENS, TOKENS + 10, "auto"])
def test_every_chunk_size(chunk_size):
    model = make_model(n_layers=1)
    assert max(compare(model, make_case(kind="masked"), chunk_size=chunk_size)) < 1e-10


@pytest.mark.parametrize("name", ["flarepp", "flare", "transolver3"])
def test_single_precision(name):
    assert max(compare(make(name, torch.float32), make_case(torch.float32), chunk_size=7)) < 1e-5


def test_time_one_row_for_all_tokens_and_a_frozen_embedding():
    model = make_model(time_input=True)
    model.in_projection.requires_grad_(False)
    case = make_case()
    case |= {"fx": torch.randn(BATCH, 1, 4).double(), "time": torch.rand(BATCH).double()}
    assert max(compare(model, case, chunk_size=11)) < 1e-10
    assert model.in_projection.first.weight.grad is None


@pytest.mark.parametrize("unified_pos", [False, True])
def test_grids(unified_pos):
    grid = (7, 9)
    dim = None if unified_pos else 3
    unified = {"unified_pos": True, "ref": 2} if unified_pos else {}
    model = make_model(structured_shape=grid, embedding_dim=dim, **unified)
    widths = {"fx": 4, "target": 2} | ({} if unified_pos else {"embedding": 3})
    case = {key: torch.randn(BATCH, *grid, width).double() for key, width in widths.items()}
    case.setdefault("embedding", None)
    assert max(compare(model, case, chunk_size=10)) < 1e-10


@pytest.mark.parametrize("store", STORES)
def test_arrays_of_any_storage_are_read_chunk_by_chunk(store, tmp_path):
    model, case = make("flarepp"), make_case()
    expected = plain_step(model, case)
    reference, longest = gradients(model), []

    class Watched:
        def __init__(self, key, value):
            self.array = STORES[store](value.numpy(), tmp_path / f"{key}.npy")
            self.shape, self.dtype = self.array.shape, self.array.dtype

        def __getitem__(self, key):
            rows = self.array[key]
            longest.append(rows.shape[1])
            return rows

    model.zero_grad()
    arrays = {key: Watched(key, value) for key, value in case.items()}
    found = streamed_step(model, **arrays, chunk_size=10)
    assert max(longest) == 10
    assert abs(found / expected - 1) < 1e-12 and worst_difference(model, reference) < 1e-10


@pytest.mark.parametrize("offload", ["device", "directory"])
def test_places_where_hidden_states_wait(offload, tmp_path):
    place = tmp_path if offload == "directory" else offload
    differences = compare(make("flarepp"), make_case(), chunk_size=10, offload=place)
    assert max(differences) < 1e-10
    assert list(tmp_path.iterdir()) == []


def test_hidden_states_in_bfloat16_cost_digits_and_no_more():
    differences = compare(make("flarepp"), make_case(), chunk_size=10, stream_dtype=torch.bfloat16)
    assert 1e-6 < max(differences) < 0.1


def test_autocast_is_as_close_to_full_precision_as_the_plain_step():
    model, case = make("flarepp", torch.float32), make_case(torch.float32)
    plain_step(model, case)
    exact = gradients(model)
    errors = []
    for step in (plain_step, streamed_step):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            options = {} if step is plain_step else {"chunk_size": 10}
            loss = step(model, case) if step is plain_step else step(model, **case, **options)
        errors.append(worst_difference(model, exact))
        assert loss.dtype == torch.float32
    assert 1e-4 < errors[1] < 1.5 * errors[0]


def test_gradients_add_up_and_a_factor_scales_them_but_not_the_loss():
    model, case = make("flarepp"), make_case()
    loss = plain_step(model, case)
    reference = {name: 0.25 * gradient for name, gradient in gradients(model).items()}
    model.zero_grad()
    for _ in range(2):
        found = streamed_step(model, **case, chunk_size=20, factor=0.125)
    assert abs(found / loss - 1) < 1e-12
    assert worst_difference(model, reference) < 1e-10


class CubedSum:
    """The sum of squares to the power 3: a function of one sum, and no mean."""

    def sums(self, prediction, target, rows):
        return (prediction - target).square().sum()

    def value(self, sums):
        return sums**3


def test_any_loss_over_sums():
    case = make_case()
    plain = lambda prediction, target: (prediction - target).square().sum() ** 3  # noqa: E731
    differences = compare(make("flare"), case, CubedSum(), plain, chunk_size=9)
    assert max(differences) < 1e-10


def test_plain_operators_change_nothing():
    with plain_operators():
        assert max(compare(make("flare"), make_case(), chunk_size=9)) < 1e-10


def sharp_transolver(name, sharpness, temperature=0.1):
    """A model whose slices hold points of a small part of space each, for points along x."""
    torch.manual_seed(0)
    sizes = {"n_layers": 2, "n_hidden": 32, "n_head": 4, "slice_num": 16, "orthogonal_slices": True}
    model = MixerBackbone(3, 1, mixer=name, **sizes).eval()
    with torch.no_grad():
        for block in model.blocks:
            layer = block.mixer.layer if name != "transolver3" else block.mixer
            layer.temperature.fill_(temperature)
            slices = layer.in_project_slice if name != "transolver3" else layer.slice
            slices.weight.mul_(sharpness)
    return model


def sorted_points(n=8192):
    torch.manual_seed(0)
    x = torch.rand(1, n, 3)
    return {"fx": x[:, x[0, :, 0].argsort()], "embedding": None, "target": torch.randn(1, n, 1)}


def gradients_of(model, case, chunk_size=None):
    """Loss and gradients of a plain step, or of a streamed one."""
    model.zero_grad()
    if chunk_size is None:
        loss = relative_l2(model(case["fx"]), case["target"]).mean()
        loss.backward()
    else:
        loss = streamed_step(model, **case, chunk_size=chunk_size)
    return loss.item(), gradients(model)


def in_double(case):
    return {key: None if value is None else value.double() for key, value in case.items()}


@pytest.mark.parametrize("name", ["transolver", "transolver_plus", "transolver3"])
def test_slices_that_next_to_no_token_of_a_chunk_belongs_to(name):
    """Points sorted along x and sharp slices: weights of a chunk underflow to denormal numbers.

    In double precision both steps agree; in single precision both are compared with it, because
    the plain step is the less exact one here (1.2e-3 for transolver_plus, streamed 1e-4).
    """
    # A temperature of 0.1 is the lowest allowed one, whose gradient rounding turns on and off.
    model = sharp_transolver(name, 32 if name == "transolver_plus" else 8, 0.1001)
    case = sorted_points()
    with torch.no_grad():
        block = model.blocks[0]
        weights = block.mixer.gather(block.norm_mixer(model.embed(case["fx"][:, :512])), ())[1]
    assert weights.min() < torch.finfo(torch.float32).tiny  # of such a chunk
    double = copy.deepcopy(model).double()
    loss, reference = gradients_of(double, in_double(case))
    for chunk_size in (512, 2048):
        found, exact = gradients_of(double, in_double(case), chunk_size)
        assert abs(found / loss - 1) < 1e-12 and worst_difference(double, reference) < 1e-10
        found, single = gradients_of(model, case, chunk_size)
        assert abs(found / loss - 1) < 1e-5 and worst_difference(model, reference) < 5e-4


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["transolver", "transolver_plus", "transolver3"])
def test_every_sharpness_and_chunk_has_finite_exact_gradients(name):
    case = sorted_points(256)
    for sharpness, temperature in itertools.product((1, 4, 16, 64, 256), (0.1, 0.1001, 0.5, 5.0)):
        model = sharp_transolver(name, sharpness, temperature)
        double = sharp_transolver(name, sharpness, temperature).double()
        loss, reference = gradients_of(double, in_double(case))
        for chunk_size in (7, 64, 255) if temperature != 0.1 else (1, 7, 64, 255, 256):
            gradients_of(double, in_double(case), chunk_size)
            assert worst_difference(double, reference) < 1e-9
            found, single = gradients_of(model, case, chunk_size)
            assert abs(found / loss - 1) < 1e-4
            assert all(gradient.isfinite().all() for gradient in single.values())


class WeightedPower:
    """A function of sums that depends on data of the tokens, too."""

    def sums(self, prediction, target, rows):
        target = 1.0 if target is None else target
        return torch.stack(((prediction * target).sum(), prediction.square().sum()))

    def value(self, sums):
        return sums[0] * sums[1].sqrt()


def plain_gradients(model, case):
    """The objective and its gradients by every input of floating type, by plain autograd."""
    case = {k: v.clone() for k, v in case.items()}
    leaves = {k: v.requires_grad_() for k, v in case.items() if v.is_floating_point()}
    inputs = {key: value for key, value in case.items() if key != "target"}
    objective, target = WeightedPower(), case["target"].reshape(case["target"].shape[0], -1, 2)
    target = target.masked_fill(~case.get("token_mask", torch.tensor(True))[..., None], 0.0)
    value = objective.value(objective.sums(model(**inputs).reshape(target.shape), target, None))
    found = torch.autograd.grad(value, list(leaves.values()))
    return value.detach(), dict(zip(leaves, found, strict=True))


def assert_same_gradients(found, expected, limit=1e-10):
    assert set(found) == set(expected)
    for name, gradient in expected.items():
        error = (torch.as_tensor(found[name]) - gradient).norm()
        assert error <= limit * gradient.norm(), name


@pytest.mark.parametrize("kind", ["whole", "weighted"])
@pytest.mark.parametrize("name", [*MODELS, *COMPLETE])
def test_input_gradients_of_every_mixer(name, kind):
    model, case = make(name), make_case(kind=kind)
    if kind == "weighted":
        case["target"][~case["token_mask"]] = 0.0  # the objective reads it
    value, expected = plain_gradients(model, case)
    fx, embedding = case.pop("fx"), case.pop("embedding")
    found_value, found = streamed_gradients(
        model, fx, embedding, WeightedPower(), wanted=list(expected), chunk_size=11, **case
    )
    assert abs(found_value / value - 1) < 1e-10 and not fx.requires_grad
    assert_same_gradients(found, expected)
    assert all(p.grad is None for p in model.parameters())


def test_input_gradients_in_single_precision_and_by_default_of_all_inputs():
    model, case = make("flarepp", torch.float32), make_case(torch.float32)
    case["token_weights"] = make_weights()
    _, expected = plain_gradients(model, case)
    del expected["target"]
    inputs = [case.pop("fx"), case.pop("embedding")]
    _, found = streamed_gradients(model, *inputs, WeightedPower(), chunk_size=7, **case)
    assert_same_gradients(found, expected, 2e-5)
    assert {k: v.dtype for k, v in found.items()} == {k: v.dtype for k, v in expected.items()}


def test_input_gradients_of_grids_and_of_one_row_for_all_tokens():
    model = make_model(structured_shape=(7, 5))
    torch.manual_seed(2)
    case = {"fx": torch.randn(2, 7, 5, 4), "embedding": torch.randn(2, 7, 5, 3)}
    case = {key: value.double() for key, value in case.items()}
    case["target"] = torch.randn(2, 7, 5, 2).double()
    _, expected = plain_gradients(model, case)
    options = {"wanted": list(expected), "target": case["target"], "chunk_size": 8}
    _, found = streamed_gradients(model, case["fx"], case["embedding"], WeightedPower(), **options)
    assert_same_gradients(found, expected)
    row = {**make_case(), "fx": torch.randn(BATCH, 1, 4).double()}
    _, expected = plain_gradients(make("flare"), row)
    options = {"wanted": list(expected), "target": row["target"], "chunk_size": 8}
    _, found = streamed_gradients(
        make("flare"), row["fx"], row["embedding"], WeightedPower(), **options
    )
    assert_same_gradients(found, expected)


def test_input_gradients_go_to_memory_maps(tmp_path):
    """A batch of one without its axis; the objective needs no target."""
    model, case = make("transolver"), make_case()
    one = {key: case[key][0].numpy() for key in ("fx", "embedding")}
    one["token_weights"] = make_weights()[0].numpy()
    _, expected = plain_gradients(
        model,
        {
            **{k: torch.from_numpy(v)[None] for k, v in one.items()},
            "target": torch.ones(1, TOKENS, 2),
        },
    )
    out = {
        name: np.lib.format.open_memmap(tmp_path / f"{name}.npy", "w+", np.float32, value.shape)
        for name, value in one.items()
    }
    _, found = streamed_gradients(model, **one, objective=WeightedPower(), out=out, chunk_size=9)
    assert all(found[name] is out[name] for name in out)
    for name in out:
        stored = torch.from_numpy(np.load(tmp_path / f"{name}.npy"))[None]
        assert (stored - expected[name]).norm() < 1e-6 * expected[name].norm()


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"wanted": ["token_weights"]}, ValueError, "no gradient of 'token_weights'.*fx, embedd"),
        ({"wanted": ["time"]}, ValueError, "no gradient of 'time'"),
        ({"out": {"fx": np.zeros((2, 5, 4))}}, ValueError, r"must be a writable .*\(2, 53, 4\)"),
        ({"out": {"fx": np.broadcast_to(0.0, (2, 53, 4))}}, ValueError, "read-only"),
        ({"objective": torch.nn.MSELoss()}, TypeError, "not a function of sums over tokens"),
    ],
)
def test_input_gradients_that_cannot_be_had_are_named(change, error, message):
    fx, embedding = make_cloud()
    options = {"model": make("flare"), "fx": fx, "embedding": embedding}
    with pytest.raises(error, match=message):
        streamed_gradients(**{**options, "objective": WeightedPower(), **change})


def in_threads(*works):
    """Run functions at the same time until the first has ended; return what the others gave."""
    stop, results, errors = threading.Event(), [[] for _ in works], []

    def run(index, work):
        try:
            while not stop.is_set():
                results[index].append(work())
                if index == 0 and len(results[0]) == 6:
                    stop.set()
        except BaseException as error:
            errors.append(error)
            stop.set()

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    return results


@pytest.mark.parametrize("name", ["flarepp", "flare", "transolver3"])
def test_threads_stream_and_predict_different_models_at_the_same_time(name):
    models = [make(name), make("flare"), make("flarepp"), make("flarepp")]
    case, (fx, embedding) = make_case(), make_cloud()
    expected = [model(fx, embedding).detach() for model in models[2:]]
    references = []
    for model in models[:2]:
        plain_step(model, case)
        references.append(gradients(model))

    def step(model):
        model.zero_grad()
        streamed_step(model, **case, chunk_size=5)
        return gradients(model)

    def plain():
        with plain_operators():
            return models[3](fx, embedding).detach()

    found = in_threads(
        lambda: step(models[0]),
        lambda: step(models[1]),
        lambda: predict(models[2], fx, embedding, chunk_size=20),
        plain,
    )
    for reference, results in zip(references, found[:2], strict=True):
        for result in results:
            assert all(torch.allclose(result[k], reference[k], atol=1e-12) for k in reference)
    for value, results in zip(expected, found[2:], strict=True):
        assert results and all(torch.allclose(result, value, atol=1e-12) for result in results)
    assert not is_plain() and torch.allclose(models[2](fx, embedding), expected[0], atol=1e-12)


def test_recomputed_blocks_are_plain_in_whichever_thread_the_backward_pass_runs():
    """Second derivatives of checkpointed blocks, differentiated where the choice is not seen."""
    model = make_model(checkpoint_blocks=True)
    fx, embedding = make_cloud()
    whole = make_model()

    def penalty(model, inner):
        x = fx.clone().requires_grad_()
        with plain_operators():
            y = model(x, embedding)
        (dy,) = inner(lambda: torch.autograd.grad(y.sum(), x, create_graph=True))
        inner(lambda: dy.square().sum().backward())
        return gradients(model)

    def elsewhere(work):
        results = []
        thread = threading.Thread(target=lambda: results.append(work()))
        thread.start()
        thread.join()
        return results[0]

    expected, found = penalty(whole, lambda work: work()), penalty(model, elsewhere)
    assert all(torch.allclose(found[k], expected[k], rtol=1e-9, atol=1e-10) for k in expected)


class Hundred(torch.nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *inputs):
        return 100 * self.module(*inputs)


def test_only_wrappers_that_compute_the_same_are_unwrapped():
    model, case = make("flarepp"), make_case()
    (fx, embedding), target = make_cloud(), case["target"]
    expected = predict(model, fx, embedding, chunk_size=9)
    compiled = torch.compile(model, backend="eager")
    assert torch.equal(predict(compiled, fx, embedding, chunk_size=9), expected)
    wrapped = Hundred(model)
    for run in (
        lambda: predict(wrapped, fx, embedding),
        lambda: encode_state(wrapped, fx, embedding),
        lambda: streamed_step(wrapped, fx, embedding, target),
    ):
        with pytest.raises(TypeError, match="got Hundred; pass the model inside"):
            run()


class MeanSquare:
    def sums(self, prediction, target, rows):
        return (prediction - target).square().mean()

    def value(self, sums):
        return sums


class Rows:
    def sums(self, prediction, target, rows):
        return (prediction - target).square().sum(-1)

    def value(self, sums):
        return sums.sum()


class TwoNumbers(CubedSum):
    def value(self, sums):
        return torch.stack((sums, sums))


class Full:
    """A directory without room, as the file system tells it."""

    def __init__(self, monkeypatch):
        def refuse(*_):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "posix_fallocate", refuse)


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"loss": torch.nn.MSELoss()}, TypeError, "not a function of sums over tokens"),
        ({"loss": MeanSquare()}, TypeError, "must add up over tokens, but over none it"),
        ({"loss": Rows()}, TypeError, "must add up over tokens, but over none it"),
        ({"loss": TwoNumbers()}, TypeError, "value must be one number"),
        ({"target": torch.zeros(BATCH, 5, 2)}, ValueError, "a row for each of the 53 tokens"),
        ({"target": torch.zeros(BATCH, TOKENS, 3)}, ValueError, "must have one shape"),
        ({"fx": torch.zeros(BATCH, TOKENS, 4, requires_grad=True)}, ValueError, "detach it"),
        ({"fx": torch.full((BATCH, TOKENS, 4), torch.nan)}, ValueError, "fx holds nan at row 0"),
        ({"chunk_size": 0}, ValueError, "chunk_size must be a positive number"),
        ({"model": lambda: make_model(dropout=0.1).train()}, ValueError, "dropout is on"),
        ({"model": lambda: make("transolver_plus").train()}, ValueError, "draws noise"),
        ({"model": lambda: make("attention")}, ValueError, "cannot be streamed"),
        ({"model": lambda: make("flare").requires_grad_(False)}, ValueError, "none of them"),
        ({"model": lambda: torch.nn.Linear(4, 2)}, TypeError, "must be a FlarePP, a MixerBackbone"),
        ({"offload": "full"}, OSError, "has no room for .* bytes more"),
    ],
)
def test_errors_leave_gradients_alone(change, error, message, monkeypatch, tmp_path):
    options = {**make_case(), "model": make("flarepp"), **change}
    if callable(options["model"]) and not isinstance(options["model"], torch.nn.Module):
        options["model"] = options["model"]()
    if options.get("offload") == "full":
        Full(monkeypatch)
        options["offload"] = tmp_path
    before = {name: torch.ones_like(p) for name, p in options["model"].named_parameters()}
    for name, parameter in options["model"].named_parameters():
        parameter.grad = before[name].clone()
    with pytest.raises(error, match=message):
        streamed_step(**options)
    after = gradients(options["model"])
    assert all(torch.equal(after[name], gradient) for name, gradient in before.items())


def test_an_error_in_the_backward_pass_leaves_gradients_alone(monkeypatch):
    model = make("flarepp")
    calls = iter(range(1000))

    def fails_late(x, *rest):
        if torch.is_grad_enabled() and next(calls) > 7:
            raise MemoryError("no room")
        return original(x, *rest)

    original = model.blocks[0].mixer.scatter
    monkeypatch.setattr(model.blocks[0].mixer, "scatter", fails_late)
    with pytest.raises(MemoryError):
        streamed_step(model, **make_case(), chunk_size=5)
    assert all(p.grad is None for p in model.parameters())


def test_a_killed_step_leaves_nothing_in_its_directory(tmp_path):
    class Kill(CubedSum):
        def sums(self, prediction, target, rows):
            maps = open("/proc/self/maps").read()
            os.write(writer, str(maps.count(str(tmp_path))).encode())
            os.kill(os.getpid(), signal.SIGKILL)

    model, case = make("flare"), make_case()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            streamed_step(model, **case, chunk_size=9, offload=tmp_path, loss=Kill())
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert int(os.read(reader, 100)) >= len(model.blocks) + 1  # files were in use
    assert list(tmp_path.iterdir()) == []


def test_memory_maps_stay_files(tmp_path):
    """A batch of one without its axis, in another dtype and byte order."""
    model, case = make("flarepp"), make_case()
    one = {key: value[:1] for key, value in case.items()}
    for key, value in one.items():
        np.save(tmp_path / f"{key}.npy", value[0].numpy().astype(">f8"))
    maps = {key: np.load(tmp_path / f"{key}.npy", mmap_mode="r") for key in one}
    inputs = {key: value for key, value in one.items() if key != "target"}
    relative_l2(model(**inputs), one["target"]).mean().backward()
    reference = gradients(model)
    model.zero_grad()
    streamed_step(model, **maps, chunk_size=13)
    assert worst_difference(model, reference) < 1e-10
