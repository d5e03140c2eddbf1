"""Streaming equals the plain forward."""

import numpy as np
import pytest
import torch
from streaming_cases import (
    BATCH,
    MODELS,
    TOKENS,
    TOLERANCE,
    make_cloud,
    make_model,
    make_weights,
    relative_error,
)

from physicsnemo_flarepp.inference import predict


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("chunk_size", [1, 7, TOKENS - 1, TOKENS, TOKENS + 10, "auto"])
def test_every_chunk_size_gives_the_plain_forward(chunk_size, dtype):
    model, cloud = make_model(dtype=dtype), make_cloud(dtype)
    got = predict(model, *cloud, chunk_size=chunk_size)
    assert relative_error(got, model(*cloud)) < TOLERANCE[dtype]
    assert not got.requires_grad


@pytest.mark.parametrize("name", MODELS)
def test_every_option_and_mixer_with_time_broadcast_and_mask(name):
    model = make_model(name, time_input=True)
    _, embedding = make_cloud()
    fx, time = torch.randn(BATCH, 1, 4).double(), torch.rand(BATCH).double()
    mask = torch.arange(TOKENS)[None] < torch.tensor([[TOKENS - 4], [3]])
    embedding[~mask] = torch.nan  # padding may hold anything
    got = predict(model, fx, embedding, time=time, token_mask=mask, chunk_size=11)
    expected = model(fx, embedding, time, mask)
    assert relative_error(got, expected) < 1e-11
    assert (got[~mask] == 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_every_mixer_with_weights(name, masked):
    model, (fx, embedding) = make_model(name), make_cloud()
    weights = make_weights()
    mask = torch.arange(TOKENS)[None] < torch.tensor([[40], [TOKENS]]) if masked else None
    expected = model(fx, embedding, token_mask=mask, token_weights=weights)
    embedding[weights == 0] = torch.nan  # a weight of 0 is padding
    if masked:
        weights[~mask] = torch.nan
    options = {"token_mask": mask, "token_weights": weights}
    for chunk_size in (1, 11, TOKENS):
        got = predict(model, fx, embedding, chunk_size=chunk_size, **options)
        assert relative_error(got, expected) < 1e-11
        scaled = {**options, "token_weights": weights * torch.tensor([[1e-9], [1e12]])}
        got = predict(model, fx, embedding, chunk_size=chunk_size, **scaled)
        assert relative_error(got, expected) < 1e-11


def test_weights_are_read_from_arrays_and_without_a_batch(tmp_path):
    model, (fx, embedding) = make_model(), make_cloud()
    weights = make_weights()[:1].numpy()
    np.save(tmp_path / "areas.npy", weights[0].astype(">f4"))
    areas = np.load(tmp_path / "areas.npy", mmap_mode="r")
    got = predict(model, fx[0], embedding[0], token_weights=areas, chunk_size=10)
    expected = model(fx[:1], embedding[:1], token_weights=torch.from_numpy(weights).float())
    assert relative_error(got, expected) < 1e-11


@pytest.mark.parametrize("grid", [(7, 9), (3, 4, 5)])
@pytest.mark.parametrize("unified_pos", [False, True])
def test_grids_come_back_as_grids(grid, unified_pos):
    options = {"unified_pos": True, "ref": 2, "embedding_dim": None} if unified_pos else {}
    model = make_model(structured_shape=grid, **options)
    fx = torch.randn(BATCH, *grid, 4).double()
    embedding = None if unified_pos else torch.randn(BATCH, *grid, 3).double()
    got = predict(model, fx, embedding, chunk_size=10)
    assert got.shape == (BATCH, *grid, 2)
    assert relative_error(got, model(fx, embedding)) < 1e-11
    flat = predict(model, fx.flatten(1, -2), None if unified_pos else embedding.flatten(1, -2))
    assert torch.allclose(flat, got.flatten(1, -2), rtol=1e-10)


def test_model_of_fx_alone_and_unbatched_rows():
    model = make_model(embedding_dim=None)
    fx, _ = make_cloud()
    got = predict(model, fx[0], chunk_size=10)
    assert relative_error(got, model(fx[:1])) < 1e-11


@pytest.mark.parametrize("name", ["flarepp", "transolver3"])
def test_autocast_is_as_close_to_fp32_as_the_plain_forward(name, tmp_path):
    model, cloud = make_model(name, torch.float32), make_cloud(torch.float32)
    exact = model(*cloud)
    with torch.autocast("cpu", torch.bfloat16):
        plain = model(*cloud)
        got = predict(model, *cloud, chunk_size=9, offload=tmp_path)
    assert got.dtype == plain.dtype
    error = relative_error(plain.float(), exact)
    assert 1e-4 < relative_error(got.float(), exact) < 1.5 * error
    assert relative_error(got, plain) < 1.5 * error


def test_wrapped_models_are_unwrapped():
    model, cloud = make_model(), make_cloud()
    wrapped = torch.compile(model, backend="eager")
    assert torch.equal(predict(wrapped, *cloud), predict(model, *cloud))


def test_models_that_cannot_be_streamed_say_so():
    cloud = make_cloud()
    with pytest.raises(ValueError, match="AttentionMixer cannot be streamed"):
        predict(make_model("attention"), *cloud)
    with pytest.raises(ValueError, match=r"dropout is on.*call model.eval\(\)"):
        predict(make_model(dropout=0.1).train(), *cloud)
    with pytest.raises(ValueError, match=r"TransolverPlusMixer draws noise"):
        predict(make_model("transolver_plus").train(), *cloud)
    with pytest.raises(TypeError, match="got Linear"):
        predict(torch.nn.Linear(3, 3), *cloud)


def test_dropout_of_zero_needs_no_eval():
    model, cloud = make_model().train(), make_cloud()
    assert relative_error(predict(model, *cloud), model(*cloud)) < 1e-11


def test_bad_settings_are_named():
    model, cloud = make_model(), make_cloud()
    with pytest.raises(ValueError, match="offload must be .* got 'gpu'"):
        predict(model, *cloud, offload="gpu")
    with pytest.raises(ValueError, match="stream_dtype must be"):
        predict(model, *cloud, stream_dtype=torch.int8)


def test_inputs_that_do_not_fit_are_named():
    model, (fx, embedding) = make_model(), make_cloud()
    with pytest.raises(ValueError, match="embedding must have 3 channels"):
        predict(model, fx, embedding[..., :2])
    with pytest.raises(ValueError, match="fx must have batch 2 and 53 or 1 rows"):
        predict(model, fx[:, :-1], embedding)
    with pytest.raises(ValueError, match="time must be given exactly when"):
        predict(model, fx, embedding, time=torch.zeros(BATCH))
    with pytest.raises(TypeError, match="got list"):
        predict(model, fx.tolist(), embedding)
    with pytest.raises(TypeError, match="token_mask must be boolean"):
        predict(model, fx, embedding, token_mask=torch.ones(BATCH, TOKENS))
    with pytest.raises(ValueError, match=r"token_mask must have shape \(B, N\) = \(2, 53\)"):
        predict(model, fx, embedding, token_mask=torch.ones(BATCH, 4, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"token_weights must have shape \(B, N\) = \(2, 53\)"):
        predict(model, fx, embedding, token_weights=torch.ones(BATCH, 4))
    with pytest.raises(TypeError, match="token_weights must be of a floating dtype"):
        predict(model, fx, embedding, token_weights=torch.ones(BATCH, TOKENS, dtype=torch.int))
    for value in (-2.0, torch.nan, torch.inf):
        weights = torch.ones(BATCH, TOKENS)
        weights[1, 40] = value
        with pytest.raises(ValueError, match=f"holds {value} at index 40 of sample 1"):
            predict(model, fx, embedding, token_weights=weights, chunk_size=9)
    weights[1] = 0.0
    with pytest.raises(ValueError, match="token_weights of sample 1 are 0 for every token"):
        predict(model, fx, embedding, token_weights=weights, chunk_size=9)
    mask = torch.ones(BATCH, TOKENS, dtype=torch.bool)
    mask[1] = False
    with pytest.raises(ValueError, match=r"sample\(s\) \[1\] have no token"):
        predict(model, fx, embedding, token_mask=mask)
