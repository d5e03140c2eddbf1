"""The mesh behind a sample, for plotting."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyvista as pv

from ..files import reading
from ..meshes import polygon_mesh, to_pyvista
from ..meshes.polygons import select_polygons
from .readers.base import Rowwise
from .readers.contents import ARRAY_SUFFIXES, MESH_FILES, Wanted, is_connectivity, open_file


def plot_mesh(metadata: Mapping[str, Any], coordinates: np.ndarray) -> pv.DataSet:
    """Return the mesh of a whole case, ready for point or cell data.

    Surfaces are read from their file again; values of sampled tokens belong at the rows
    ``sample["tokens"]`` of its cell or point data, as ``metadata["association"]`` says. Grids are
    built from the coordinates, and so are surfaces whose files list the points of each cell; other
    sets give a point cloud.

    Examples
    --------
    >>> x, y = np.meshgrid([0.0, 1.0], [0.0, 1.0, 2.0], indexing="ij")
    >>> points = np.stack([x.ravel(), y.ravel()], -1)
    >>> mesh = plot_mesh({"grid": (2, 3)}, points)
    >>> mesh.n_points, mesh.n_cells, bool(np.allclose(mesh.points[:, :2], points))
    (6, 2, True)
    """
    if "original" in metadata and Path(metadata["original"]["source"]).exists():
        original = plot_mesh(metadata["original"], coordinates)
        if isinstance(original, pv.PolyData) and original.GetNumberOfPolys():
            return _reordered(original, metadata)
    if metadata.get("mesh") is not None:
        return metadata["mesh"].copy()
    files = [Path(file) for file in metadata.get("files") or [metadata.get("source", "")]]
    stored = next((file for file in files if file.suffix.lower() in MESH_FILES), None)
    if stored is not None:
        return to_pyvista(open_file(stored, Wanted(boundary=metadata.get("boundary"))).mesh)
    points = np.zeros((len(coordinates), 3))
    points[:, : coordinates.shape[1]] = coordinates
    grid = metadata.get("grid")
    if grid is None:
        tables = [file for file in files if file.suffix.lower() in ARRAY_SUFFIXES]
        found = [open_file(file, Wanted(())).arrays for file in tables if metadata.get("files")]
        cells = listed_cells({n: a for arrays in found for n, a in arrays.items()}, len(points))
        return (
            pv.PolyData(points) if cells is None else pv.PolyData.from_regular_faces(points, cells)
        )
    if math.prod(grid) != len(points):
        raise ValueError(
            f"a grid of {grid} needs {math.prod(grid)} coordinates, got {len(points)}; "
            "pass the coordinates of the whole case"
        )
    mesh = pv.StructuredGrid()
    mesh.points = points
    # VTK counts the fastest axis first; tokens are in row-major order.
    mesh.dimensions = (*reversed(grid), *[1] * (3 - len(grid)))
    return mesh


def listed_cells(arrays: Mapping[str, Rowwise], n_points: int) -> np.ndarray | None:
    """Return the triangles or quads that an array lists by the numbers of their points, from 0.

    None if there is no such array for so many points, or several.
    """
    found = [np.asarray(a[...]) for name, a in arrays.items() if is_connectivity(name, a)]
    found = [c - (c.min() == 1 and c.max() == n_points) for c in found if c.size]
    fitting = [cells for cells in found if cells.min() >= 0 and cells.max() < n_points]
    return fitting[0] if len(fitting) == 1 else None


def _reordered(surface: pv.PolyData, metadata: Mapping[str, Any]) -> pv.PolyData:
    """Return the surface that a prepared case was made from, in the order of its rows."""
    with reading(metadata["order"]):
        order = np.load(metadata["order"], allow_pickle=False).astype(np.int64)
    mesh = polygon_mesh(surface, metadata["source"])
    cells = metadata["association"] == "cell"
    if len(order) != (mesh.n_cells if cells else len(mesh.points)):
        raise ValueError(
            f"{metadata['original']['source']} has changed since {metadata['source']} was prepared "
            f"from it with {len(order)} rows; prepare it again"
        )
    points, connectivity, offsets = mesh.points, mesh.connectivity, mesh.offsets
    if cells:
        connectivity, offsets = select_polygons(connectivity, offsets, order)
    else:
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        points, connectivity = points[order], place[connectivity]
    reordered = pv.PolyData()
    reordered.points = points
    reordered.SetPolys(pv.CellArray.from_arrays(offsets, connectivity))
    return reordered
