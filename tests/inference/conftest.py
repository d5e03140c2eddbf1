import sys
from pathlib import Path

import pytest
import torch

# So that spawned ranks, which get this path too, can import the cases by name.
sys.path.insert(0, str(Path(__file__).parent))

from streaming_cases import make_cloud, make_model  # noqa: E402


@pytest.fixture(scope="module")
def case():
    model, (fx, embedding) = make_model(dtype=torch.float32), make_cloud(torch.float32)
    return model, fx, embedding, model(fx, embedding).detach()
