"""Exact context parallelism: tokens of one sample spread over ranks, on DistributedManager."""

from .context import enable_context_parallel
from .counting import CollectiveCounter
from .launch import initialize
from .ranks import (
    flatten_mesh,
    gather_tokens,
    make_mesh,
    shard_bounds,
    shard_tokens,
    sync_gradients,
)

__all__ = [
    "CollectiveCounter",
    "enable_context_parallel",
    "flatten_mesh",
    "gather_tokens",
    "initialize",
    "make_mesh",
    "shard_bounds",
    "shard_tokens",
    "sync_gradients",
]
