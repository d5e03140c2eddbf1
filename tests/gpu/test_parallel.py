"""A group of one NCCL rank."""

import pytest
import torch
import torch.distributed as dist

from physicsnemo_flarepp import FlarePP
from physicsnemo_flarepp.ops import all_gather, all_reduce
from physicsnemo_flarepp.parallel import (
    enable_context_parallel,
    initialize,
    make_mesh,
    sync_gradients,
)

pytestmark = pytest.mark.gpu


@pytest.fixture
def mesh(cuda):
    manager = initialize()
    yield make_mesh(context_size=1)
    manager.cleanup()


def test_collectives_of_one_rank_change_nothing(mesh, cuda):
    group = mesh["context"].get_group()
    x = torch.randn(5, 3, device=cuda, dtype=torch.float16)
    assert dist.get_backend(group) == "nccl"
    assert torch.equal(all_reduce(x, "sum", group), x)
    assert torch.equal(all_gather(x, group), x[None])


def test_a_context_parallel_step_on_one_gpu_is_a_plain_one(mesh, cuda):
    model = FlarePP(functional_dim=3, out_dim=1, n_layers=1, n_hidden=32, n_head=4).to(cuda)
    x = torch.rand(1, 100, 3, device=cuda)
    model(x).square().mean().backward()
    plain = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    enable_context_parallel(model, mesh["context"].get_group())
    model(x).square().mean().backward()
    sync_gradients(model, mesh)
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.grad, plain[name])
