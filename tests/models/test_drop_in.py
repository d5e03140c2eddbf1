"""FlarePP in the place of the installed PhysicsNeMo's FLARE, side by side."""

import inspect
import re
from pathlib import Path

import pytest
import torch
from physicsnemo.models.flare import FLARE

from physicsnemo_flarepp import (
    GNOT,
    LNO,
    FlarePP,
    MixerBackbone,
    PerceiverIO,
    SetTransformer,
)
from physicsnemo_flarepp.inference import predict
from physicsnemo_flarepp.mixers import MIXERS

SIZES = {"n_layers": 1, "n_hidden": 16, "n_head": 2, "slice_num": 4}
GRIDS = [(3, 4), (1, 5), (2, 3, 4)]


def both(*args, **options):
    """FLARE and FlarePP of the same arguments."""
    return FLARE(*args, **options), FlarePP(*args, **options)


@pytest.mark.parametrize("ours", [FlarePP, MixerBackbone])
@pytest.mark.parametrize("function", ["__init__", "forward"])
def test_arguments_have_the_names_and_order_of_flares(ours, function):
    theirs = list(inspect.signature(getattr(FLARE, function)).parameters)
    assert list(inspect.signature(getattr(ours, function)).parameters)[: len(theirs)] == theirs


def test_positional_arguments_mean_the_same():
    shape = (3, 4)
    theirs, ours = both(3, 2, None, 1, 16, 0.0, 2, "gelu", 4, 6, True, 3, shape, False, False)
    assert (theirs.n_hidden, theirs.embedding_dim) == (ours.n_hidden, ours.embedding_dim) == (16, 9)
    assert len(theirs.blocks) == len(ours.blocks) == 1
    assert theirs.blocks[0].Attn.heads == ours.blocks[0].mixer.heads == 2
    queries = theirs.blocks[0].Attn.q_global.shape[-2]
    assert queries == ours.blocks[0].mixer.seeds.shape[1] == 6
    assert ours.blocks[0].ffn[0].out_features == 4 * 16


@pytest.mark.parametrize(
    "options",
    [{"embedding_dim": 5}, {"structured_shape": (3, 4), "unified_pos": True, "time_input": True}],
)
def test_attributes_of_flare_are_there_and_equal(options):
    theirs, ours = both(3, 2, **options, **SIZES)
    public = {
        name: value
        for name, value in vars(theirs).items()
        if not name.startswith("_") and name not in ("meta", "training")
    }
    assert {"n_hidden", "embedding_dim", "structured_shape", "use_te"} <= set(public)
    assert {name: getattr(ours, name, "missing") for name in public} == public


@pytest.mark.parametrize("embedding_on_grid", [False, True])
@pytest.mark.parametrize("fx_on_grid", [False, True])
@pytest.mark.parametrize("grid", GRIDS)
def test_output_has_the_layout_of_flares(grid, fx_on_grid, embedding_on_grid):
    theirs, ours = both(3, 2, embedding_dim=4, structured_shape=grid, **SIZES)
    fx, embedding = torch.randn(2, *grid, 3), torch.randn(2, *grid, 4)
    fx = fx if fx_on_grid else fx.flatten(1, -2)
    embedding = embedding if embedding_on_grid else embedding.flatten(1, -2)
    expected = theirs(fx, embedding).shape
    assert ours(fx, embedding).shape == expected
    assert predict(ours, fx, embedding, chunk_size=5).shape == expected


def test_unstructured_and_timed_outputs_have_flares_shape():
    theirs, ours = both(3, 2, embedding_dim=4, time_input=True, **SIZES)
    call = torch.randn(2, 7, 3), torch.randn(2, 7, 4), torch.rand(2)
    assert ours(*call).shape == theirs(*call).shape == (2, 7, 2)


@pytest.mark.parametrize("fx_on_grid", [False, True])
@pytest.mark.parametrize("shape", [(2, 12, 4), (2, 3, 4, 5)])
def test_embedding_beside_unified_positions_is_ignored_as_by_flare(fx_on_grid, shape):
    models = both(3, 2, structured_shape=(3, 4), unified_pos=True, ref=2, **SIZES)
    fx = torch.randn(2, 3, 4, 3)
    fx = fx if fx_on_grid else fx.flatten(1, -2)
    theirs, ours = ([model(fx), model(fx, torch.randn(shape))] for model in models)
    assert torch.equal(*theirs) and torch.equal(*ours)
    assert ours[0].shape == theirs[0].shape
    assert torch.equal(predict(models[1], fx, torch.randn(shape)), predict(models[1], fx))


@pytest.mark.parametrize("shape", [(2, 7, 1), (1, 12, 4), (2, 4, 3, 2), (2, 12)])
def test_embedding_beside_unified_positions_that_does_not_fit_the_grid_raises(shape):
    model = FlarePP(3, 2, structured_shape=(3, 4), unified_pos=True, ref=2, **SIZES)
    for run in (model, lambda *inputs: predict(model, *inputs)):
        with pytest.raises(ValueError, match="does not even fit: expected a batch of 2 and"):
            run(torch.randn(2, 12, 3), torch.randn(shape))


