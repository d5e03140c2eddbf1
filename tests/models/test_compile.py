import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from physicsnemo_flarepp import FlarePP, MixerBackbone
from physicsnemo_flarepp.mixers import MIXERS

pytestmark = pytest.mark.slow

SMALL = {"n_layers": 1, "n_hidden": 16, "n_head": 2, "slice_num": 4}


def results(model, call, n, weighted):
    torch.manual_seed(n)
    fx, mask = torch.randn(2, n, 3, dtype=torch.float64), torch.rand(2, n) > 0.3
    mask[:, 0] = True
    model.zero_grad()
    weights = torch.rand(2, n, dtype=torch.float64, requires_grad=True) if weighted else None
    y = call(fx, token_mask=mask, token_weights=weights)
    y.square().sum().backward()
    of_weights = [weights.grad] if weighted else []
    return [y.detach(), *of_weights, *(p.grad.clone() for p in model.parameters())]


def assert_compiled_equals_eager(model, backend, weighted=True):
    torch._dynamo.reset()
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=counter)
    counts = []
    for n in (12, 31, 57):
        pair = (results(model, call, n, weighted) for call in (compiled, model))
        for a, b in zip(*pair, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)
        counts.append(counter.frame_count)
    assert counts[0] == counts[-1], "another token count compiled again"


@pytest.mark.parametrize("mixer", [name for name in MIXERS if name != "flarepp"])
def test_one_graph_serves_every_token_count(mixer):
    sizes = SMALL | ({"slice_num": None} if mixer == "attention" else {})
    assert_compiled_equals_eager(MixerBackbone(3, 2, mixer=mixer, **sizes).double().eval(), "eager")


def test_options_compile_forward_and_backward():
    model = FlarePP(3, 2, **SMALL, anchored_queries=True, norm="rms", checkpoint_blocks=True)
    assert_compiled_equals_eager(model.double(), "aot_eager", weighted=False)


def test_inductor_compiles_flarepp_forward_and_backward():
    assert_compiled_equals_eager(FlarePP(3, 2, **SMALL).double(), "inductor")


def test_export_with_dynamic_token_count():
    model = FlarePP(3, 2, **SMALL)
    tokens = torch.export.Dim("tokens", min=2)
    program = torch.export.export(model, (torch.randn(1, 20, 3),), dynamic_shapes=({1: tokens},))
    for n in (2, 33):
        fx = torch.randn(1, n, 3)
        torch.testing.assert_close(program.module()(fx), model(fx))
