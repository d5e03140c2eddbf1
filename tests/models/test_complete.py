"""PerceiverIO, Set Transformer, GNOT and LNO against their definitions."""

import numpy as np
import physicsnemo
import pytest
import torch

from physicsnemo_flarepp import GNOT, LNO, PerceiverIO, SetTransformer
from physicsnemo_flarepp.inference import decode_state, encode_state, predict
from physicsnemo_flarepp.models import MixerBackbone, TokenModel
from physicsnemo_flarepp.runs import load_model, save_module
from tests.models.complete_references import gnot, lno, perceiver_io, set_transformer
from tests.models.test_compile import assert_compiled_equals_eager

REFERENCES = {
    PerceiverIO: perceiver_io,
    SetTransformer: set_transformer,
    GNOT: gnot,
    LNO: lno,
}
CLASSES = pytest.mark.parametrize("cls", REFERENCES, ids=lambda cls: cls.__name__)
HEADS = 4


def small(cls, functional_dim=3, out_dim=2, **options):
    """A small model with every parameter off its special initial value."""
    sizes = {"n_layers": 2, "n_hidden": 16, "n_head": HEADS}
    if cls is not GNOT:
        sizes["slice_num"] = 5
    model = cls(functional_dim, out_dim, **{**sizes, **options}).double()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.4)
    return model


def f64(*shape):
    return torch.randn(*shape, dtype=torch.float64)


@CLASSES
def test_equals_the_architecture_written_out_in_fp64(cls):
    model, x = small(cls), f64(2, 23, 3)
    y = model(x).detach().numpy()
    for sample, result in zip(x.numpy(), y, strict=True):
        expected = REFERENCES[cls](model, sample, HEADS)
        np.testing.assert_allclose(result, expected, rtol=0, atol=1e-12 * abs(expected).max())


@CLASSES
def test_embedding_comes_before_fx_and_one_row_of_fx_is_every_row(cls):
    model = small(cls, functional_dim=1, embedding_dim=2)
    fx, embedding = f64(1, 1, 1), f64(1, 9, 2)
    x = torch.cat((embedding, fx.expand(-1, 9, -1)), -1)[0].numpy()
    expected = REFERENCES[cls](model, x, HEADS)
    got = model(fx, embedding)[0].detach().numpy()
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-12 * abs(expected).max())


def test_gnot_with_unified_positions_equals_its_definition():
    model = small(GNOT, structured_shape=(3, 4), unified_pos=True, ref=3)
    x = f64(1, 12, 3)
    expected = gnot(model, x[0].numpy(), HEADS, model.positions.double().numpy())
    got = model(x)[0].detach().numpy()
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-12 * abs(expected).max())


def test_gnot_with_unified_positions_sees_the_inputs_through_its_gates_alone():
    def change(unified_pos):
        model = small(GNOT, structured_shape=(3, 4), unified_pos=unified_pos)
        for block in model.blocks:  # gates that do not look
            for p in block.mixer.gate.parameters():
                torch.nn.init.zeros_(p)
        x = f64(1, 12, 3)
        other = x.clone()
        other[..., 2] = f64(1, 12)  # another coefficient
        return (model(x) - model(other)).abs().max()

    assert change(unified_pos=True) == 0
    assert change(unified_pos=False) > 1e-3


@pytest.mark.slow
@CLASSES
def test_gradients_equal_finite_differences(cls):
    model = small(cls, n_hidden=8)
    x = f64(1, 5, 3).requires_grad_()
    names, parameters = zip(*model.named_parameters(), strict=True)

    def loss(x, *parameters):
        weights = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(model, weights, (x,)).square().sum()

    assert torch.autograd.gradcheck(loss, (x, *parameters), fast_mode=True)


@CLASSES
def test_permuting_tokens_permutes_the_output(cls):
    model, x = small(cls), f64(2, 17, 3)
    order = torch.randperm(17)
    torch.testing.assert_close(model(x)[:, order], model(x[:, order]), rtol=1e-10, atol=1e-11)


