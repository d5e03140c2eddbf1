import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode


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
