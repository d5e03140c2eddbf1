"""Have VTK read a mesh file in a separate process, which a damaged file may end.

The helper (:mod:`.vtk_process`) starts when the first file is read and is kept for the next ones;
threads that read at the same time have one each.
"""

import atexit
import json
import math
import mmap
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np
import psutil

# Files that name others, which lie beside or below them; and all formats with parts.
LISTS = (".case", ".encas", ".foam")
COMPOSITE = (".cgns", *LISTS)

# How long a parser may take: a minute, and a second per megabyte for slow disks.
_SECONDS, _BYTES_PER_SECOND = 60, 1e6
# How much memory it may take: no mesh is packed a hundred times smaller, so a file that needs more
# makes a false claim, which would otherwise fill the machine before it fails.
_MEMORY, _EXPANSION = 2**30, 100


class _Process:
    """A running :mod:`.vtk_process`."""

    def __init__(self) -> None:
        program = Path(__file__).with_name("vtk_process.py")
        self.stderr = tempfile.TemporaryFile()
        self.requests, theirs = socket.socketpair()
        with theirs:
            self.child = subprocess.Popen(
                [sys.executable, "-P", str(program)],
                stdin=theirs,
                stdout=subprocess.PIPE,
                stderr=self.stderr,
                start_new_session=True,  # Ctrl-C is for this program, which then closes the socket
            )

    def ask(self, request: Mapping) -> tuple[dict, dict[tuple, np.ndarray]]:
        """Return the description of a mesh and its arrays by place and name."""
        with _shared_file() as file:
            line = json.dumps(request).encode() + b"\n"
            sent = socket.send_fds(self.requests, [line], [file.fileno()])
            self.requests.sendall(line[sent:])
            reply = self.child.stdout.readline()
            if not reply.endswith(b"\n"):
                raise EOFError
            head = json.loads(reply)
            size = os.fstat(file.fileno()).st_size
            content = mmap.mmap(file.fileno(), size) if size else b""
        return head, {
            (place, name): np.frombuffer(content, kind, math.prod(shape), begin).reshape(shape)
            if math.prod(shape)
            else np.empty(shape, kind)
            for place, name, kind, shape, begin in head["arrays"]
        }

    def end(self) -> int:
        """End the process, whatever it does, and return its exit code."""
        self.child.kill()
        self.requests.close()
        self.child.stdout.close()
        return self.child.wait()


def _shared_file() -> BinaryIO:
    """Return a file in memory, or a temporary one if the system has none in memory."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("mesh"), "w+b")
    return tempfile.TemporaryFile()


_idle: list[_Process] = []
os.register_at_fork(after_in_child=_idle.clear)


@atexit.register
def _end_idle() -> None:
    while _idle:
        _idle.pop().end()


def _free_process() -> _Process:
    while True:
        try:
            process = _idle.pop()  # atomic, since several threads do this
        except IndexError:
            return _Process()
        if process.child.poll() is None:
            return process
        process.end()


def ask_vtk(
    path: Path, arrays: Sequence[str] | None, sizes: bool, part: str | None
) -> tuple[dict, dict]:
    """Return what :func:`.vtk_process.read` says of a file, and the arrays by (place, name).

    The place of points, connectivity, offsets, types and sizes is None. Nothing is checked yet; a
    helper that crashes or does not finish is a ValueError.
    """
    process = _free_process()
    read = path.parent.rglob("*") if path.suffix.lower() in LISTS else [path]
    size = sum(file.stat().st_size for file in read if file.is_file())
    request = {
        "path": str(path.absolute()),
        "arrays": None if arrays is None else list(arrays),
        "sizes": sizes,
        "part": (part or "") if path.suffix.lower() in COMPOSITE else None,
        "memory": min(psutil.virtual_memory().available, _MEMORY + _EXPANSION * size),
    }
    seconds = _SECONDS + size / _BYTES_PER_SECOND
    overdue = threading.Event()

    def stop() -> None:
        overdue.set()  # before the kill, which the reader notices at once
        process.child.kill()

    timer = threading.Timer(seconds, stop)
    timer.daemon = True
    timer.start()
    try:
        answer = process.ask(request)
    except (EOFError, ConnectionError) as error:
        code, said = _last_words(process)
        if overdue.is_set():
            raise ValueError(f"VTK did not finish within {math.ceil(seconds)} s") from error
        if code >= 0:
            raise RuntimeError(
                f"the process that reads {path} ended with exit code {code}: {said}"
            ) from error
        raise ValueError(
            f"VTK crashed on it with {signal.Signals(-code).name}, which also happens where "
            f"memory is short: it was allowed {request['memory'] / 2**30:.3g} GiB"
        ) from error
    except BaseException:
        process.end()
        raise
    finally:
        timer.cancel()
    _idle.append(process)
    return answer


def _last_words(process: _Process) -> tuple[int, str]:
    """Return exit code and standard error of a process that closed its pipe."""
    with suppress(subprocess.TimeoutExpired):
        process.child.wait(10)
    code = process.end()
    with process.stderr as file:
        file.seek(0)
        return code, file.read().decode(errors="replace").strip()
