"""Arrays of any storage go in and out chunk by chunk."""

import numpy as np
import pytest
import torch
import zarr
from streaming_cases import BATCH, TOKENS, make_cloud, make_model

from physicsnemo_flarepp.inference import predict

CHUNK = 10


class Spy:
    """An array that notes the most rows anyone read at once."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.shape, self.dtype = array, array.shape, array.dtype
        self.most_rows = 0

    def __getitem__(self, key):
        rows = self.array[key]
        self.most_rows = max(self.most_rows, rows.shape[1])
        return rows


def as_memmap(array, path):
    np.save(path, array)
    return np.load(path, mmap_mode="r")


def as_zarr(array, path):
    return zarr.create_array(store=str(path), data=array, chunks=(1, 8, array.shape[-1]))


STORES = {"numpy": lambda array, path: array, "memmap": as_memmap, "zarr": as_zarr}


@pytest.fixture(scope="module")
def case():
    model, (fx, embedding) = make_model(dtype=torch.float32), make_cloud(torch.float32)
    return model, fx, embedding, model(fx, embedding).detach()


@pytest.mark.parametrize("store", STORES)
def test_arrays_of_any_storage(case, store, tmp_path):
    model, fx, embedding, expected = case
    mask = np.ones((BATCH, TOKENS), bool)
    # Doubles are cast to the model's dtype chunk by chunk; foreign byte order is native then.
    doubles = embedding.numpy().astype(">f8")
    inputs = (
        STORES[store](fx.numpy(), tmp_path / "fx.npy"),
        STORES[store](doubles, tmp_path / "e.npy"),
    )
    got = predict(model, *inputs, chunk_size=CHUNK, token_mask=mask)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_no_input_is_ever_read_whole(case):
    model, fx, embedding, _ = case
    spies = Spy(fx.numpy()), Spy(embedding.numpy())
    predict(model, *spies, chunk_size=CHUNK)
    assert [spy.most_rows for spy in spies] == [CHUNK, CHUNK]


def test_grid_arrays_are_read_by_planes():
    model = make_model(dtype=torch.float32, structured_shape=(20, 5), embedding_dim=None)
    fx = torch.randn(1, 20, 5, 4)
    spy = Spy(fx.numpy())
    got = predict(model, spy, chunk_size=7)
    assert spy.most_rows <= 3  # planes of 5 points that 7 points can touch
    torch.testing.assert_close(got, model(fx), rtol=1e-4, atol=1e-5)


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


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_nan_is_reported_with_its_row(case, value):
    model, fx, embedding, _ = case
    bad = embedding.clone()
    bad[1, 37, 2] = value
    with pytest.raises(ValueError, match=f"embedding holds {value} at row 37 .sample 1, channel 2"):
        predict(model, fx, bad, chunk_size=CHUNK)
    bad = fx.clone()
    bad[0, 52, 0] = value
    with pytest.raises(ValueError, match=f"fx holds {value} at row 52 .sample 0, channel 0"):
        predict(model, bad, embedding, chunk_size=CHUNK)
