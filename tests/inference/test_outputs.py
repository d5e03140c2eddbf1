"""Predictions go into tensors, arrays and files, and an interrupted one never looks finished."""

import numpy as np
import pytest
import torch
from streaming_cases import BATCH, STORES, TOKENS, make_model

from physicsnemo_flarepp.inference import predict

CHUNK = 10


@pytest.mark.parametrize("store", [*STORES, "tensor"])
def test_predictions_go_into_the_callers_array(case, store, tmp_path):
    model, fx, embedding, expected = case
    blank = np.zeros(expected.shape, np.float32)
    if store == "tensor":
        out = torch.from_numpy(blank)
    elif store == "memmap":
        out = np.memmap(tmp_path / "y", np.float32, "w+", shape=expected.shape)
    else:
        out = STORES[store](blank, tmp_path / "y")
    assert predict(model, fx, embedding, chunk_size=CHUNK, out=out) is out
    np.testing.assert_allclose(out[:], expected, rtol=1e-4, atol=1e-5)


def test_predictions_go_into_a_file(case, tmp_path):
    model, fx, embedding, expected = case
    got = predict(model, fx, embedding, chunk_size=CHUNK, out=tmp_path / "y.npy")
    assert isinstance(got, np.memmap) and not got.flags.writeable
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), expected, rtol=1e-4, atol=1e-5)
    assert [path.name for path in tmp_path.iterdir()] == ["y.npy"]


def test_grids_go_into_arrays_and_files_on_the_grid(tmp_path):
    model = make_model(dtype=torch.float32, structured_shape=(6, 5), embedding_dim=None)
    fx = torch.randn(BATCH, 6, 5, 4)
    expected = model(fx).detach().numpy()
    out = np.zeros((BATCH, 6, 5, 2), np.float32)
    predict(model, fx, chunk_size=7, out=out)
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)
    got = predict(model, fx, chunk_size=7, out=tmp_path / "y.npy")
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="out on the grid must be a contiguous"):
        predict(model, fx, out=np.zeros((BATCH, 5, 6, 2), np.float32).swapaxes(1, 2))


@pytest.fixture
def interrupted_at_last_chunk(case):
    """The model of the case, whose user presses Ctrl-C before the last chunk is read out."""
    model, *_ = case
    calls = []

    def interrupt(module, arguments):
        calls.append(None)
        if len(calls) == -(-TOKENS // CHUNK):
            raise KeyboardInterrupt

    handle = model.out_projection.register_forward_pre_hook(interrupt)
    yield model
    handle.remove()


def test_interrupted_file_keeps_the_earlier_one_and_leaves_nothing(
    case, interrupted_at_last_chunk, tmp_path
):
    _, fx, embedding, _ = case
    earlier = np.full(3, 7.0)
    np.save(tmp_path / "y.npy", earlier)
    with pytest.raises(KeyboardInterrupt):
        predict(interrupted_at_last_chunk, fx, embedding, chunk_size=CHUNK, out=tmp_path / "y.npy")
    assert [path.name for path in tmp_path.iterdir()] == ["y.npy"]
    assert (np.load(tmp_path / "y.npy") == earlier).all()


def test_interrupted_array_is_nan_where_nothing_was_predicted(case, interrupted_at_last_chunk):
    _, fx, embedding, expected = case
    out = np.zeros(expected.shape, np.float32)  # looks finished before the call
    with pytest.raises(KeyboardInterrupt):
        predict(interrupted_at_last_chunk, fx, embedding, chunk_size=CHUNK, out=out)
    assert np.isnan(out[:, 50:]).all()


def test_unfit_outputs_are_refused_before_any_work(case, tmp_path):
    model, fx, embedding, _ = case
    with pytest.raises(ValueError, match=r"out must have shape \(2, 53, 2\), got \(2, 53, 3\)"):
        predict(model, fx, embedding, out=np.zeros((2, 53, 3)))
    with pytest.raises(TypeError, match="out must be of a floating dtype, got int64"):
        predict(model, fx, embedding, out=np.zeros((2, 53, 2), np.int64))
    with pytest.raises(ValueError, match=r"ending in \.npy"):
        predict(model, fx, embedding, out=tmp_path / "y.csv")