@CLASSES
def test_padded_batch_equals_its_samples_one_by_one(cls):
    model = small(cls)
    lengths = (11, 4, 1)
    samples = [f64(1, n, 3) for n in lengths]
    x = torch.full((3, 11, 3), torch.nan, dtype=torch.float64)
    mask = torch.arange(11)[None] < torch.tensor(lengths)[:, None]
    x[mask] = torch.cat(samples, 1)[0]
    y = model(x, token_mask=mask)
    for i, (n, sample) in enumerate(zip(lengths, samples, strict=True)):
        torch.testing.assert_close(y[i : i + 1, :n], model(sample), rtol=1e-10, atol=1e-11)
    assert (y[~mask] == 0).all()
    y.square().sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


@CLASSES
def test_splitting_a_token_into_parts_that_share_its_weight_changes_nothing(cls):
    model, x, weights = small(cls), f64(2, 9, 3), torch.rand(2, 9, dtype=torch.float64)
    counts = torch.ones(9, dtype=torch.long)
    counts[4] = 3
    split = weights.repeat_interleave(counts, 1)
    split[:, 4:7] *= torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    expected = model(x, token_weights=weights)
    got = model(x.repeat_interleave(counts, 1), token_weights=split)
    torch.testing.assert_close(got, expected.repeat_interleave(counts, 1), rtol=1e-10, atol=1e-11)
    assert (expected - model(x)).abs().max() > 1e-3
    streamed = predict(model, x, token_weights=weights, chunk_size=4)
    torch.testing.assert_close(streamed, expected, rtol=1e-10, atol=1e-11)


@CLASSES
def test_streamed_prediction_equals_the_forward_pass(cls):
    model, x = small(cls, embedding_dim=2), f64(2, 41, 2)
    fx, mask = f64(2, 41, 3), torch.arange(41)[None] < torch.tensor([[41], [9]])
    expected = model(fx, x, token_mask=mask)
    got = predict(model, fx, x, token_mask=mask, chunk_size=8)
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-11)
    torch.testing.assert_close(predict(model, fx, x), model(fx, x), rtol=1e-10, atol=1e-11)


@CLASSES
def test_points_are_evaluated_from_the_latents_of_the_cloud(cls, tmp_path):
    model, x = small(cls), f64(2, 41, 3)
    state = encode_state(model, x, chunk_size=10)
    state.save(tmp_path / "state")
    state = type(state).load(tmp_path / "state")
    got = decode_state(model, x[:, 3:9], None, state)
    torch.testing.assert_close(got, model(x)[:, 3:9], rtol=1e-10, atol=1e-11)


@pytest.mark.slow
@CLASSES
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_follows_single_precision_with_finite_gradients(cls, dtype):
    model = cls(3, 1, n_layers=2, n_hidden=32, n_head=4)
    x = torch.rand(2, 200, 3)
    with torch.autocast("cpu", dtype):
        y = model(x)
        streamed = predict(model, x, chunk_size=64)
    reference = model(x)
    scale = reference.abs().max()
    assert (y.float() - reference).abs().max() < 0.1 * scale
    assert (streamed.float() - reference).abs().max() < 0.1 * scale
    y.float().square().mean().backward()
    assert all(torch.isfinite(p.grad).all() and p.grad.dtype == p.dtype for p in model.parameters())


@CLASSES
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_model_cast_to_a_dtype_computes_in_it(cls, dtype):
    model = small(cls).to(dtype)
    x = torch.randn(1, 40, 3, dtype=dtype)
    assert model(x).dtype == predict(model, x, chunk_size=16).dtype == dtype


def spread(layer):
    return layer.weight.std().item()


