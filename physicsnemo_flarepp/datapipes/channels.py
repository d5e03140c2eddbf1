"""What the tokens of a case are: the names of their channels, and the mesh that they stand for."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyvista as pv
from jaxtyping import Float
from torch import Tensor

from ..files import Fingerprint, reading, replace_text
from ..meshes import ASSOCIATIONS, polygon_mesh, to_pyvista
from ..meshes.polygons import select_polygons
from .readers import CaseReader
from .readers.array_files import Rowwise
from .readers.case_tables import channel_names, parameter_names
from .readers.contents import ARRAY_SUFFIXES, MESH_FILES, Wanted, is_connectivity, open_file
from .readers.names import NO_WEIGHTS

FILE_NAME = "channels.json"
# Layouts that store cell centres: their tokens are the cells of a mesh.
_CELL_CENTRE_LAYOUTS = ("presampled", "zarr")


@dataclass(frozen=True)
class Channels:
    """Columns of a data set by name, with their widths, in the order of the channels.

    `coordinates` is the dimension of the points, `association` what a token is on a mesh (``point``
    or ``cell``), `grid` the shape of a structured grid of tokens. With `joint`, errors are measured
    in one norm over all fields (``training.field_norms``). `weights` is ``data.weights``.
    """

    coordinates: int
    fields: Mapping[str, int]
    features: Mapping[str, int]
    globals: Mapping[str, int]
    association: str
    grid: tuple[int, ...] | None = None
    joint: bool = False
    weights: str = NO_WEIGHTS

    @classmethod
    def of_reader(cls, reader: CaseReader, *, joint: bool = False) -> "Channels":
        """Return the channels of the cases of `reader`; opens the first one."""
        table = reader.case(0)
        widths = table.widths()
        dimension = sum(widths["coordinates"].values())
        groups = {key: dict(widths[key]) for key in ("fields", "features", "globals")}
        if reader.transforms:
            sample = reader[0][0]
            dimension = sample["coordinates"].shape[-1]
            for key, named in groups.items():
                width = sample[key].shape[-1] if key in sample.keys() else 0
                if width != sum(named.values()):  # else the names are kept
                    groups[key] = {key: width} if width else {}
        centres = getattr(reader, "layout", None) in _CELL_CENTRE_LAYOUTS
        association = "cell" if centres else table.association
        grid = None if reader.grid is None else tuple(reader.grid)
        return cls(dimension, *groups.values(), association, grid, joint, reader.options.weights)

    @property
    def norms(self) -> dict[str, int]:
        """Number of channels of each error: one per field, or one over all fields."""
        if self.joint:
            return {" ".join(self.fields): sum(self.fields.values())}
        return dict(self.fields)

    @property
    def field_names(self) -> tuple[str, ...]:
        """One name per channel of the fields."""
        return tuple(channel_names(self.fields))

    @property
    def feature_names(self) -> tuple[str, ...]:
        """One name per channel of the features."""
        return tuple(channel_names(self.features))

    @property
    def global_names(self) -> tuple[str, ...]:
        """One name per channel of the globals."""
        return tuple(parameter_names(self.globals))

    def columns(self, field: str) -> slice:
        """Return which channels of the fields belong to `field`."""
        names = list(self.fields)
        if field not in names:
            raise ValueError(f"field {field!r} is not among the fields {names}; name one of them")
        start = sum(list(self.fields.values())[: names.index(field)])
        return slice(start, start + self.fields[field])

    def save(self, directory: str | Path) -> Fingerprint:
        """Write ``channels.json`` to a run directory."""
        return replace_text(Path(directory) / FILE_NAME, json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def load(cls, directory: str | Path) -> "Channels":
        """Return the channels that :meth:`save` wrote to a run directory."""
        path = Path(directory) / FILE_NAME
        try:
            stored = json.loads(path.read_bytes())
            for name in ("fields", "features", "globals"):
                if not all(type(width) is int and width > 0 for width in stored[name].values()):
                    raise ValueError(f"the widths of {name} are {stored[name]}")
            grid = stored.pop("grid")
            channels = cls(**stored, grid=None if grid is None else tuple(grid))
            texts = isinstance(channels.weights, str) and channels.association in ASSOCIATIONS
            if not (texts and type(channels.coordinates) is int):
                raise ValueError("an entry has the wrong type")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ValueError(
                f"{path} cannot be used ({type(error).__name__}: {error}); restore it from a copy"
            ) from error
        return channels


def plot_mesh(metadata: Mapping[str, Any], coordinates: np.ndarray) -> pv.DataSet:
    """Return the mesh of a whole case, ready for point or cell data.

    Surfaces are read from their file again; values of sampled tokens belong at the rows
    ``sample["tokens"]`` of the data of its ``metadata["association"]``. Grids, and surfaces whose
    files list the points of each cell, are built from the coordinates; others are point clouds.

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
        cells = _listed_cells({n: a for arrays in found for n, a in arrays.items()}, len(points))
        return (
            pv.PolyData(points) if cells is None else pv.PolyData.from_regular_faces(points, cells)
        )
    if math.prod(grid) != len(points):
        raise ValueError(f"a grid of {grid} is not {len(points)} points; give the whole case")
    mesh = pv.StructuredGrid()
    mesh.points = points
    # VTK counts the fastest axis first; tokens are in row-major order.
    mesh.dimensions = (*reversed(grid), *[1] * (3 - len(grid)))
    return mesh


def _listed_cells(arrays: Mapping[str, Rowwise], n_points: int) -> np.ndarray | None:
    """Return the triangles or quads that the only fitting array lists by their points, from 0."""
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
            "from it; prepare it again"
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


def zero_fields(values: Float[Tensor, "*tokens O"] | None, widths: Mapping[str, int]) -> list[str]:
    """Return which fields of a case are 0 everywhere: their relative error is undefined."""
    if values is None or values.shape[-1] != sum(widths.values()):
        return []
    parts = values.split(list(widths.values()), dim=-1)
    return [name for name, part in zip(widths, parts, strict=True) if not part.any()]
