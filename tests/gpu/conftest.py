import pytest
import torch

from tests.training.conftest import make_config, surface_set  # noqa: F401

# torch asked for its devices before the tests hid them, so this process still has them.
N_DEVICES = torch.cuda.device_count()


@pytest.fixture
def cuda(monkeypatch):
    """The GPU, which other tests do not see."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: N_DEVICES > 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(N_DEVICES))))
    return torch.device("cuda", 0)
