"""Whole models on emulated cards: outputs and gradients of fp64, plain, streamed and compiled."""

import copy

import pytest
import torch

from physicsnemo_flarepp import LNO, MixerBackbone, PerceiverIO, SetTransformer
from physicsnemo_flarepp.training import streamed_gradients, streamed_step
from physicsnemo_flarepp.training.losses import RelativeL2
from tests.cuda.standins import emulate

LIMITS = {torch.float32: 1e-3, torch.float16: 0.02, torch.bfloat16: 0.1}
MODELS = {
    "flarepp": {},
    "anchored": {"anchored_queries": True},
    "flare": {},
    "attention": {},
    "perceiver_io": PerceiverIO,
    "set_transformer": SetTransformer,
    "lno": LNO,
}


def make_model(name, heads=8, layers=2):
    torch.manual_seed(0)
    sizes = {"n_layers": layers, "n_hidden": 8 * heads, "n_head": heads}
    options = MODELS[name]
    if not isinstance(options, dict):
        return options(3, 2, slice_num=32, **sizes)
    sizes |= {} if name == "attention" else {"slice_num": 32}
    mixer = "flarepp" if name == "anchored" else name
    return MixerBackbone(3, 2, mixer=mixer, norm="rms", **sizes, **options)


def make_case(batch, n, weighting):
    case = {"fx": torch.rand(batch, n, 3)}
    if weighting == "mask":
        case["token_mask"] = torch.rand(batch, n) > 0.2
    elif weighting == "weights":
        case["token_weights"] = torch.exp(torch.randn(batch, n))
    return case, torch.randn(batch, n, 2)


def gradients(model):
    return torch.cat([p.grad.flatten().double() for p in model.parameters() if p.grad is not None])


def in_fp64(model, case, target):
    exact = copy.deepcopy(model).double()
    inputs = {key: x.double() if x.is_floating_point() else x for key, x in case.items()}
    y = exact(**inputs)
    (y * target.double()).sum().backward()
    return y.detach(), gradients(exact)


def assert_near(found, expected, limit):
    for a, b in zip(found, expected, strict=True):
        assert (a.double() - b).norm() <= limit * b.norm()


def step(model, case, target, dtype, forward=None):
    model.zero_grad()
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        y = (model if forward is None else forward)(**case)
    (y.float() * target).sum().backward()
    return y.detach(), gradients(model)


@pytest.mark.parametrize(
    "card, weighting",
    [("sm_75", "plain"), ("sm_75", "weights"), ("sm_80", "mask"), ("sm_90", "weights")],
)
def test_flarepp_has_the_gradients_of_fp64(card, weighting, monkeypatch):
    calls = emulate(monkeypatch, card)
    for batch, heads, n in ((1, 8, 4097), (2, 1, 2048)):
        model = make_model("flarepp", heads)
        case, target = make_case(batch, n, weighting)
        expected = in_fp64(model, case, target)
        for dtype, limit in LIMITS.items():
            calls.clear()
            assert_near(step(model, case, target, dtype), expected, limit)
            assert calls or (card, dtype) == ("sm_75", torch.bfloat16)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_every_model_has_the_gradients_of_fp64(name, monkeypatch):
    n = 512 if name == "attention" else 2049
    weightings = ["plain"] if name == "lno" else ["plain", "weights"]
    for card, dtype in (("sm_75", torch.float16), ("sm_80", torch.bfloat16)):
        emulate(monkeypatch, card)
        for weighting in weightings:
            model, (case, target) = make_model(name), make_case(1, n, weighting)
            expected = in_fp64(model, case, target)
            assert_near(step(model, case, target, dtype), expected, LIMITS[dtype])


@pytest.mark.parametrize("weighting", ["plain", "weights"])
@pytest.mark.parametrize(
    "card, dtype",
    [("sm_75", torch.float16), ("sm_80", torch.bfloat16), ("sm_80", torch.float32)],
    ids=str,
)
def test_streamed_steps_have_the_gradients_of_fp64(card, dtype, weighting, monkeypatch):
    emulate(monkeypatch, card)
    model, (case, target) = make_model("flarepp"), make_case(1, 5000, weighting)
    exact = copy.deepcopy(model).double()
    y = exact(**{key: x.double() for key, x in case.items()})
    (torch.linalg.norm(y - target) / torch.linalg.norm(target.double())).backward()
    scale = 4096.0  # as a gradient scaler would: fp16 ends at 6e-8
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        streamed_step(model, **case, embedding=None, target=target, chunk_size=2300, factor=scale)
    assert_near([gradients(model) / scale], [gradients(exact)], LIMITS[dtype])


class ScaledError(RelativeL2):
    scale = 2.0**16

    def value(self, sums):
        return self.scale * super().value(sums)


@pytest.mark.parametrize(
    "card, dtype",
    [("sm_75", torch.float16), ("sm_80", torch.bfloat16), ("sm_80", torch.float32)],
    ids=str,
)
def test_streamed_gradients_of_weights_are_those_of_fp64(card, dtype, monkeypatch):
    emulate(monkeypatch, card)
    model, (case, target) = make_model("flarepp"), make_case(1, 5000, "weights")
    leaves = {key: x.double().requires_grad_() for key, x in case.items()}
    error = torch.linalg.norm(copy.deepcopy(model).double()(**leaves) - target)
    (error / torch.linalg.norm(target.double())).backward()
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        _, found = streamed_gradients(
            model, **case, embedding=None, objective=ScaledError(), target=target, chunk_size=2300
        )
    for key, gradient in found.items():
        assert_near([gradient / ScaledError.scale], [leaves[key].grad], LIMITS[dtype])


@pytest.mark.slow
@pytest.mark.unchecked
def test_compiled_models_have_the_gradients_of_fp64(monkeypatch):
    calls = emulate(monkeypatch, "sm_80")
    torch._dynamo.reset()
    model = make_model("flarepp", heads=4, layers=1)
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
    for n in (4097, 6000):
        case, target = make_case(1, n, "weights")
        found = step(model, case, target, torch.bfloat16, compiled)
        assert_near(found, in_fp64(model, case, target), LIMITS[torch.bfloat16])
    assert calls
