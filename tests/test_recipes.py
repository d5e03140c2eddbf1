"""The YAMLs as PhysicsNeMo's unified external-aero recipe uses them."""

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate

from physicsnemo_flarepp import FlarePP

# A recipe's entry config: a model group with the recipe's own default, and out_dim.
ENTRY = """
defaults:
  - model: theirs
  - _self_
out_dim: 4
training: {seed: 42}
"""
THEIRS = """
# @package _global_
input_type: mesh
model: {_target_: torch.nn.Identity}
"""


@pytest.fixture
def recipe(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "train.yaml").write_text(ENTRY)
    (tmp_path / "model" / "theirs.yaml").write_text(THEIRS)
    return tmp_path


@pytest.mark.parametrize("name, width", [("surface", 6), ("volume", 7)])
def test_recipe_runs_flarepp_by_search_path_and_model_choice_alone(recipe, name, width):
    overrides = [
        "hydra.searchpath=[pkg://physicsnemo_flarepp.recipes]",
        f"model=flarepp_{name}",
        "model.n_layers=1",  # the recipe's width, one block: the test need not wait
    ]
    with initialize_config_dir(str(recipe), version_base=None):
        cfg = compose("train", overrides)
    assert cfg.input_type == cfg.output_type == "tensors"
    assert cfg.training.seed == 42
    # A model of volumes needs no stored boundary: the reader may leave it on the disk.
    reader = {"drop_in_file_boundaries": True} if name == "volume" else None
    assert cfg.get("dataset_reader_overrides") == reader
    assert cfg.model.norm == "rms"
    assert set(cfg.forward_kwargs) == {"fx", "embedding"}
    assert cfg.forward_kwargs.fx.expand_like == "embedding"
    model = instantiate(cfg.model)
    assert isinstance(model, FlarePP)
    assert len(cfg.forward_kwargs.embedding) == width - 4
    inflow = torch.rand(1, 3).expand(1, 50, 3)  # what expand_like makes of U_inf
    assert model(fx=inflow, embedding=torch.rand(1, 50, width)).shape == (1, 50, 4)
