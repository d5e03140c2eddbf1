"""The contract of ``physicsnemo.Module``: registry, checkpoints, attributes."""

import subprocess
import sys

import physicsnemo
import pytest
import torch

from physicsnemo_flarepp import FlarePP, MixerBackbone
from tests.models.make_reference import DATA, predict

CONFIGS = {
    "plain": {"functional_dim": 3, "out_dim": 2},
    "grid": {
        "functional_dim": 1,
        "out_dim": 1,
        "structured_shape": (4, 5),
        "unified_pos": True,
        "ref": 3,
        "norm": "rms",
        "anchored_queries": True,
        "time_input": True,
    },
}
SMALL = {"n_layers": 2, "n_hidden": 16, "n_head": 2, "slice_num": 4}


def inputs(name):
    if name == "plain":
        return {"fx": torch.randn(2, 9, 3)}
    return {"fx": torch.randn(2, 4, 5, 1), "time": torch.rand(2)}


IN_A_NEW_PROCESS = """
import physicsnemo, sys, torch
from physicsnemo.core import ModelRegistry
assert "physicsnemo_flarepp" not in sys.modules
assert ModelRegistry().factory("FlarePP").__module__ == "physicsnemo_flarepp.models.flarepp"
for name in sys.argv[1:]:
    model = physicsnemo.Module.from_checkpoint(f"{name}.mdlus")
    call, expected = torch.load(f"{name}.pt")
    assert type(model).__name__ == "FlarePP"
    assert torch.equal(model(**call), expected), name
"""


@pytest.mark.slow
def test_checkpoints_give_bit_equal_outputs_in_a_process_that_knows_only_physicsnemo(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    for name, config in CONFIGS.items():
        model = FlarePP(**config, **SMALL)
        call = inputs(name)
        model.save(f"{name}.mdlus")
        torch.save([call, model(**call).detach()], f"{name}.pt")
    command = [sys.executable, "-c", IN_A_NEW_PROCESS, *CONFIGS]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_mixer_backbone_checkpoint_remembers_its_mixer(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = MixerBackbone(3, 2, mixer="transolver3", **SMALL)
    model.save("model.mdlus")
    loaded = physicsnemo.Module.from_checkpoint("model.mdlus")
    fx = torch.randn(1, 6, 3)
    assert type(loaded) is MixerBackbone and torch.equal(loaded(fx), model(fx))


def test_stored_checkpoint_still_gives_its_stored_output():
    model = physicsnemo.Module.from_checkpoint(str(DATA / "flarepp_small.mdlus"))
    expected = torch.load(DATA / "flarepp_small_output.pt", weights_only=True)
    torch.testing.assert_close(predict(model).detach(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "name, expected",
    [
        ("plain", {"functional_dim": 3, "out_dim": 2, "embedding_dim": None, "time_input": False}),
        ("grid", {"structured_shape": (4, 5), "embedding_dim": 9, "unified_pos": True}),
    ],
)
def test_constructor_and_attributes(name, expected):
    model = FlarePP(**CONFIGS[name], **SMALL)
    assert isinstance(model, physicsnemo.Module)
    assert {key: getattr(model, key) for key in expected} == expected
    assert len(model.blocks) == SMALL["n_layers"] and not model.checkpoint_blocks
    assert model.blocks[0].mixer.heads == SMALL["n_head"]
    assert model.meta.amp and model.meta.bf16


def test_defaults_are_the_papers():
    model = FlarePP(3, 1)
    mixer = model.blocks[0].mixer
    assert (len(model.blocks), mixer.dim, mixer.heads) == (8, 128, 8)
    assert mixer.seeds.shape == (8, 64, 16)
    assert model.blocks[0].ffn[0].out_features == 256
