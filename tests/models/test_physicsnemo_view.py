"""PhysicsNeMo's own models with masks, weights, streaming and latent states, on their weights."""

import copy
import pickle

import pytest
import torch
from physicsnemo import Module
from physicsnemo.models.flare import FLARE
from physicsnemo.models.transolver import Transolver

from physicsnemo_flarepp.inference import decode_state, encode_state, predict
from physicsnemo_flarepp.mixers.physicsnemo_layers import find_mixers
from physicsnemo_flarepp.models import view_physicsnemo
from physicsnemo_flarepp.parallel import enable_context_parallel
from physicsnemo_flarepp.training import streamed_step
from tests.restated_flarepp import FLARE_PLUS_PLUS

SIZES = {"n_layers": 2, "n_hidden": 16, "n_head": 2, "slice_num": 3, "embedding_dim": 3}
KINDS = {
    "flare": FLARE,
    "transolver": lambda *args, **options: Transolver(*args, use_te=False, **options),
    **{f"flarepp-{name}": cls for name, cls in FLARE_PLUS_PLUS.items()},
}
OTHER_SCALE = {f"flarepp-{name}": {"attn_scale": 0.9} for name in FLARE_PLUS_PLUS}


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def make(kind):
    """An fp64 model of PhysicsNeMo's, away from the zeros and ones of the initialisation."""

    def make(**options):
        torch.manual_seed(0)
        model = KINDS[kind](2, 2, **{**SIZES, **OTHER_SCALE.get(kind, {}), **options})
        for name, parameter in model.named_parameters():
            if name.endswith("temperature"):
                torch.nn.init.uniform_(parameter, 0.6, 2.0)  # inside of where it is clamped
            else:
                torch.nn.init.normal_(parameter, std=0.3)
        return model.double().eval()

    return make


def cloud(n_tokens=31, batch=2):
    torch.manual_seed(1)
    shapes = (batch, n_tokens, 2), (batch, n_tokens, 3)
    return [torch.randn(shape, dtype=torch.float64) for shape in shapes]


def close(got, expected, tolerance=1e-12):
    assert got.shape == expected.shape
    got, expected = got.detach(), expected.detach()
    return float((got - expected).norm() / expected.norm()) < tolerance


def test_the_stages_compute_what_the_model_does_with_the_same_gradients(make):
    theirs, ours = make(), make()
    x = cloud()
    expected = theirs(*x)
    expected.square().sum().backward()
    got = view_physicsnemo(ours)(*x, token_mask=torch.ones(2, 31, dtype=torch.bool))
    got.square().sum().backward()
    assert close(got, expected)
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert close(a.grad, b.grad, 1e-10), name


def test_streaming_is_the_models_own_forward(make):
    x = cloud()
    expected = make()(*x).detach()
    model = make()
    assert close(predict(model, *x, chunk_size=7), expected)
    state = encode_state(model, *x, chunk_size=10)
    some = [value[:, 5:9] for value in x]
    assert close(decode_state(model, *some, state), expected[:, 5:9])
    state.check_model(view_physicsnemo(make()))
    with pytest.raises(ValueError, match="made by another model"):
        decode_state(make(slice_num=4), *some, state)


def test_a_streamed_training_step_has_the_gradients_of_the_models_own(make):
    theirs, ours = make(), make()
    x, target = cloud(), torch.randn(2, 31, 2, dtype=torch.float64)
    errors = (theirs(*x) - target).flatten(1).norm(dim=1) / target.flatten(1).norm(dim=1)
    errors.mean().backward()
    assert close(streamed_step(ours, *x, target, chunk_size=7), errors.mean())
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert close(a.grad, b.grad, 1e-10), name


def test_time_is_that_of_the_model(make):
    x, time = cloud(), torch.tensor([0.2, 0.7], dtype=torch.float64)
    expected = make(time_input=True)(*x, time).detach()
    assert close(predict(make(time_input=True), *x, chunk_size=7, time=time), expected)


def test_masked_tokens_influence_nothing(make):
    x = cloud()
    expected = make()(*(value[:, :20] for value in x))
    mask = torch.arange(31).expand(2, -1) < 20
    for value in x:
        value[:, 20:] = torch.nan
    model = make()
    assert close(view_physicsnemo(model)(*x, token_mask=mask)[:, :20], expected)
    assert close(predict(model, *x, chunk_size=7, token_mask=mask)[:, :20], expected)


def test_a_token_split_in_two_of_half_its_weight_changes_nothing(make):
    x, weights = cloud(), torch.rand(2, 31, dtype=torch.float64)
    expected = view_physicsnemo(make())(*x, token_weights=weights)
    weights[:, 0] /= 2
    split = [torch.cat((value, value[:, :1]), 1) for value in x]
    weights = torch.cat((weights, weights[:, :1]), 1)
    model = make()
    assert close(view_physicsnemo(model)(*split, token_weights=weights)[:, :31], expected)
    got = predict(model, *split, chunk_size=7, token_weights=weights)
    assert close(got[:, :31], expected)


