"""Every model family gets the tensors of a batch where it expects them."""

import pytest
import torch
from omegaconf import OmegaConf
from physicsnemo.models.flare import FLARE
from physicsnemo.models.geotransolver import GeoTransolver
from physicsnemo.models.mlp import FullyConnected
from physicsnemo.models.transolver import Transolver
from tensordict import TensorDict
from torch._subclasses.fake_tensor import FakeTensorMode

from physicsnemo_flarepp import GNOT, LNO, FlarePP, MixerBackbone, PerceiverIO, SetTransformer
from physicsnemo_flarepp.mixers.layers import RMSNorm
from physicsnemo_flarepp.models.feeding import (
    INPUT_RULES,
    InputLayout,
    InputRule,
    build_model,
    input_adapter,
)
from tests.layouts import layout_of

GRID = (3, 4)
FAMILIES = {
    "flarepp": {"_target_": "physicsnemo_flarepp.FlarePP"},
    "mixer": {"_target_": "physicsnemo_flarepp.MixerBackbone", "mixer": "transolver3"},
    "flare": {"_target_": "physicsnemo.models.flare.FLARE"},
    "transolver": {"_target_": "physicsnemo.models.transolver.Transolver", "use_te": False},
    "geotransolver": {"_target_": "physicsnemo.models.geotransolver.GeoTransolver"},
    "perceiver_io": {"_target_": "physicsnemo_flarepp.PerceiverIO"},
    "set_transformer": {"_target_": "physicsnemo_flarepp.SetTransformer"},
    "gnot": {"_target_": "physicsnemo_flarepp.GNOT", "slice_num": None},
    "lno": {"_target_": "physicsnemo_flarepp.LNO"},
}
COMPLETE = {
    "perceiver_io": PerceiverIO,
    "set_transformer": SetTransformer,
    "gnot": GNOT,
    "lno": LNO,
}
CLASSES = {
    "flarepp": FlarePP,
    "mixer": MixerBackbone,
    "flare": FLARE,
    "transolver": Transolver,
    "geotransolver": GeoTransolver,
    **COMPLETE,
}
OURS, THEIRS = ("flarepp", "mixer", *COMPLETE), ("flare", "transolver", "geotransolver")
CONTENTS = [(0, 0), (2, 0), (0, 5), (2, 5)]


def config(family, **changes):
    sizes = {"n_layers": 1, "n_hidden": 16, "n_head": 2, "slice_num": 4}
    return {**sizes, **FAMILIES[family], **changes}


def make_batch(features=0, globals_=0, lengths=(12, 12), dims=2):
    batch = {
        "coordinates": torch.rand(2, 12, dims),
        "fields": torch.rand(2, 12, 4),
        "tokens": torch.arange(12).expand(2, 12),
        "case_index": torch.arange(2),
    }
    if features:
        batch["features"] = torch.rand(2, 12, features)
    if globals_:
        batch["globals"] = torch.rand(2, globals_)
    if lengths != (12, 12):
        batch["token_mask"] = torch.arange(12) < torch.tensor(lengths)[:, None]
    return TensorDict(batch, batch_size=[2])


def fed(family, batch, **changes):
    model = build_model(config(family, **changes), layout_of(batch, GRID))
    return model, input_adapter(model)(batch)


def at_tokens(row, n_tokens=12):
    """The row of every case repeated at each token, value by value."""
    return torch.stack([torch.stack([case] * n_tokens) for case in row])


def assert_same(got, expected):
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(got[name], value, rtol=0, atol=0)


