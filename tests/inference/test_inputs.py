"""Arrays of any storage are read chunk by chunk."""

import numpy as np
import pytest
import torch
from streaming_cases import BATCH, STORES, TOKENS, make_model

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
