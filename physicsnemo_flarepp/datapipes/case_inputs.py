"""What the inputs of cases tell: whether they differ at all, and where surfaces face."""

from collections.abc import Sequence

import numpy as np

from ..meshes.measures import facing
from .readers import CaseReader
from .readers.base import MEASURE, TokenTable

# Rows of a case that tell where its surface faces; first rows compared of two cases.
_ORIENTED_ROWS, _FIRST_ROWS = 1 << 16, 1 << 12


def has_same_inputs(cases: Sequence[tuple[CaseReader, int]]) -> bool:
    """Return whether no input tells several cases, each a reader and a position, apart."""
    tables = (reader.open_case(index) for reader, index in cases)
    first = next(tables)
    return len(cases) > 1 and all(_same_inputs(first, table) for table in tables)


def _same_inputs(one: TokenTable, other: TokenTable) -> bool:
    if one.n_tokens != other.n_tokens or one.channels() != other.channels():
        return False
    if one.global_values and not np.array_equal(one.read_globals(), other.read_globals()):
        return False
    # Most cases differ in their first rows already.
    parts = (slice(0, min(one.n_tokens, _FIRST_ROWS)), slice(0, one.n_tokens))
    keys = [key for key in ("features", "coordinates") if getattr(one, key)]
    return all(
        np.array_equal(one.read(key, rows), other.read(key, rows)) for rows in parts for key in keys
    )


def surface_orientation(reader: CaseReader) -> str | None:
    """Return where the normals of some cases point: ``outward`` or ``inward``.

    None if cases differ, or have no normals, or do not enclose a volume.
    """
    chosen = {0, len(reader) // 2, len(reader) - 1}
    found = {_orientation(reader.open_case(index)) for index in sorted(chosen)}
    return found.pop() if len(found) == 1 else None


def _orientation(table: TokenTable) -> str | None:
    # The step is odd so that it does not follow a pattern of the cells.
    rows = np.arange(0, table.n_tokens, table.n_tokens // _ORIENTED_ROWS | 1)
    centres = table.read("coordinates", rows).astype(np.float64)
    normals = table.features.get("normals")
    if normals is None or centres.shape[1] != 3 or tuple(normals.shape[1:]) != (3,):
        return None
    vectors = np.asarray(normals[rows], dtype=np.float64)
    if MEASURE in table.weights:
        vectors *= np.asarray(table.weights[MEASURE][rows]).reshape(-1, 1)
    else:  # as if the surface were the box around it, with cells of one size
        x, y, z = np.ptp(centres, axis=0)
        vectors *= 2 * (x * y + y * z + z * x) / len(rows)
    return facing(centres, vectors)
