"""What the ranks run when something goes wrong on one of them."""

from datetime import timedelta

import torch
import torch.distributed as dist

from physicsnemo_flarepp.ops import encode


def fails_on_rank_1(rank: int) -> None:
    q, k = torch.randn(1, 2, 3, 8), torch.randn(1, 2, 5, 8)
    encode(q, k, k, group=dist.group.WORLD)
    if rank == 1:
        raise ArithmeticError("a defect in the data of this rank")
    encode(q, k, k, group=dist.group.WORLD)


def other_batch_on_rank_1(rank: int) -> None:
    batch = 1 + rank
    q, k = torch.randn(batch, 2, 3, 8), torch.randn(batch, 2, 5, 8)
    encode(q, k, k, group=dist.group.WORLD)


def absent_rank_1(rank: int) -> None:
    q, k = torch.randn(1, 2, 3, 8), torch.randn(1, 2, 5, 8)
    if rank == 0:
        encode(q, k, k, group=dist.group.WORLD)
    else:
        store = dist.distributed_c10d._get_default_store()
        store.wait(["a key that never comes"], timedelta(seconds=60))
