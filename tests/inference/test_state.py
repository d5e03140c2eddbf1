"""Encode once, query anywhere."""

import pytest
import torch
from safetensors.torch import save_file
from streaming_cases import (
    BATCH,
    MODELS,
    TOKENS,
    make_cloud,
    make_model,
    make_weights,
    relative_error,
)

import physicsnemo_flarepp.inference.state as state_module
from physicsnemo_flarepp import FlarePP, MixerBackbone
from physicsnemo_flarepp.inference import (
    LatentState,
    decode_state,
    encode_state,
    model_fingerprint,
    predict,
)


@pytest.mark.parametrize("name", MODELS)
def test_decoding_the_encoded_points_is_the_plain_forward(name):
    model, cloud = make_model(name), make_cloud()
    state = encode_state(model, *cloud, chunk_size=9)
    assert relative_error(decode_state(model, *cloud, state, 10), model(*cloud)) < 1e-11


def test_a_prediction_can_bring_its_state():
    model, cloud = make_model(), make_cloud()
    values, state = predict(model, *cloud, chunk_size=9, return_state=True)
    assert relative_error(values, model(*cloud)) < 1e-11
    expected = encode_state(model, *cloud)
    assert state.fingerprint == expected.fingerprint
    for found, latents in zip(state.latents, expected.latents, strict=True):
        assert all(relative_error(a, b) < 1e-11 for a, b in zip(found, latents, strict=True))


def test_any_order_or_subset_gives_the_same_rows():
    model, (fx, embedding) = make_model(), make_cloud()
    state = encode_state(model, fx, embedding)
    whole = decode_state(model, fx, embedding, state)
    order = torch.randperm(TOKENS)[:31]
    some = decode_state(model, fx[:, order], embedding[:, order], state, chunk_size=1)
    assert relative_error(some, whole[:, order]) < 1e-12


def test_points_away_from_the_cloud_have_the_gradient_of_finite_differences():
    model, (fx, embedding) = make_model(), make_cloud()
    state = encode_state(model, fx, embedding)
    far = (10 + 5 * torch.rand(BATCH, 4, 3).double()).requires_grad_()

    def at(points):
        return decode_state(model, fx[:, :4], points, state, chunk_size=3)

    assert at(far).isfinite().all()
    assert torch.autograd.gradcheck(at, (far,), eps=1e-6, atol=1e-7, rtol=1e-5)


def test_without_gradients_asked_for_none_are_tracked():
    model, cloud = make_model(), make_cloud()
    state = encode_state(model, *cloud)
    assert not decode_state(model, *cloud, state).requires_grad


def test_time_travels_with_the_state(tmp_path):
    model, (fx, embedding) = make_model(time_input=True), make_cloud()
    time = torch.tensor([0.2, 0.9]).double()
    encode_state(model, fx, embedding, time=time).save(tmp_path / "state.safetensors")
    state = LatentState.load(tmp_path / "state.safetensors")
    assert (
        relative_error(decode_state(model, fx, embedding, state), model(fx, embedding, time))
        < 1e-11
    )


def test_a_state_is_independent_of_the_callers_time_and_of_inference_mode():
    model, (fx, embedding) = make_model(time_input=True), make_cloud()
    time = torch.rand(BATCH, dtype=fx.dtype)
    expected = model(fx, embedding, time)
    with torch.inference_mode():
        state = encode_state(model, fx, embedding, time=time)
    time.zero_()
    probe = embedding.clone().requires_grad_()
    found = decode_state(model, fx, probe, state)
    assert relative_error(found, expected) < 1e-11
    found.sum().backward()
    assert probe.grad.abs().sum() > 0


def test_masked_tokens_are_not_encoded():
    model, (fx, embedding) = make_model(), make_cloud()
    mask = torch.arange(TOKENS)[None].expand(BATCH, -1) < 30
    masked = encode_state(model, fx, embedding, token_mask=mask, chunk_size=7)
    cut = encode_state(model, fx[:, :30], embedding[:, :30])
    for got, expected in zip(masked.latents, cut.latents, strict=True):
        assert max(map(relative_error, got, expected)) < 1e-12


def test_a_refined_cloud_has_the_state_of_the_coarse_one():
    model, (fx, embedding) = make_model(), make_cloud()
    coarse = encode_state(model, fx, embedding, token_weights=make_weights(), chunk_size=7)
    counts = torch.arange(TOKENS) % 4 + 1  # a token becomes one to four that share its weight
    fine = [t.repeat_interleave(counts, 1) for t in (fx, embedding, make_weights() / counts)]
    state = encode_state(model, *fine[:2], token_weights=fine[2], chunk_size=7)
    for got, expected in zip(state.latents, coarse.latents, strict=True):
        assert max(map(relative_error, got, expected)) < 1e-12
    expected = model(fx, embedding, token_weights=make_weights())
    got = decode_state(model, fx, embedding, state)
    real = make_weights() > 0
    assert torch.allclose(got[real], expected[real], rtol=0, atol=1e-11)


