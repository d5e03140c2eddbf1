"""Mesh files to checked arrays; VTK reads them in a process of its own.

A damaged file can end the process that parses it. Here that is a helper process, started when the
first file is read and kept for the next ones (see :mod:`.vtk_process`); threads that read at the
same time have one each. What it hands over is checked before anything uses it: a vertex number
outside the points would read other memory, or, if negative, count from the end.
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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import psutil

from .declared_sizes import check_declared_size

if TYPE_CHECKING:
    import pyvista as pv

SUFFIXES = (".vtp", ".stl", ".ply", ".obj", ".vtk")
PLACES = ("cell", "point")
# A parser that does not come back: a minute, and a second per megabyte for slow disks.
_SECONDS, _BYTES_PER_SECOND = 60, 1e6
# What VTK may take: no mesh is packed a hundred times smaller, so that more is a false claim, which
# would otherwise fill the machine before it fails.
_MEMORY, _EXPANSION = 2**30, 100


@dataclass(frozen=True)
class RawSurface:
    """Polygons of a mesh file, with vertex numbers that exist.

    Parameters
    ----------
    source : Path
        The file.
    points : numpy.ndarray
        Vertices, (P, 3).
    connectivity, offsets : numpy.ndarray
        Vertex numbers one polygon after the other, and where each polygon begins, (n + 1,).
    data : Mapping[str, Mapping[str, numpy.ndarray]]
        Arrays that were read, by place (``cell``, ``point``, ``field``) and name.
    present : Mapping[str, Sequence[str]]
        Names of all arrays of the file at ``cell`` and ``point``.
    """

    source: Path
    points: np.ndarray
    connectivity: np.ndarray
    offsets: np.ndarray
    data: Mapping[str, Mapping[str, np.ndarray]]
    present: Mapping[str, Sequence[str]]


def check_vertices(connectivity: np.ndarray, n_points: int) -> None:
    """Raise ValueError unless all vertex numbers are from 0 to `n_points` - 1.

    Examples
    --------
    >>> check_vertices(np.array([0, 1, -1]), 3)
    Traceback (most recent call last):
    ValueError: vertex numbers go from -1 to 1, expected 0 to 2, for the mesh has 3 points
    """
    if len(connectivity) == 0:
        return
    low, high = int(connectivity.min()), int(connectivity.max())
    if low < 0 or high >= n_points:
        raise ValueError(
            f"vertex numbers go from {low} to {high}, expected 0 to {n_points - 1}, for the mesh "
            f"has {n_points} points"
        )


def read_polygons(
    path: str | Path, *, arrays: Sequence[str] | None = None, places: Sequence[str] = PLACES
) -> RawSurface:
    """Return the polygons in a mesh file, whatever state the file is in, or an error naming it.

    Parameters
    ----------
    path : str or Path
        ``.vtp``, ``.stl``, ``.ply``, ``.obj`` or ``.vtk``.
    arrays : Sequence[str], optional
        Names of the arrays to read of a ``.vtp`` file; by default all arrays of numbers.
    places : Sequence[str], optional
        Where to read them: ``cell``, ``point``, or both.

    Raises
    ------
    ValueError
        If the file is damaged or holds anything but polygons.
    """
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"{path} must end in one of {', '.join(SUFFIXES)}; convert it first")
    if not path.is_file():
        raise FileNotFoundError(f"surface {path} does not exist; give the path of a mesh file")
    with path.open("rb"):  # say here if it may not be read
        pass
    try:
        check_declared_size(path)
        head, found = _ask(path, arrays, places)
        if "error" in head:
            raise ValueError(head["error"])
    except ValueError as error:
        raise _damaged(path, error) from error
    if head["kind"] != "PolyData":
        raise ValueError(
            f"{path} holds a {head['kind']}, expected a surface of polygons; extract it, "
            "for example with pyvista's extract_surface()"
        )
    n_points = len(found.get((None, "points"), ()))
    if head["n_polygons"] == 0 or head["n_polygons"] != head["n_cells"]:
        raise ValueError(
            f"{path} has {head['n_polygons']} polygons among {head['n_cells']} cells and "
            f"{n_points} points; expected a surface of polygons only. If it is not empty "
            "or damaged, remove lines and vertices, and turn strips into triangles, for example "
            "with pyvista's triangulate()"
        )
    try:
        _check(head, found, n_points)
    except ValueError as error:
        raise _damaged(path, error) from error
    data = {
        place: {name: array for (at, name), array in found.items() if at == place}
        for place in (*PLACES, "field")
    }
    geometry = (found[None, name] for name in ("points", "connectivity", "offsets"))
    return RawSurface(path, *geometry, data, head["present"])


def read_surface(path: str | Path, *, scale: float = 1.0) -> "pv.PolyData":
    """Return the surface in a ``.vtp``, ``.stl``, ``.ply``, ``.obj`` or ``.vtk`` file.

    Parameters
    ----------
    path : str or Path
        The file.
    scale : float, optional
        Factor on the coordinates, such as 0.001 for millimetres.
    """
    import pyvista as pv  # a second that reading arrays and generating data do not need

    if not (np.isfinite(scale) and scale > 0):
        raise ValueError(f"scale is {scale}, expected a positive number such as 0.001")
    raw = read_polygons(path)
    sizes = np.diff(raw.offsets)
    if (sizes < 3).any():
        raise ValueError(
            f"{path} has {(sizes < 3).sum()} cells with fewer than 3 vertices, the first at "
            f"{int(np.argmax(sizes < 3))}; remove them, for example with pyvista's clean()"
        )
    bad = np.flatnonzero(~np.isfinite(raw.points).all(axis=1))
    if len(bad):
        raise ValueError(
            f"{path} has {len(bad)} points with NaN or infinite coordinates, the first at "
            f"{bad[0]}; repair the file"
        )
    surface = pv.PolyData()
    surface.points = raw.points if scale == 1.0 else raw.points * scale
    surface.SetPolys(pv.CellArray.from_arrays(raw.offsets, raw.connectivity))
    for place, target in (
        ("cell", surface.cell_data),
        ("point", surface.point_data),
        ("field", surface.field_data),
    ):
        for name, array in raw.data[place].items():
            target[name] = array
    return surface


def _damaged(path: Path, error: ValueError) -> ValueError:
    return ValueError(
        f"{path} cannot be read ({error}). The file is truncated or damaged: fetch or write it "
        "again"
    )


def _check(head: Mapping, found: Mapping[tuple, np.ndarray], n_points: int) -> None:
    """Raise ValueError unless polygons and arrays fit together."""
    if n_points == 0 or found[None, "points"].shape != (n_points, 3):
        raise ValueError("it has polygons but no points")
    connectivity, offsets = found[None, "connectivity"], found[None, "offsets"]
    if (
        len(offsets) != head["n_polygons"] + 1
        or offsets[0] != 0
        or offsets[-1] != len(connectivity)
        or (np.diff(offsets) < 0).any()
    ):
        raise ValueError(
            f"the offsets of its {head['n_polygons']} polygons do not go up from 0 to the "
            f"{len(connectivity)} vertices listed"
        )
    check_vertices(connectivity, n_points)
    for (place, name), array in found.items():
        rows = {"cell": head["n_cells"], "point": n_points}.get(place, len(array))
        if len(array) != rows:
            raise ValueError(f"{place} array {name} has {len(array)} rows, expected {rows}")


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


def _ask(path: Path, arrays: Sequence[str] | None, places: Sequence[str]) -> tuple[dict, dict]:
    """Have a helper process read `path`; ValueError if it dies of it or does not come back."""
    process = _free_process()
    size = path.stat().st_size
    request = {
        "path": str(path.absolute()),
        "arrays": None if arrays is None else list(arrays),
        "places": list(places),
        "memory": min(psutil.virtual_memory().available, _MEMORY + _EXPANSION * size),
    }
    seconds = _SECONDS + size / _BYTES_PER_SECOND
    late = threading.Timer(seconds, process.child.kill)
    late.daemon = True
    late.start()
    try:
        answer = process.ask(request)
    except (EOFError, ConnectionError) as error:
        in_time = late.is_alive()
        code, said = _last_words(process)
        if not in_time:
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
