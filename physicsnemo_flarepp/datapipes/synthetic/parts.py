"""Solved cases on disk while a set is being made: written atomically, checked when read."""

import os
import shutil
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from zlib import error as ZlibError

import numpy as np

from .sets import Case, CaseId

try:
    import fcntl
except ImportError as error:  # only POSIX systems have it, as PhysicsNeMo itself expects
    raise ImportError("making built-in data sets needs a POSIX system (Linux or macOS)") from error


def part_path(parts: Path, case_id: CaseId) -> Path:
    """Path of the file that holds a case."""
    return parts / f"{case_id.split}_{case_id.index:06d}.npz"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path that takes the place of ``path`` once the block has succeeded."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_part(parts: Path, case_id: CaseId, case: Case) -> None:
    """Write one case so that its file is either absent or whole.

    Raises
    ------
    ValueError
        If the case holds a value that is not finite.
    """
    for name, array in case.items():
        if not np.all(np.isfinite(array)):
            raise ValueError(
                f"the solver gave non-finite values in {name!r} of case {case_id}; "
                "this is an error in the solver, please report it with the seed"
            )
    with replacing(part_path(parts, case_id)) as temporary, open(temporary, "wb") as file:
        np.savez(file, **case)


def read_part(parts: Path, case_id: CaseId) -> Case:
    """Read one case; the checksums inside the file are verified on the way."""
    with np.load(part_path(parts, case_id), allow_pickle=False) as file:
        return dict(file)


def drop_unusable_parts(parts: Path, cases: Iterable[CaseId]) -> list[CaseId]:
    """Delete damaged files among those of ``cases`` and list the cases to be solved."""
    missing = []
    for case_id in cases:
        try:
            read_part(parts, case_id)
        except FileNotFoundError:
            missing.append(case_id)
        except (zipfile.BadZipFile, ZlibError, EOFError, ValueError):
            # A crash of the machine can leave a short file behind a completed rename.
            part_path(parts, case_id).unlink()
            missing.append(case_id)
    return missing


def remove_tree(path: Path) -> None:
    """Remove a directory if it is there."""
    if path.exists():
        shutil.rmtree(path)


@contextmanager
def exclusive(lock: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock file for the block; call ``on_wait()`` first if another process has it.

    The operating system frees the lock when its holder ends, however it ends.
    """
    with open(lock, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
