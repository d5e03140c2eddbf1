"""Mesh files read to checked arrays.

VTK parses them in a separate process (:mod:`.vtk_process`), kept for the next file, because a
damaged file can end the process that parses it. What it hands over is checked before anything uses
it: a vertex number outside the points would read other memory. A mesh is a :class:`PolygonMesh` if
all its cells are polygons, whatever the format calls them, else a :class:`CellMesh`.
"""

import atexit
import json
import math
import mmap
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import psutil

from ..files import damaged
from .polygons import (
    ASSOCIATIONS,
    PIXEL,
    POLYGON_TYPES,
    CellMesh,
    PolygonMesh,
    check_vertices,
    to_pyvista,
)

if TYPE_CHECKING:
    import pyvista as pv

# Files that name others, which lie beside or below them; and all formats with parts.
LISTS = (".case", ".encas", ".foam")
COMPOSITE = (".cgns", *LISTS)
SUFFIXES = (
    *(".vtp", ".stl", ".ply", ".obj", ".vtk", ".vtu", ".vts", ".vtr", ".vti"),
    *COMPOSITE,
)
_PLY_BYTES = {
    **dict.fromkeys(("char", "uchar", "int8", "uint8"), 1),
    **dict.fromkeys(("short", "ushort", "int16", "uint16"), 2),
    **dict.fromkeys(("int", "uint", "int32", "uint32", "float", "float32"), 4),
    **dict.fromkeys(("double", "float64"), 8),
}
_PLY_HEADER = 1 << 16
# How long a parser may take: a minute, and a second per megabyte for slow disks.
_SECONDS, _BYTES_PER_SECOND = 60, 1e6
# How much memory it may take: no mesh is packed a hundred times smaller. A damaged file that claims
# more would otherwise fill the machine before it fails.
_MEMORY, _EXPANSION = 2**30, 100


def read_mesh(
    path: str | Path,
    *,
    arrays: Sequence[str] | None = None,
    sizes: bool = False,
    part: str | None = None,
) -> PolygonMesh | CellMesh:
    """Return the mesh in a file; a damaged file or one without a mesh is a ValueError.

    Parameters
    ----------
    path : str or Path
        One of the formats :data:`SUFFIXES`.
    arrays : Sequence[str], optional
        Names of the arrays to read from VTK's XML files; by default all arrays of numbers.
    sizes : bool, optional
        Have VTK measure the cells of a mesh that is not a surface of polygons.
    part : str, optional
        Zone, part or patch of a CGNS, EnSight or OpenFOAM case, of which the last time is read; by
        default all of the highest dimension, with the arrays that all of them have.

    Returns
    -------
    PolygonMesh or CellMesh
        A surface of polygons, or a mesh of other cells or of points alone.
    """
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"{path} must end in one of {', '.join(SUFFIXES)}; convert it first")
    if not path.is_file():
        raise FileNotFoundError(f"mesh {path} does not exist; give the path of a mesh file")
    with path.open("rb"):  # a file without read permission is reported here
        pass
    try:
        # VTK reads a binary STL file cut between two facets without notice, and fills up a cut PLY
        # file with whatever is in memory. Its own formats need no such test, and an OBJ file
        # declares nothing: cut at the end of a line it is a whole, smaller mesh.
        if check := {".stl": _check_stl, ".ply": _check_ply}.get(path.suffix.lower()):
            check(path, path.stat().st_size)
        head, found = _ask_vtk(path, arrays, sizes, part)
        if "error" in head:
            raise ValueError(head["error"])
        if "present" not in head:
            raise ValueError(f"it holds a {head['kind']}, which is not a mesh of points and cells")
        if head["n_cells"] == 0:
            for name in ("connectivity", "types"):
                found.setdefault((None, name), np.zeros(0, dtype=np.int64))
        found.setdefault((None, "offsets"), np.zeros(1, dtype=np.int64))
        found.setdefault((None, "points"), np.zeros((0, 3)))
        _check_arrays(head["n_cells"], found)
    except ValueError as error:
        raise damaged(path, error) from error
    data = {
        place: {name: array for (at, name), array in found.items() if at == place}
        for place in (*ASSOCIATIONS, "field")
    }
    points, connectivity, offsets, types, measured = (
        found.get((None, name)) for name in ("points", "connectivity", "offsets", "types", "sizes")
    )
    if types is not None and len(types) and np.isin(types, POLYGON_TYPES).all():
        # VTK lists the corners of a pixel line by line, those of other polygons around it.
        third = offsets[:-1][types == PIXEL] + 2
        swapped, types = np.stack([third, third + 1]), None
        if len(third):
            connectivity = connectivity.copy()
            connectivity[swapped] = connectivity[swapped[::-1]]
    cells = path, points, connectivity, offsets, data, head["present"]
    return PolygonMesh(*cells) if types is None else CellMesh(*cells, types, measured, head["kind"])


