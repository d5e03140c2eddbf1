"""Chunks that travel in pinned memory on side streams give the plain forward."""

import pytest
import torch

from physicsnemo_flarepp import FlarePP
from physicsnemo_flarepp.inference import decode_state, encode_state, predict
from physicsnemo_flarepp.training.losses import relative_l2_loss
from physicsnemo_flarepp.training.streamed import streamed_step

pytestmark = pytest.mark.gpu


@pytest.fixture
def model(cuda):
    model = FlarePP(functional_dim=3, out_dim=2, n_layers=2, n_hidden=32, n_head=4, slice_num=8)
    return model.double().eval().to(cuda)


@pytest.mark.parametrize("on_host", [True, False], ids=["host input", "device input"])
@pytest.mark.parametrize("offload", ["cpu", "device", "directory"])
def test_streamed_prediction_equals_the_forward_pass(model, cuda, offload, on_host, tmp_path):
    x = torch.rand(2, 1000, 3, dtype=torch.float64)
    place = tmp_path if offload == "directory" else offload
    found = predict(model, x if on_host else x.to(cuda), chunk_size=130, offload=place)
    assert found.device.type == ("cuda" if offload == "device" else "cpu")
    with torch.no_grad():
        expected = model(x.to(cuda))
    torch.testing.assert_close(found.cpu(), expected.cpu(), rtol=0, atol=1e-12)


def test_many_chunks_in_flight_do_not_overwrite_each_other(model):
    """Repeated: a race would show in some of the calls only."""
    x = torch.rand(1, 20_000, 3, dtype=torch.float64)
    first = predict(model, x, chunk_size=500)
    for _ in range(5):
        assert torch.equal(predict(model, x, chunk_size=500), first)


def test_points_are_evaluated_from_the_state_without_copies_of_the_weights(model, cuda):
    x = torch.rand(1, 500, 3, dtype=torch.float64, device=cuda)
    state = encode_state(model, x, chunk_size=100)
    decode_state(model, x[:, :7], None, state)
    with torch.no_grad():
        expected = model(x)[:, :7]
    torch.testing.assert_close(decode_state(model, x[:, :7], None, state), expected)


@pytest.mark.parametrize("offload", ["cpu", "device"])
def test_streamed_step_has_the_gradients_of_the_plain_one(model, cuda, offload):
    """Repeated: a race of the side streams would show in some of the calls only."""
    x = torch.rand(1, 5000, 3, dtype=torch.float64)
    target = torch.rand(1, 5000, 2, dtype=torch.float64)
    relative_l2_loss(model(x.to(cuda)), target.to(cuda)).backward()
    expected = [p.grad for p in model.parameters()]
    for _ in range(3):
        model.zero_grad()
        streamed_step(model, x, None, target, chunk_size=500, offload=offload)
        for parameter, gradient in zip(model.parameters(), expected, strict=True):
            torch.testing.assert_close(parameter.grad, gradient, rtol=1e-9, atol=1e-12)
