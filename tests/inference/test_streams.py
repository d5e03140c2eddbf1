"""How many tokens at a time, and where hidden states wait."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from streaming_cases import make_cloud, make_model, relative_error

from physicsnemo_flarepp import FlarePP
from physicsnemo_flarepp.inference import predict, streams
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
    monkeypatch.setattr(streams, "free_memory", lambda device: 2**25)
    assert resolve_chunk_size("auto", model, batch=1) == 512
    assert resolve_chunk_size("auto", model.half(), batch=1) == 1024
    assert resolve_chunk_size("auto", model, batch=2) == 512
    assert resolve_chunk_size("auto", model, batch=1, reserved=2**25) == 256


@pytest.fixture
def emulated_gpu(monkeypatch):
    """Its 8 GB, of which torch holds some, and other programs some more: figures, no device."""

    def make(allocated, cached, others=0):
        free = 8 * 10**9 - allocated - cached - others
        properties = SimpleNamespace(total_memory=8 * 10**9)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 8 * 10**9))
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: allocated + cached)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: allocated)
        return torch.device("cuda", 0)

    return make


def test_automatic_chunks_on_a_gpu_are_the_same_from_call_to_call(emulated_gpu):
    first = streams.auto_chunk_size(emulated_gpu(10**8, 0), 50_000)
    assert first == 2**15
    # The first call left cached blocks, or the caller holds a result of it.
    assert streams.auto_chunk_size(emulated_gpu(10**8, 7 * 10**9), 50_000) == first
    assert streams.auto_chunk_size(emulated_gpu(2 * 10**9, 5 * 10**9), 50_000) == first
    crowded = emulated_gpu(10**8, 10**8, others=7 * 10**9)
    assert streams.free_memory(crowded) == 9 * 10**8
    assert streams.auto_chunk_size(crowded, 50_000) == 2**13


class FakeCuda:
    """Streams that note who recorded them; copies are made at once."""

    def __init__(self, *_):
        self.wait_stream = self.wait_event = lambda other: None
        self.record_event = lambda: SimpleNamespace(synchronize=lambda: None)


class FakeTensor:
    def __init__(self, is_cuda):
        self.is_cuda, self.recorded = is_cuda, []

    def copy_(self, value, non_blocking):
        assert non_blocking

    def record_stream(self, stream):
        assert self.is_cuda, "torch records streams of CUDA tensors only"
        self.recorded.append(stream)


@pytest.mark.parametrize("on_device", [True, False])
def test_both_ends_of_an_outward_copy_are_kept_until_it_is_over(monkeypatch, on_device):
    """CUDA's streams and tensors are emulated: what is tested is which ones are recorded."""
    monkeypatch.setattr(torch.cuda, "Stream", FakeCuda)
    monkeypatch.setattr(torch.cuda, "current_stream", FakeCuda)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    transfers = streams.Transfers(torch.device("cuda", 0))
    value, target = FakeTensor(True), FakeTensor(on_device)
    transfers.store(target, value)
    assert value.recorded == [transfers._outward]
    assert target.recorded == ([transfers._outward] if on_device else [])