@pytest.mark.parametrize("features, globals_", CONTENTS)
@pytest.mark.parametrize("shape", [None, "grid"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_predicts_from_every_kind_of_batch(family, shape, features, globals_):
    batch = make_batch(features, globals_)
    model, inputs = fed(family, batch, structured_shape=shape)
    assert type(model) is CLASSES[family]
    prediction = model(**inputs)
    assert prediction.shape == batch["fields"].shape and prediction.isfinite().all()
    # Every entry of the batch reaches the prediction.
    for key in ("coordinates", "features", "globals"):
        if key in batch.keys():
            changed = batch.copy()
            changed[key] = batch[key] + 1
            assert not torch.equal(model(**input_adapter(model)(changed)), prediction)


@pytest.mark.parametrize("family", OURS)
def test_backbone_takes_tokens_in_one_projection_and_globals_as_one_row(family):
    batch = make_batch(2)
    tokens = torch.stack([*batch["coordinates"].unbind(-1), *batch["features"].unbind(-1)], -1)
    model, inputs = fed(family, batch)
    assert_same(inputs, {"fx": tokens})
    assert (model.functional_dim, model.embedding_dim) == (4, None)

    batch["globals"] = torch.rand(2, 5)
    model, inputs = fed(family, batch)
    assert_same(inputs, {"fx": batch["globals"].reshape(2, 1, 5), "embedding": tokens})
    assert (model.functional_dim, model.embedding_dim) == (5, 4)


@pytest.mark.parametrize("globals_", [0, 5])
@pytest.mark.parametrize("family", OURS)
def test_backbone_ignores_the_padding_of_a_ragged_batch(family, globals_):
    batch = make_batch(2, globals_, lengths=(7, 12))
    model, inputs = fed(family, batch)
    assert inputs["token_mask"] is batch["token_mask"]
    short = batch[:1].copy()
    for key in ("coordinates", "features"):
        short[key] = short[key][:, :7]
    del short["token_mask"]
    alone = model(**input_adapter(model)(short))
    torch.testing.assert_close(model(**inputs)[:1, :7], alone)


@pytest.mark.parametrize("family", ["flare", "transolver"])
def test_physicsnemo_models_get_coordinates_as_embedding(family):
    bare, some, row, both = (make_batch(*content) for content in CONTENTS)
    assert_same(fed(family, bare)[1], {"fx": bare["coordinates"], "embedding": bare["coordinates"]})
    assert_same(fed(family, some)[1], {"fx": some["features"], "embedding": some["coordinates"]})
    repeated = at_tokens(row["globals"])
    assert_same(fed(family, row)[1], {"fx": repeated, "embedding": row["coordinates"]})
    mixed = torch.cat([both["features"], at_tokens(both["globals"])], -1)
    assert_same(fed(family, both)[1], {"fx": mixed, "embedding": both["coordinates"]})


@pytest.mark.parametrize("family", ["flarepp", "gnot", "flare", "transolver"])
def test_unified_positions_replace_the_embedding(family):
    batch = make_batch(2, 5)
    model, inputs = fed(family, batch, structured_shape="grid", unified_pos=True, ref=2)
    parts = (batch["coordinates"], batch["features"], at_tokens(batch["globals"]))
    assert_same(inputs, {"fx": torch.cat(parts, -1)})
    assert model(**inputs).shape == (2, 12, 4)


def test_geotransolver_gets_the_point_cloud_as_context():
    batch = make_batch(2, 5, dims=3)
    model, inputs = fed("geotransolver", batch, include_local_features=True)
    where = batch["coordinates"]
    tokens = torch.cat([where, batch["features"]], -1)
    expected = {"local_embedding": tokens, "local_positions": where, "geometry": where}
    assert_same(inputs, {**expected, "global_embedding": batch["globals"].reshape(2, 1, 5)})
    assert model(**inputs).shape == (2, 12, 4)


@pytest.mark.parametrize("family", FAMILIES)
def test_adapter_needs_no_value_from_the_device(family):
    """Fake CUDA tensors have no values: reading one, or leaving the device, would raise."""
    model = build_model(config(family), InputLayout(2, 2, 5, 4, GRID))
    with FakeTensorMode(), torch.device("cuda"):
        shapes = {"coordinates": (2, 12, 2), "features": (2, 12, 2), "globals": (2, 5)}
        inputs = input_adapter(model)({key: torch.empty(s) for key, s in shapes.items()})
    assert {value.device.type for value in inputs.values()} == {"cuda"}


@pytest.mark.slow
def test_adapter_compiles_into_one_graph_with_the_model():
    batch = make_batch(2, 5).to_dict()
    model, inputs = fed("flarepp", TensorDict(batch, batch_size=[2]))
    adapter = input_adapter(model)
    step = torch.compile(lambda b: model(**adapter(b)), fullgraph=True, backend="eager")
    torch.testing.assert_close(step(batch), model(**inputs))


def test_arguments_may_repeat_what_the_data_says():
    cfg = config("flarepp", functional_dim=4, embedding_dim=None, out_dim=4, structured_shape=GRID)
    model = build_model(OmegaConf.create(cfg), InputLayout(2, 2, 0, 4, GRID))
    assert model.structured_shape == GRID


@pytest.mark.parametrize(
    "family, changes, message",
    [
        ("flarepp", {"functional_dim": 9}, "functional_dim is 9, but the data needs 4"),
        ("flarepp", {"embedding_dim": 2}, "embedding_dim is 2, but the data needs None"),
        ("flare", {"embedding_dim": 7}, "embedding_dim is 7, but the data needs 2"),
        ("transolver", {"out_dim": 1}, "out_dim is 1, but the data needs 4"),
        ("geotransolver", {"global_dim": 3}, "global_dim is 3, but the data needs None"),
        ("flarepp", {"structured_shape": [4, 3]}, r"\[4, 3\], but the grid of the data is \(3, 4"),
        ("flarepp", {"n_layer": 2}, "'n_layer' .did you mean 'n_layers'"),
        ("gnot", {"slice_num": 4}, "GNOT has no argument 'slice_num'"),
        ("transolver", {"mixer": "flare"}, "Transolver has no argument 'mixer'. Its arguments"),
        ("flarepp", {"time_input": True}, "time_input is True, but in batches time is a feature"),
        ("geotransolver", {"include_local_features": True}, "needs 3 coordinates .* has 2"),
    ],
)
def test_config_that_contradicts_data_or_class_is_refused(family, changes, message):
    with pytest.raises(ValueError, match=message):
        build_model(config(family, **changes), InputLayout(2, 2, 0, 4, GRID))


@pytest.mark.parametrize(
    "chosen, precision, expected",
    [
        (None, "fp32", torch.nn.LayerNorm),
        (None, "bf16", RMSNorm),
        (None, "fp16", RMSNorm),
        ("layer", "bf16", torch.nn.LayerNorm),
        ("rms", "fp32", RMSNorm),
    ],
)
def test_norm_follows_the_precision_unless_it_is_chosen(chosen, precision, expected):
    model = build_model(config("flarepp", norm=chosen), InputLayout(2, 0, 0, 1), precision)
    assert type(model.blocks[0].norm_mixer) is expected
    assert model._args["__args__"]["norm"] == ("layer" if expected is torch.nn.LayerNorm else "rms")


def test_grid_without_a_grid_is_refused():
    with pytest.raises(ValueError, match="do not form a grid; set it to null"):
        build_model(config("flarepp", structured_shape="grid"), InputLayout(2, 0, 0, 1))


@pytest.mark.parametrize("family", THEIRS)
def test_models_without_a_mask_refuse_ragged_batches(family):
    batch = make_batch(lengths=(7, 12))
    model = build_model(config(family), layout_of(batch))
    with pytest.raises(ValueError, match="takes no token_mask.*batch_size.*to 1.*n_points"):
        input_adapter(model)(batch)


@pytest.mark.parametrize("family", ["transolver", "geotransolver"])
def test_models_on_a_grid_refuse_part_of_it(family):
    model, _ = fed(family, make_batch(), structured_shape="grid")
    part = TensorDict({"coordinates": torch.rand(2, 5, 2)}, batch_size=[2])
    with pytest.raises(ValueError, match=r"grid \(3, 4\) of 12 tokens, but the batch has 5"):
        input_adapter(model)(part)


@pytest.mark.parametrize(
    "cfg, message",
    [
        ({}, "has no `_target_`"),
        ({"_target_": "physicsnemo_flarepp.Flare3"}, "'physicsnemo_flarepp.Flare3' cannot be impo"),
        ({"_target_": "physicsnemo.models.mlp.FullyConnected"}, "FullyConnected is not known; kno"),
    ],
)
def test_unknown_models_are_refused_with_the_known_ones(cfg, message):
    with pytest.raises(ValueError, match=message):
        build_model(cfg, InputLayout(2, 0, 0, 1))


def test_an_entry_makes_another_model_known(monkeypatch):
    widths = {"in_features": "x", "out_features": "fields"}
    feed = InputRule(lambda model, batch: {"x": batch["coordinates"]}, widths)
    with pytest.raises(ValueError, match="INPUT_RULES an entry"):
        input_adapter(FullyConnected())
    monkeypatch.setitem(INPUT_RULES, f"{FullyConnected.__module__}.FullyConnected", feed)
    batch = make_batch()
    cfg = {"_target_": "physicsnemo.models.mlp.FullyConnected", "num_layers": 1}
    model = build_model(cfg, layout_of(batch))
    assert model(**input_adapter(model)(batch)).shape == (2, 12, 4)
