"""Adapters, hooks and quantisation of any layer, in every way a model runs."""

import copy

import pytest
import torch
from physicsnemo.experimental.peft import LoRAConfig, apply_lora, merge_lora
from physicsnemo.models.flare import FLARE
from physicsnemo.models.transolver import Transolver
from torch import nn

from physicsnemo_flarepp import GNOT, LNO, FlarePP, MixerBackbone, PerceiverIO, SetTransformer
from physicsnemo_flarepp.inference import decode_state, encode_state, predict
from physicsnemo_flarepp.mixers import MIXERS
from physicsnemo_flarepp.ops.errors import relative_l2
from physicsnemo_flarepp.training import streamed_step

SIZES = {"n_layers": 2, "n_hidden": 16, "n_head": 2, "embedding_dim": 3}
COMPLETE = {cls.__name__: cls for cls in (PerceiverIO, SetTransformer, GNOT, LNO)}
THEIRS = {
    "physicsnemo-flare": FLARE,
    "physicsnemo-transolver": lambda *args, **sizes: Transolver(*args, use_te=False, **sizes),
}
NAMES = [*MIXERS, *COMPLETE, *THEIRS]


def make(name):
    torch.manual_seed(0)
    if name in MIXERS:
        return MixerBackbone(2, 2, mixer=name, **SIZES).eval()
    return {**COMPLETE, **THEIRS}[name](2, 2, **SIZES).eval()


def inputs(dtype=torch.float64):
    torch.manual_seed(1)
    return [torch.randn(2, 31, width, dtype=dtype) for width in (2, 3)]


def is_linear(name, module):
    return isinstance(module, nn.Linear)


def difference(got, expected):
    return float((got - expected).detach().norm() / expected.detach().norm())


@pytest.mark.parametrize("name", NAMES)
def test_lora_on_every_layer_equals_its_merged_weights(name):
    model, x, target = make(name).double(), inputs(), torch.randn(2, 31, 2).double()
    apply_lora(model, LoRAConfig(rank=2, target_filter=is_linear))
    for parameter in model.parameters():
        if parameter.requires_grad:
            nn.init.normal_(parameter, std=0.3)
    merged, y = merge_lora(copy.deepcopy(model)), model(*x)
    assert not any(isinstance(m, nn.Linear) for m in model.blocks[0].children())
    assert difference(merged(*x), y) < 1e-6  # LoRA merges in fp32
    if name not in THEIRS:
        assert difference(merged(x[0][:, :1], x[1]), model(x[0][:, :1], x[1])) < 1e-6
    if name == "attention":
        return
    assert difference(predict(model, *x, chunk_size=7), y) < 1e-12
    state = encode_state(model, *x, chunk_size=10)
    assert difference(decode_state(model, x[0][:, 5:9], x[1][:, 5:9], state), y[:, 5:9]) < 1e-12
    relative_l2(y, target).mean().backward()
    expected = [p.grad.clone() for p in model.parameters() if p.requires_grad]
    model.zero_grad()
    streamed_step(model, *x, target, chunk_size=7)
    found = [p.grad for p in model.parameters() if p.requires_grad]
    total = max(gradient.norm() for gradient in expected)
    for a, b in zip(found, expected, strict=True):
        assert (a - b).norm() < 1e-10 * total


@pytest.mark.parametrize(
    "name, per_block", [("flarepp", 2), ("SetTransformer", 2), ("GNOT", 12), ("PerceiverIO", 4)]
)
def test_lora_finds_the_feed_forwards(name, per_block):
    model = make(name)
    config = LoRAConfig(rank=2, target_modules=["out_projection.1.linear"], wrap_mlp=True)
    if name == "GNOT":
        config.target_modules = ["out_projection.0"]
    assert apply_lora(model, config).n_wrapped == 1 + len(model.blocks) * per_block


@pytest.mark.parametrize("name", [name for name in NAMES if name != "transolver3"])
def test_hooks_on_every_layer_fire_and_see_tokens(name):
    model, x, seen = make(name).double(), inputs(), set()
    expected = model(*x)
    handles = [
        module.register_forward_hook(lambda module, args, out, name=layer: seen.add(name))
        for layer, module in model.named_modules()
        if isinstance(module, nn.Linear)
    ]
    linear = {layer for layer, module in model.named_modules() if isinstance(module, nn.Linear)}
    linear = {layer for layer in linear if "time" not in layer}
    assert difference(model(*x), expected) < 1e-12 and seen == linear
    if name != "attention":
        seen.clear()
        assert difference(predict(model, *x, chunk_size=7), expected) < 1e-12 and seen == linear
    for handle in handles:
        handle.remove()


@pytest.mark.parametrize("hook", ["forward", "forward_pre", "full_backward", "global", "patched"])
def test_what_a_hook_on_the_projection_changes_is_changed(hook):
    model, x = FlarePP(2, 2, **SIZES).double(), inputs()
    doubled = copy.deepcopy(model)
    project = model.blocks[0].mixer.project
    with torch.no_grad():
        doubled.blocks[0].mixer.project.weight *= 2
        doubled.blocks[0].mixer.project.bias *= 2
    if hook == "forward":
        project.register_forward_hook(lambda module, args, out: 2 * out)
    elif hook == "forward_pre":
        nn.init.zeros_(doubled.blocks[0].mixer.project.bias)
        nn.init.zeros_(project.bias)
        project.register_forward_pre_hook(lambda module, args: 2 * args[0])
    elif hook == "patched":
        own = project.forward
        project.forward = lambda x: 2 * own(x)
    elif hook == "global":
        handle = nn.modules.module.register_module_forward_hook(
            lambda module, args, out: 2 * out if module is project else None
        )
    else:
        called = []
        project.register_full_backward_hook(lambda module, grads, out: called.append(out[0].shape))
        model(*x).sum().backward()
        assert called == [(2, 31, 64)]
        return
    try:
        assert difference(model(*x), doubled(*x)) < 1e-12
        assert difference(predict(model, *x, chunk_size=7), doubled(*x)) < 1e-12
    finally:
        if hook == "global":
            handle.remove()


@pytest.mark.parametrize("name", NAMES)
def test_int8_runs_forward_and_is_refused_where_tokens_pass_in_chunks(name):
    model, x = make(name), inputs(torch.float32)
    quantised = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    assert 1e-4 < difference(quantised(*x), model(*x)) < 0.3
    if name != "attention":
        for run in (predict, encode_state):
            with pytest.raises(ValueError, match="dynamically quantised layers"):
                run(quantised, *x, chunk_size=7)
