"""What STL and PLY files say about their own length, for VTK does not compare.

A binary STL file is cut unnoticed between two facets, and a cut PLY file is filled up with whatever
is in memory. VTK's own formats need no such test, and an OBJ file declares nothing: cut at the end
of a line it is a whole, smaller mesh.
"""

import re
import struct
from pathlib import Path

_PLY_BYTES = {
    **dict.fromkeys(("char", "uchar", "int8", "uint8"), 1),
    **dict.fromkeys(("short", "ushort", "int16", "uint16"), 2),
    **dict.fromkeys(("int", "uint", "int32", "uint32", "float", "float32"), 4),
    **dict.fromkeys(("double", "float64"), 8),
}
_HEADER = 1 << 16


def check_declared_size(path: Path) -> None:
    """Raise ValueError if an STL or PLY file is shorter than it says; other files pass."""
    check = {".stl": _check_stl, ".ply": _check_ply}.get(path.suffix.lower())
    if check is not None:
        check(path, path.stat().st_size)


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
        raise ValueError(
            f"it has {size} bytes, but {84 + 50 * n_facets} are needed for the {n_facets} facets "
            "that it declares"
        )


def _check_ply(path: Path, size: int) -> None:
    with path.open("rb") as file:
        header, found, _ = file.read(_HEADER).partition(b"end_header")
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
                elements[-1] = (count, width + _bytes_of(length) + least * _bytes_of(item))
            case ["property", item, _] if elements:
                count, width = elements[-1]
                elements[-1] = (count, width + _bytes_of(item))
            case ["property" | "element", *_]:
                raise ValueError(f"its header has the line {line!r}")
    return kind, elements


def _bytes_of(item: str) -> int:
    if item not in _PLY_BYTES:
        raise ValueError(f"its header has the unknown type {item!r}")
    return _PLY_BYTES[item]