def test_a_group_changes_the_forward_of_the_model_itself_and_nothing_else(make):
    model, x = make(), cloud()
    expected, names = make()(*x), list(model.state_dict())
    mixers = find_mixers(model)
    for mixer in mixers:
        mixer.set_context_group("a group that is not there")
    assert view_physicsnemo(model).context_group == mixers[0].context_group
    for one in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        with pytest.raises((RuntimeError, ValueError)):  # gathers over the group
            one(*x)
        assert list(one.state_dict()) == names
    enable_context_parallel(model, None)
    assert torch.equal(model(*x), expected)


def test_one_row_of_fx_is_that_of_every_token(make):
    fx, embedding = cloud()
    expected = make()(fx[:, :1].expand(-1, 31, -1), embedding)
    assert close(predict(make(), fx[:, :1], embedding, chunk_size=7), expected)


def test_a_model_with_a_view_stays_the_model(make, tmp_path):
    theirs, ours, x = make(), make(), cloud()
    own = type(ours.blocks[0].Attn), set(vars(ours.blocks[0].Attn))
    view = view_physicsnemo(ours)
    predict(ours, *x, chunk_size=7)
    assert (type(ours.blocks[0].Attn), set(vars(ours.blocks[0].Attn))) == own
    assert view_physicsnemo(view) is view
    assert torch.equal(ours(*x), theirs(*x)) and torch.equal(view(*x), theirs(*x))
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert {p.data_ptr() for p in view.parameters()} == {p.data_ptr() for p in ours.parameters()}
    for again in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours)), copy.deepcopy(view)):
        assert close(predict(again, *x, chunk_size=7), theirs(*x))
    ours.save(str(tmp_path / "model.mdlus"))
    if type(ours).__module__.startswith("physicsnemo."):
        loaded = Module.from_checkpoint(str(tmp_path / "model.mdlus")).double().eval()
        assert close(loaded(*x), theirs(*x), 1e-6)
    with pytest.raises(TypeError, match="save that model instead"):
        view.save(str(tmp_path / "view.mdlus"))


@pytest.mark.parametrize("unified", [False, True])
def test_flare_of_a_grid_is_viewed(unified):
    torch.manual_seed(0)
    grid = {"structured_shape": (5, 6), "unified_pos": unified, "ref": 2}
    options = {**SIZES, **grid, "embedding_dim": None if unified else 3}
    model = FLARE(2, 1, **options).double().eval()
    fx, embedding = (value.unflatten(1, (5, 6)) for value in cloud(30))
    inputs = (fx,) if unified else (fx, embedding)
    expected = model(*inputs).detach()
    assert close(predict(model, *inputs, chunk_size=7), expected)


def test_options_under_which_tokens_meet_elsewhere_are_refused_by_name():
    grid = Transolver(2, 1, structured_shape=(4, 4), use_te=False, **SIZES)
    engine = FLARE(2, 1, **SIZES)
    engine.blocks[0].Attn.use_te = True
    noisy = Transolver(2, 1, plus=True, use_te=False, **SIZES).eval()
    for model, words in ((grid, "structured_shape=None"), (engine, "use_te=True")):
        for use in (view_physicsnemo, lambda model: predict(model, *cloud())):
            with pytest.raises(ValueError, match=words):
                use(model)
        with pytest.raises(ValueError, match=words):
            enable_context_parallel(model, None)
    with pytest.raises(ValueError, match="draws noise.*plus=True"):
        predict(noisy.double(), *cloud())


def test_classes_that_may_compute_something_else_are_refused():
    class Changed(FLARE):
        pass

    for model in (Changed(2, 1, **SIZES), torch.nn.Linear(2, 2)):
        with pytest.raises(TypeError, match=f"got {type(model).__name__}"):
            view_physicsnemo(model)
    model = FLARE(2, 1, **SIZES)
    model.blocks[1].Attn = torch.nn.Linear(16, 16)
    with pytest.raises(TypeError, match="Linear is not an attention layer with stages; known are"):
        view_physicsnemo(model)


def test_noise_of_transolver_plus_is_drawn_in_the_stages_too(monkeypatch):
    torch.manual_seed(0)
    model = Transolver(2, 2, plus=True, use_te=False, **SIZES).double().eval()
    x = cloud()
    torch.manual_seed(2)
    expected = model(*x)
    torch.manual_seed(2)
    mask = torch.ones(2, 31, dtype=torch.bool)
    assert close(view_physicsnemo(model)(*x, token_mask=mask), expected)
