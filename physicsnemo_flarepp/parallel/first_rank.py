"""Work of the first rank that the others wait for, however long it takes."""

import pickle
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch.distributed as dist

T = TypeVar("T")
_PATIENCE = 60.0  # seconds between two lines about the wait
# Seconds that the first rank gives the others to read an error, and a result.
_FAREWELL, _HANDOVER = 10.0, 120.0


def on_first_rank(function: Callable[[], T], doing: str) -> T:
    """Return on all ranks what `function` returns on the first; raise on all what it raises.

    The others wait at the store of the process group, not in a collective: that would fail after
    NCCL's ten minutes, and keep a GPU busy until then. After a minute they say what the first one
    is `doing`, such as "generating the built-in set darcy". Results travel as pickles.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return function()
    store = dist.distributed_c10d._get_default_store()
    rank = dist.get_rank()
    # All ranks make the same calls in the same order, so each call has the same number on all.
    key = f"flarepp/first_rank/{store.add(f'flarepp/first_rank_calls/{rank}', 1)}"
    if rank != 0:
        _wait(store, key, rank, doing)
        result, error = pickle.loads(store.get(key))
        store.add(f"{key}/read", 1)
        if error is not None:
            raise error
        return result
    try:
        result = function()
    except Exception as error:
        _tell(store, key, None, _portable(error), _FAREWELL)
        raise
    _tell(store, key, result, None, _HANDOVER)
    return result


def _tell(
    store: dist.Store, key: str, result: object, error: Exception | None, seconds: float
) -> None:
    """Hand over, and let the others read it: the store ends with this process."""
    store.set(key, cast(Any, pickle.dumps((result, error))))  # torch's stubs know text only
    deadline = time.monotonic() + seconds
    while store.add(f"{key}/read", 0) < dist.get_world_size() - 1:
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)


def _wait(store: dist.Store, key: str, rank: int, doing: str) -> None:
    """Ask until the key is there. A first rank that died takes the store along, which raises."""
    start = told = time.monotonic()
    pause = 0.01
    # Asked for, since a wait of the store that times out prints two warnings of its own.
    while not store.check([key]):
        time.sleep(pause)
        pause = min(1.0, 1.5 * pause)
        if rank == 1 and time.monotonic() - told > _PATIENCE:
            told = time.monotonic()
            waited = timedelta(seconds=round(told - start))
            print(f"waiting for the first rank, {doing}: {waited}", file=sys.stderr, flush=True)


def _portable(error: Exception) -> Exception:
    """Return an error that survives a pickle: itself, or its text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
