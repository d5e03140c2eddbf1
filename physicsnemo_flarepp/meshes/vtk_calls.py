"""Have VTK read a mesh file in a process of its own, which a damaged file may end.

The helper (:mod:`.vtk_process`) is started when the first file is read and kept for the next ones;
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

# A parser that does not come back: a minute, and a second per megabyte for slow disks.
_SECONDS, _BYTES_PER_SECOND = 60, 1e6
# What VTK may take: no mesh is packed a hundred times smaller, so that more is a false claim, which
# would otherwise fill the machine before it fails.
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
    """Return a file in memory, or where the system has none, a temporary one."""
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
            process = _idle.pop()  # one step, for several threads do so
        except IndexError:
            return _Process()
        if process.child.poll() is None:
            return process
        process.end()


def ask_vtk(
    path: Path, arrays: Sequence[str] | None, places: Sequence[str], sizes: bool = False
) -> tuple[dict, dict]:
    """Return what a helper process reads; ValueError if it dies of it or does not come back.

    Parameters
    ----------
    path : Path
        The mesh file.
    arrays : Sequence[str] or None
        Names of the arrays to read, None for all.
    places : Sequence[str]
        Where to read them: ``cell``, ``point`` or both.
    sizes : bool, optional
        Measure the cells of a mesh that is no surface.

    Returns
    -------
    tuple[dict, dict]
        The description that :func:`.vtk_process.read` gives, and the arrays by (place, name); the
        place of points, connectivity, offsets, types and sizes is None. Nothing is checked yet.
    """
    process = _free_process()
    size = path.stat().st_size
    request = {
        "path": str(path.absolute()),
        "arrays": None if arrays is None else list(arrays),
        "places": list(places),
        "sizes": sizes,
        "memory": min(psutil.virtual_memory().available, _MEMORY + _EXPANSION * size),
    }
    seconds = _SECONDS + size / _BYTES_PER_SECOND
    ended: list[bool] = []

    def end() -> None:
        ended.append(True)  # before the kill, for the reader notices that at once
        process.child.kill()

    late = threading.Timer(seconds, end)
    late.daemon = True
    late.start()
    try:
        answer = process.ask(request)
    except (EOFError, ConnectionError) as error:
        code, said = _last_words(process)
        if ended:
            raise ValueError(f"VTK did not finish within {math.ceil(seconds)} s") from error
        if code >= 0:
            raise RuntimeError(
                f"the process that reads {path} ended with exit code {code}: {said}"
            ) from error
        raise ValueError(
            f"VTK crashed on it with {signal.Signals(-code).name}, which also happens where "
            f"memory is short: it could have {request['memory'] / 2**30:.3g} GiB"
        ) from error
    except BaseException:
        process.end()
        raise
    finally:
        late.cancel()
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
