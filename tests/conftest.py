import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """An exhaustive test is a slow one too, so that ``-m slow`` runs it."""
    for item in items:
        if item.get_closest_marker("exhaustive"):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture
def fake_cuda_autocast():
    """CUDA's bf16 autocast on fake tensors; ``torch.autocast`` gives way without a GPU."""
    dtype = torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    with FakeTensorMode(), torch.device("cuda"):
        yield
    torch.set_autocast_enabled("cuda", False)
    torch.set_autocast_dtype("cuda", dtype)