def test_initial_values_are_those_of_the_study():
    torch.manual_seed(0)
    perceiver = PerceiverIO(3, 1, n_layers=1)
    mixer = perceiver.blocks[0].mixer
    assert abs(mixer.latents.std().item() - 1) < 0.02
    for layer in (mixer.blocks[0].project, mixer.query, perceiver.in_projection.last):
        assert abs(spread(layer) - 0.02) < 1e-3
    mixer = SetTransformer(3, 1, n_layers=1).blocks[0].mixer
    bound = (6 / (128 * 64 + 128)) ** 0.5  # Xavier: fans of a (1, 64, 128) tensor
    assert mixer.inducing.abs().max() <= bound
    assert abs(mixer.inducing.std().item() - bound / 3**0.5) < 1e-3
    assert abs(spread(mixer.query) - 0.02) < 1e-3
    gnot = GNOT(3, 1, n_layers=1)
    layer = gnot.blocks[0].mixer
    for part in (layer.cross.key, layer.experts_self.experts[1][0], layer.gate[2]):
        assert abs(spread(part) - 0.02) < 1e-3
    placeholder = gnot.in_projection.placeholder
    assert placeholder.min() >= 0 and placeholder.max() <= 1 / 128 and placeholder.std() > 1e-3
    lno = LNO(3, 1, n_layers=1)
    uniform = (3 * 128) ** -0.5  # torch draws from +-C**-0.5
    for part in (lno.blocks[0].mixer.modes, lno.in_projection.trunk[2].linear):
        assert abs(spread(part) - uniform) < 2e-3 and part.bias.std() > 0.03


@CLASSES
def test_drawing_again_gives_the_statistics_of_the_constructor(cls):
    sizes = {"n_layers": 1, "n_hidden": 64, "n_head": 4}
    fresh, again = cls(3, 1, **sizes), cls(3, 1, **sizes)
    for p in again.parameters():
        torch.nn.init.constant_(p, 7.0)
    again.reset_parameters()
    for (name, a), (_, b) in zip(fresh.named_parameters(), again.named_parameters(), strict=True):
        assert (a.min() == a.max()) == (b.min() == b.max()), name
        assert b.abs().max() <= 5 * a.abs().max(), name


@CLASSES
def test_checkpoints_remember_class_arguments_and_weights(cls, tmp_path):
    model = small(cls, structured_shape=(3, 4), unified_pos=True, ref=2).float()
    save_module(model, tmp_path / "model.mdlus")
    x = torch.randn(1, 3, 4, 3)
    for loaded in (
        load_model(tmp_path / "model.mdlus"),
        physicsnemo.Module.from_checkpoint(str(tmp_path / "model.mdlus")),
    ):
        assert type(loaded) is cls
        assert torch.equal(loaded(x), model(x))


@CLASSES
def test_registry_of_physicsnemo_knows_the_model(cls):
    assert physicsnemo.core.ModelRegistry().factory(cls.__name__) is cls


@pytest.mark.slow
@CLASSES
def test_one_graph_serves_every_token_count(cls):
    assert_compiled_equals_eager(small(cls, n_layers=1).eval(), "eager")


@CLASSES
def test_checkpointed_blocks_give_the_same_gradients(cls):
    models = [small(cls, checkpoint_blocks=flag) for flag in (False, True)]
    models[1].load_state_dict(models[0].state_dict())
    x = f64(2, 7, 3)
    for model in models:
        model(x).square().sum().backward()
    for a, b in zip(*(m.parameters() for m in models), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-12, atol=1e-12)


@CLASSES
def test_only_the_weights_of_linear_layers_are_matrices(cls):
    # Optimisers such as Muon treat every 2-D parameter as a matrix.
    model = small(cls)
    weights = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Linear)}
    assert all(p.ndim != 2 or id(p) in weights for p in model.parameters())


@CLASSES
def test_bad_arguments_and_inputs_are_named(cls):
    assert issubclass(cls, TokenModel) and not issubclass(cls, MixerBackbone)
    with pytest.raises(ValueError, match="divisible by n_head, got 16 and 3"):
        small(cls, n_head=3)
    with pytest.raises(ValueError, match="n_layers must be an integer of at least 1, got 0"):
        small(cls, n_layers=0)
    with pytest.raises(ValueError, match="fx must have 3 channels .* got 2"):
        small(cls)(f64(1, 5, 2))
    with pytest.raises(ValueError, match="time_input=False, time=given"):
        small(cls)(f64(1, 5, 3), time=f64(1))
