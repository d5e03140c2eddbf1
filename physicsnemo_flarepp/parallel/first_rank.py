"""Work of the first rank that the others wait for, however long it takes."""

import pickle
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

import torch.distributed as dist

T = TypeVar("T")
_PATIENCE = 60.0  # seconds between two lines about the wait


def on_first_rank(function: Callable[[], T], doing: str) -> T:
    """Return on all ranks what `function` returns on the first; raise on all what it raises.

    The others wait at the store of the process group, not in a collective: that would fail after
    NCCL's ten minutes, and keep a GPU busy until then. Results travel as pickles between the ranks.

    Parameters
    ----------
    function : callable
        Without arguments; without a process group it is just called.
    doing : str
        What it does, for those who wait, such as "generating the built-in set darcy".

    Examples
    --------
    >>> on_first_rank(lambda: 7, "counting to seven")
    7
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
        if error is not None:
            raise error
        return result
    try:
        result = function()
    except Exception as error:
        store.set(key, pickle.dumps((None, _portable(error))))
        raise
    store.set(key, pickle.dumps((result, None)))
    return result


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