def _check_arrays(n_cells: int, found: Mapping[tuple, np.ndarray]) -> None:
    """Raise ValueError unless cells and arrays fit together."""
    points = found[None, "points"]
    if points.shape != (len(points), 3) or (n_cells and len(points) == 0):
        raise ValueError("it has cells but no points")
    connectivity, offsets = found[None, "connectivity"], found[None, "offsets"]
    rising = len(offsets) == n_cells + 1 and not (np.diff(offsets) < 0).any()
    if not rising or offsets[0] != 0 or offsets[-1] != len(connectivity):
        raise ValueError(
            f"the offsets of its {n_cells} cells do not go up from 0 to the "
            f"{len(connectivity)} vertices listed"
        )
    check_vertices(connectivity, len(points))
    for (place, name), array in found.items():
        rows = {"cell": n_cells, "point": len(points)}.get(place, len(array))
        if name in ("types", "sizes") and place is None:
            rows = n_cells
        if len(array) != rows:
            raise ValueError(f"{place} array {name} has {len(array)} rows, expected {rows}")


def read_polygons(path: str | Path) -> PolygonMesh:
    """Return the surface in a mesh file as :func:`read_mesh`; other cells are a ValueError."""
    mesh = read_mesh(path)
    if isinstance(mesh, PolygonMesh):
        return mesh
    if mesh.kind != "PolyData":
        raise ValueError(
            f"{path} holds a {mesh.kind} with cells that are not polygons, expected a surface, "
            "such as pyvista's extract_surface() gives"
        )
    n_polygons = int(np.isin(mesh.types, POLYGON_TYPES).sum())
    raise ValueError(
        f"{path} has {n_polygons} polygons among {mesh.n_cells} cells, {len(mesh.points)} points; "
        "expected polygons only; remove lines and vertices, and triangulate strips"
    )


def read_surface(path: str | Path, *, scale: float = 1.0) -> "pv.PolyData":
    """Return the surface in a mesh file, its coordinates times `scale`: 0.001 for millimetres."""
    if not (np.isfinite(scale) and scale > 0):
        raise ValueError(f"scale is {scale}, expected a positive number such as 0.001")
    raw = read_polygons(path)
    sizes = np.diff(raw.offsets)
    if (sizes < 3).any():
        raise ValueError(
            f"{path} has {(sizes < 3).sum()} cells with fewer than 3 vertices, the first at "
            f"{int(np.argmax(sizes < 3))}; pyvista's clean() removes them"
        )
    bad = np.flatnonzero(~np.isfinite(raw.points).all(axis=1))
    if len(bad):
        raise ValueError(
            f"{path} has {len(bad)} points with NaN or infinite coordinates, the first at "
            f"{bad[0]}; repair the file"
        )
    return to_pyvista(replace(raw, points=raw.points if scale == 1.0 else raw.points * scale))


