"""Cases that stay in memory between epochs, as many as a share of the free memory holds."""

import os
import threading
from collections import OrderedDict
from collections.abc import Hashable
from pathlib import Path
from typing import Any, NamedTuple

import psutil

_CGROUP = Path("/sys/fs/cgroup")


def free_memory() -> int:
    """Return the bytes that this process could still take, in a container those of its limit."""
    free = psutil.virtual_memory().available
    try:
        limit, used = ((_CGROUP / f"memory.{n}").read_text().strip() for n in ("max", "current"))
        return free if limit == "max" else min(free, max(0, int(limit) - int(used)))
    except (OSError, ValueError):  # no container, or one of the older kind
        return free


class _Kept(NamedTuple):
    state: Hashable
    case: Any
    size: int


class KeptCases:
    """Cases by id; those that were not used for longest make room for others.

    They take at most `share` of the memory that is free or taken by them, which the ranks of a
    machine divide among themselves. Threads may use it at the same time.

    Examples
    --------
    >>> kept = KeptCases(0.5)
    >>> kept.keep("car_1", "as of 9:00", "its arrays", size=100)
    >>> kept.find("car_1", "as of 9:00"), kept.find("car_1", "changed")
    ('its arrays', None)
    """

    def __init__(self, share: float) -> None:
        self._share = share / int(os.environ.get("LOCAL_WORLD_SIZE", 1))
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def find(self, case_id: str, state: Hashable) -> Any:
        """Return a case, or None if it is not kept or its files were in another state."""
        with self._lock:
            entry = self._kept.get(case_id)
            if entry is None or entry.state != state:
                return None
            self._kept.move_to_end(case_id)
            return entry.case

    def keep(self, case_id: str, state: Hashable, case: Any, size: int) -> None:
        """Keep a case of `size` bytes if it fits."""
        free = free_memory() if self._share > 0 else 0
        with self._lock:
            if case_id in self._kept:
                self._forget(case_id)
            # The case is in memory already, so it is not part of what is free.
            allowed = self._share * (free + self._bytes + size)
            if size > allowed:
                return
            while self._bytes + size > allowed:
                self._forget(next(iter(self._kept)))
            self._kept[case_id] = _Kept(state, case, size)
            self._bytes += size

    def _forget(self, case_id: str) -> None:
        self._bytes -= self._kept.pop(case_id).size