def test_defaults_that_differ_are_those_the_readme_lists():
    theirs, ours = (inspect.signature(model).parameters for model in (FLARE, FlarePP))
    different = [name for name in theirs if theirs[name].default != ours[name].default]
    names, mine, flares = (
        ", ".join(words)
        for words in (
            [f"`{name}`" for name in different],
            [str(ours[name].default) for name in different],
            [str(theirs[name].default) for name in different],
        )
    )
    row = f"| {names} where a config leaves them out | {mine} | {flares} |"
    assert row in (Path(__file__).parents[2] / "docs" / "drop_in.md").read_text()


def test_other_differences_are_as_the_readme_lists_them():
    theirs, ours = both(3, 2, embedding_dim=4, structured_shape=(3, 4), time_input=True, **SIZES)
    assert {"preprocess", "time_embed", "time_fc"} <= dict(theirs.named_children()).keys()
    assert set(dict(ours.named_children())) == {
        *("in_projection", "time_embedding", "time_projection", "blocks", "out_projection")
    }
    fx, embedding, time = torch.randn(2, 12, 3), torch.randn(2, 12, 4), torch.rand(2)
    theirs(fx, embedding)
    with pytest.raises(ValueError, match="time_input=True, time=None"):
        ours(fx, embedding)
    theirs(torch.randn(2, 4, 3, 3), embedding, time)
    with pytest.raises(ValueError, match="fx must have shape"):
        ours(torch.randn(2, 4, 3, 3), embedding, time)
    assert ours(fx[:, :1], embedding, time).shape == (2, 12, 2)
    with pytest.raises(RuntimeError):
        theirs(fx[:, :1], embedding, time)
    for model, shape in ((FLARE, (3, 4)), (FlarePP, (3, 4)), (FlarePP, (2, 3, 4))):
        built = model(3, 2, structured_shape=shape, unified_pos=True, **SIZES)
        assert ("embedding" in built.state_dict()) == (model is FLARE)
    with pytest.raises(ValueError, match="unpack"):
        FLARE(3, 2, structured_shape=(2, 3, 4), unified_pos=True, **SIZES)
    FlarePP(3, 2, **SIZES)
    with pytest.raises(ValueError, match="embedding_dim"):
        FLARE(3, 2, **SIZES)


def test_flarepp_has_the_mixer_of_its_name_only():
    assert FlarePP(3, 1, n_layers=1, mixer="flarepp")
    with pytest.raises(ValueError, match=r"mixer must be one of \['flarepp'\], got 'flare'"):
        FlarePP(3, 1, n_layers=1, mixer="flare")


def test_every_argument_of_flarepp_is_described():
    parts = inspect.getdoc(FlarePP).split("Forward\n-------")
    for function, text in zip((FlarePP.__init__, FlarePP.forward), parts, strict=True):
        heads = re.findall(r"^(\w[\w, ]*) : ", text, re.MULTILINE)
        described = {name for head in heads for name in head.split(", ")}
        assert set(inspect.signature(function).parameters) - {"self"} <= described


def test_swapped_inputs_run_in_flare_with_other_columns_and_are_refused_here():
    """The row of the table of differences in docs/drop_in.md."""
    sizes = {"n_layers": 1, "n_hidden": 16, "n_head": 2, "slice_num": 4}
    fx, embedding = torch.randn(1, 9, 3), torch.randn(1, 9, 6)
    flare = FLARE(functional_dim=3, out_dim=2, embedding_dim=6, **sizes).eval()
    swapped = flare(embedding, fx)
    whole = torch.cat((fx, embedding), -1)  # what FLARE reads as (embedding, fx)
    assert torch.equal(swapped, flare(whole[..., 6:], whole[..., :6]))
    assert not torch.allclose(swapped, flare(fx, embedding))
    ours = FlarePP(functional_dim=3, out_dim=2, embedding_dim=6, **sizes)
    with pytest.raises(ValueError, match="fx must have 3 channels .* got 6"):
        ours(embedding, fx)
    same = FlarePP(functional_dim=3, out_dim=2, embedding_dim=3, **sizes)
    assert same(torch.randn(1, 9, 3), fx).shape == (1, 9, 2), "equal widths tell nothing"


@pytest.mark.exhaustive
@pytest.mark.parametrize("mixer", [*MIXERS, "gnot", "lno", "perceiver_io", "set_transformer"])
def test_what_is_said_to_export_to_onnx_does(mixer):
    reason = "exhaustive, so not in the extra 'test': seconds per model; pip install onnxscript"
    pytest.importorskip("onnxscript", reason=reason)
    from onnx.reference import ReferenceEvaluator

    complete = {"gnot": GNOT, "lno": LNO, "perceiver_io": PerceiverIO}
    complete["set_transformer"] = SetTransformer
    sizes = {"embedding_dim": 2, "n_layers": 1, "n_hidden": 16, "n_head": 2}
    if mixer in complete:
        model = complete[mixer](3, 2, **sizes)
    else:
        model = MixerBackbone(3, 2, mixer=mixer, **sizes)
    inputs = torch.randn(1, 9, 3), torch.randn(1, 9, 2)
    assert model.meta.onnx
    exported = torch.onnx.export(model.eval(), inputs, dynamo=True, verbose=False).model_proto
    names = [given.name for given in exported.graph.input]
    feed = {name: value.numpy() for name, value in zip(names, inputs, strict=True)}
    found = torch.from_numpy(ReferenceEvaluator(exported).run(None, feed)[0])
    torch.testing.assert_close(found, model(*inputs), rtol=1e-4, atol=1e-5)
