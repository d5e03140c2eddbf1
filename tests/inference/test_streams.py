"""How many tokens at a time, and where hidden states wait."""

import pytest
import torch
from streaming_cases import make_cloud, make_model, relative_error

from physicsnemo_flarepp import FlarePP
from physicsnemo_flarepp.inference import predict
from physicsnemo_flarepp.inference.streams import resolve_chunk_size


@pytest.mark.parametrize("offload", ["cpu", "device", None, "directory"])
def test_hidden_states_may_wait_anywhere(offload, tmp_path):
    model, cloud = make_model(), make_cloud()
    place = tmp_path if offload == "directory" else offload
    assert (
        relative_error(predict(model, *cloud, chunk_size=9, offload=place), model(*cloud)) < 1e-11
    )
    assert list(tmp_path.iterdir()) == []


def test_half_stream_stores_half_and_stays_close():
    model, cloud = make_model(dtype=torch.float32), make_cloud(torch.float32)
    got = predict(model, *cloud, chunk_size=9, stream_dtype=torch.bfloat16)
    assert 1e-5 < relative_error(got, model(*cloud)) < 5e-2


@pytest.mark.parametrize("chunk_size", [0, -5, 2.5, True, "all"])
def test_bad_chunk_sizes_are_named(chunk_size):
    with pytest.raises(ValueError, match="chunk_size must be"):
        predict(make_model(), *make_cloud(), chunk_size=chunk_size)


def test_automatic_chunks_shrink_with_free_memory(monkeypatch):
    model = FlarePP(3, 1, n_layers=1)
    whole = resolve_chunk_size("auto", model, batch=1)
    assert whole == 4096
    monkeypatch.setattr("physicsnemo_flarepp.inference.streams.free_memory", lambda device: 2**26)
    assert resolve_chunk_size("auto", model, batch=1) == 512
    assert resolve_chunk_size("auto", model.half(), batch=1) == 1024
    assert resolve_chunk_size("auto", model, batch=2) == 512
    assert resolve_chunk_size("auto", model, batch=1, reserved=2**26) == 256