def test_grid_models_decode_points_off_their_grid():
    model = make_model(structured_shape=(6, 5))
    fx, embedding = torch.randn(1, 6, 5, 4).double(), torch.randn(1, 6, 5, 3).double()
    state = encode_state(model, fx, embedding)
    whole = decode_state(model, fx, embedding, state)
    assert whole.shape == (1, 6, 5, 2)
    rows = decode_state(model, fx.flatten(1, 2)[:, 3:7], embedding.flatten(1, 2)[:, 3:7], state)
    assert relative_error(rows, whole.flatten(1, 2)[:, 3:7]) < 1e-12


def test_unified_positions_decode_the_grid_or_given_distances():
    model = make_model(structured_shape=(6, 5), unified_pos=True, ref=2, embedding_dim=None)
    fx = torch.randn(1, 30, 4).double()
    state = encode_state(model, fx)
    whole = decode_state(model, fx, None, state)
    assert relative_error(whole, model(fx)) < 1e-11
    some = decode_state(model, fx[:, 4:9], model.positions[None, 4:9], state)
    assert relative_error(some, whole[:, 4:9]) < 1e-12


def test_saved_states_come_back_equal_and_are_small(tmp_path):
    model, cloud = make_model(), make_cloud()
    state = encode_state(model, *cloud)
    state.save(tmp_path / "state.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["state.safetensors"]
    loaded = LatentState.load(tmp_path / "state.safetensors")
    assert loaded.shapes == state.shapes == (((BATCH, 4, 5, 8),) * 2,) * 2
    assert (loaded.dtype, loaded.batch) == (torch.float64, BATCH)
    assert torch.equal(decode_state(model, *cloud, loaded), decode_state(model, *cloud, state))


def test_states_of_another_model_are_refused():
    model, cloud = make_model(), make_cloud()
    state = encode_state(model, *cloud)
    with torch.no_grad():
        model.out_projection[-1].bias += 1e-9
    with pytest.raises(ValueError, match="made by another model.*encode_state"):
        decode_state(model, *cloud, state)


def test_fingerprint_sees_what_is_computed_only():
    sizes = {"n_layers": 1, "n_hidden": 16, "n_head": 2, "slice_num": 4}
    model = FlarePP(3, 1, **sizes)
    same = MixerBackbone(3, 1, **sizes, dropout=0.1, checkpoint_blocks=True)
    same.load_state_dict(model.state_dict())
    other = FlarePP(3, 1, **sizes, act="silu")
    other.load_state_dict(model.state_dict())
    assert model_fingerprint(model) == model_fingerprint(same) != model_fingerprint(other)


def swap_rows_in_place(weight):
    with torch.no_grad():
        weight.copy_(weight.flip(0))


CHANGES = {
    "in place": lambda p: torch.nn.init.normal_(p),
    "rows exchanged": swap_rows_in_place,
    "through data": lambda p: p.data.mul_(1 + 1e-6),
    "other memory": lambda p: setattr(p, "data", p.data + 1e-6),
    "one bit": lambda p: p.data.view(torch.int64)[0, 0].add_(1),
}


def test_weights_are_hashed_once_however_often_points_are_asked_for(monkeypatch):
    model, cloud = make_model(), make_cloud()
    hashed = []
    original = state_module._checksum
    monkeypatch.setattr(
        state_module, "_checksum", lambda *given: (hashed.append(given), original(*given))[1]
    )
    state = encode_state(model, *cloud)
    for _ in range(3):
        decode_state(model, *cloud, state)
    assert len(hashed) == 1


@pytest.mark.parametrize("change", CHANGES)
def test_weights_that_changed_after_a_query_are_noticed(change):
    model, cloud = make_model(), make_cloud()
    state = encode_state(model, *cloud)
    decode_state(model, *cloud, state)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    CHANGES[change](model.blocks[0].mixer.project.weight)
    with pytest.raises(ValueError, match="another model"):
        decode_state(model, *cloud, state)
    model.load_state_dict(weights)
    decode_state(model, *cloud, state)


def test_unfit_files_and_batches_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no latent state at .*missing"):
        LatentState.load(tmp_path / "missing.safetensors")
    save_file({"x": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="is not a latent state"):
        LatentState.load(tmp_path / "other.safetensors")
    model, (fx, embedding) = make_model(), make_cloud()
    state = encode_state(model, fx, embedding)
    with pytest.raises(ValueError, match="batch of the state, 2, got 1"):
        decode_state(model, fx[:1], embedding[:1], state)
    with pytest.raises(ValueError, match="out cannot be given"):
        decode_state(model, fx.requires_grad_(), embedding, state, out=tmp_path / "y.npy")


def test_decoding_into_a_file(tmp_path):
    model, cloud = make_model(dtype=torch.float32), make_cloud(torch.float32)
    state = encode_state(model, *cloud)
    got = decode_state(model, *cloud, state, 10, out=tmp_path / "y.npy")
    torch.testing.assert_close(
        torch.from_numpy(got.copy()), predict(model, *cloud), rtol=1e-4, atol=1e-5
    )
