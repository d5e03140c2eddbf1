"""Counting and timing collectives by intercepting them."""

import time
from collections import Counter

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_NAMESPACES = ("c10d", "_c10d_functional", "c10d_functional")
_WAITS = ("wait_tensor", "monitored_barrier_", "barrier")


class CollectiveCounter(TorchDispatchMode):
    """Context manager that counts the collectives of this rank, and the bytes it hands to them.

    It sees every operator that torch dispatches inside the ``with`` block, forward and backward,
    so no collective of torch escapes it, whoever calls it.

    Parameters
    ----------
    timed : bool, optional, default=False
        Also measure the time spent in collectives. On CUDA this synchronises the device around
        each of them, which slows the step down; count and time in separate passes.

    Attributes
    ----------
    calls, bytes : collections.Counter
        Number of calls, and bytes of the tensors that this rank passed in, per collective.
    durations : list[float]
        Seconds of each collective operation in the order of the calls, launches and waits apart,
        waiting for other ranks included. The rank that comes last does not wait: the smallest
        duration over the ranks is the cost of the collective itself.
    """

    def __init__(self, timed: bool = False) -> None:
        super().__init__()
        self.timed = timed
        self.calls: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.durations: list[float] = []

    @property
    def total_calls(self) -> int:
        """All collectives, of every kind."""
        return self.calls.total()

    @property
    def total_bytes(self) -> int:
        """All bytes handed to collectives."""
        return self.bytes.total()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Run the operator; count it if it is a collective."""
        kwargs = kwargs or {}
        if func.namespace not in _NAMESPACES:
            return func(*args, **kwargs)
        name = func._opname
        if name not in _WAITS:
            inputs = [leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]
            self.calls[name] += 1
            self.bytes[name] += sum(t.numel() * t.element_size() for t in inputs)
        if not self.timed:
            return func(*args, **kwargs)
        wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
        wait()
        start = time.perf_counter()
        result = func(*args, **kwargs)
        wait()
        self.durations.append(time.perf_counter() - start)
        return result