def _check_stl(path: Path, size: int) -> None:
    with path.open("rb") as file:
        start = file.read(1024)
        file.seek(max(0, size - 1024))
        end = file.read()
    if start.lstrip().startswith(b"solid") and b"facet" in start:
        if b"endsolid" not in end:
            raise ValueError("it is a text file that does not end with endsolid")
        return
    if size < 84:
        raise ValueError(f"it has {size} bytes, the header of a binary STL file alone has 84")
    (n_facets,) = struct.unpack("<I", start[80:84])
    if size < 84 + 50 * n_facets:
        raise ValueError(f"it has {size} bytes, but declares {n_facets} facets of 50 bytes")


def _check_ply(path: Path, size: int) -> None:
    with path.open("rb") as file:
        header, found, _ = file.read(_PLY_HEADER).partition(b"end_header")
        if not found:
            raise ValueError("its header has no end_header")
        kind, elements = _ply_elements(header.decode("latin-1"))
        if kind == "ascii":
            file.seek(len(header))
            n_lines = -1  # the rest of the header's last line
            while chunk := file.read(1 << 24):
                n_lines += chunk.count(b"\n")
                last = chunk[-1:]
            n_lines += last != b"\n"
            needed = sum(count for count, _ in elements)
            if n_lines < needed:
                raise ValueError(f"it has {n_lines} lines of data, but declares {needed}")
            return
    needed = len(header) + len("end_header\n") + sum(count * width for count, width in elements)
    if size < needed:
        raise ValueError(f"it has {size} bytes, but declares at least {needed}")


def _ply_elements(header: str) -> tuple[str, list[tuple[int, int]]]:
    """Return the format of a PLY file and the count and least bytes of each of its elements."""

    def bytes_of(item: str) -> int:
        if item not in _PLY_BYTES:
            raise ValueError(f"its header has the unknown type {item!r}")
        return _PLY_BYTES[item]

    kind, elements = "", []
    for line in header.splitlines():
        match re.split(r"\s+", line.strip()):
            case ["format", kind, *_]:
                pass
            case ["element", _, count] if count.isdigit():
                elements.append((int(count), 0))
            case ["property", "list", length, item, name] if elements:
                # A polygon has three vertices or more; of other lists nothing is known.
                least = 3 if name in ("vertex_indices", "vertex_index") else 0
                count, width = elements[-1]
                elements[-1] = (count, width + bytes_of(length) + least * bytes_of(item))
            case ["property", item, _] if elements:
                count, width = elements[-1]
                elements[-1] = (count, width + bytes_of(item))
            case ["property" | "element", *_]:
                raise ValueError(f"its header has the line {line!r}")
    return kind, elements


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
        # In memory, or where the system has no such files, temporary.
        in_memory = hasattr(os, "memfd_create")
        with (
            os.fdopen(os.memfd_create("mesh"), "w+b")
            if in_memory
            else tempfile.TemporaryFile() as file
        ):
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


def _ask_vtk(
    path: Path, arrays: Sequence[str] | None, sizes: bool, part: str | None
) -> tuple[dict, dict]:
    """Return what :func:`.vtk_process.read` says of a file, and the arrays by (place, name).

    The place of points, connectivity, offsets, types and sizes is None. Nothing is checked yet; a
    process that crashes or does not finish is a ValueError.
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
        with suppress(subprocess.TimeoutExpired):
            process.child.wait(10)
        code = process.end()
        if overdue.is_set():
            raise ValueError(f"VTK did not finish within {math.ceil(seconds)} s") from error
        if code >= 0:
            process.stderr.seek(0)
            said = process.stderr.read().decode(errors="replace").strip()
            raise RuntimeError(
                f"the process that reads {path} ended with exit code {code}: {said}"
            ) from error
        raise ValueError(
            f"VTK crashed on it with {signal.Signals(-code).name}; it may have needed more than "
            f"{request['memory'] / 2**30:.3g} GiB of memory"
        ) from error
    except BaseException:
        process.end()
        raise
    finally:
        timer.cancel()
    _idle.append(process)
    return answer
