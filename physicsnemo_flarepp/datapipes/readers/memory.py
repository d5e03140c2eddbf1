"""Cases in memory or from another data set, graphs among them: the same loaders without files."""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyvista as pv
from physicsnemo.datapipes import register
from physicsnemo.mesh import DomainMesh, Mesh
from tensordict import TensorDict

from ...meshes import CellMesh, polygon_mesh
from ...meshes.polygons import numeric_arrays
from ..validation import check_unique
from .base import ReaderOptions
from .case_tables import COLUMN_GROUPS
from .contents import Contents, Wanted, from_physicsnemo
from .names import GROUPS, NAMES
from .own import NamedReader


@dataclass(frozen=True)
class MemoryCases:
    """Cases by position, and what their arrays stand for; ``data`` of ``train`` and of loaders.

    Made by :func:`from_meshes`, :func:`from_arrays` and :func:`from_dataset`.
    """

    case_ids: tuple[str, ...]
    get: Callable[[int], Any]
    names: Mapping[str, Any] = field(default_factory=dict)
    values: Sequence[Mapping[str, np.ndarray]] | None = None
    mesh: Callable[[int], pv.DataSet] | None = None

    def open(self, index: int, wanted: Wanted) -> Contents:
        """Return the contents of a case, which is fetched now."""
        item = self.get(index)
        if isinstance(item, tuple):
            item = item[0]  # PhysicsNeMo gives (sample, metadata)
        contents = contents_of(item, f"case {self.case_ids[index]}", wanted)
        return contents if self.values is None else contents.with_values(self.values[index])

    def __len__(self) -> int:
        return len(self.case_ids)

    def __str__(self) -> str:
        """Return how many cases there are, and what is known of their arrays."""
        lines = [f"{len(self)} cases: {', '.join(self.case_ids[:3])}{' ...' * (len(self) > 3)}"]
        for key, names in self.names.items():
            shown = names if isinstance(names, str) else ", ".join(map(str, names or ()))
            lines += [f"  {key}: {shown}"] if names else []
        if "fields" not in self.names:
            lines.append(f"  arrays: {', '.join(sorted(self.open(0, Wanted()).names()))}")
        return "\n".join(lines)


def _ids(given: Sequence[str] | None, n_cases: int) -> tuple[str, ...]:
    if given is None:
        width = len(str(max(n_cases - 1, 0)))
        given = [f"case_{i:0{width}d}" for i in range(n_cases)]
    if n_cases == 0:
        raise ValueError("there are no cases; give at least 2, one to train on and one to test")
    if len(given) != n_cases:
        raise ValueError(f"{len(given)} case_ids for {n_cases} cases; expected one each")
    check_unique(given, "case_ids")
    return tuple(given)


def _given(*names: Any) -> dict[str, Any]:
    """Return coordinates, features, fields, globals and association by name, if they are given."""
    return {key: value for key, value in zip(NAMES, names, strict=True) if value is not None}


def from_meshes(
    meshes: Sequence[pv.DataSet | Mesh],
    *,
    fields: Any = None,
    features: Any = None,
    globals: Any = None,
    association: str | None = None,
    parameters: Sequence[Mapping[str, Any]] | Mapping[str, Sequence] | None = None,
    case_ids: Sequence[str] | None = None,
) -> MemoryCases:
    """Return cases made of meshes in memory.

    Examples
    --------
    >>> spheres = [pv.Sphere(radius=r).elevation() for r in (1, 2, 3)]
    >>> data = from_meshes(spheres, fields=["Elevation"], parameters={"radius": [1, 2, 3]})
    >>> len(data), sorted(data.open(1, Wanted()).names())
    (3, ['Elevation', 'Normals', 'radius'])
    """
    meshes = list(meshes)
    ids, values = _ids(case_ids, len(meshes)), _per_case(parameters, len(meshes))

    def mesh_of(index: int) -> pv.DataSet:
        if isinstance(meshes[index], pv.DataSet):
            return meshes[index]
        from physicsnemo.mesh.io import to_pyvista

        return to_pyvista(meshes[index])

    names = _given(None, features, fields, globals, association)
    return MemoryCases(ids, meshes.__getitem__, names, values, mesh_of)


def _per_case(
    parameters: Sequence[Mapping[str, Any]] | Mapping[str, Sequence] | None, n_cases: int
) -> list[dict[str, np.ndarray]] | None:
    if not parameters:
        return None
    if isinstance(parameters, Mapping):
        lengths = {name: len(values) for name, values in parameters.items()}
        if set(lengths.values()) != {n_cases}:
            raise ValueError(f"parameters have the lengths {lengths}, expected {n_cases} each")
        parameters = [{n: v[i] for n, v in parameters.items()} for i in range(n_cases)]
    if len(parameters) != n_cases:
        raise ValueError(f"parameters of {len(parameters)} cases for {n_cases} meshes")
    return [{n: as_array(v).astype(float) for n, v in case.items()} for case in parameters]


def contents_of(item: Any, source: str, wanted: Wanted) -> Contents:
    """Return the contents of a mesh of pyvista or PhysicsNeMo, a mapping or a graph."""
    if isinstance(item, DomainMesh | Mesh):
        return from_physicsnemo(source, item, wanted)
    if isinstance(item, pv.DataSet):
        return _contents_of_pyvista(item, source, wanted)
    # DGL has the tensors of nodes in `ndata`; PyG's Data is a mapping itself.
    keys = getattr(item, "keys", None)
    if hasattr(item, "ndata"):
        tensors = item.ndata
    elif keys is not None and hasattr(item, "__getitem__"):
        tensors = {name: item[name] for name in (keys() if callable(keys) else keys)}
    else:
        raise TypeError(
            f"{source} is a {type(item).__name__}; expected a PyG Data, a DGL-style graph (ndata), "
            "a mapping, or a mesh of pyvista or PhysicsNeMo"
        )
    arrays = {str(name): as_array(tensors[name]) for name in tensors}
    return Contents(source, {n: a for n, a in arrays.items() if a.dtype.kind in "fiub"})


def as_array(values: Any) -> np.ndarray:
    """Return a tensor of any device, or what NumPy takes, as an array."""
    return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)


def _contents_of_pyvista(mesh: pv.DataSet, source: str, wanted: Wanted) -> Contents:
    values = numeric_arrays(mesh.field_data)
    if isinstance(mesh, pv.PolyData) and 0 < mesh.GetPolys().GetNumberOfCells() == mesh.n_cells:
        return Contents(source, mesh=polygon_mesh(mesh, source), values=values)
    grid, sizes = mesh.cast_to_unstructured_grid(), None
    if wanted.sizes:
        measured = grid.compute_cell_sizes().cell_data
        sizes = sum(np.abs(measured[name]) for name in ("Length", "Area", "Volume"))
    stored = {"cell": grid.cell_data, "point": grid.point_data}
    data = {place: {n: np.asarray(some[n]) for n in some} for place, some in stored.items()}
    cells = np.asarray(grid.points), grid.cell_connectivity, grid.cell_offsets
    arrays = CellMesh(source, *cells, data, types=grid.celltypes, sizes=sizes)
    return Contents(source, mesh=arrays, values=values)


def from_arrays(
    coordinates: Any,
    fields: Mapping[str, Any],
    *,
    features: Mapping[str, Any] | None = None,
    globals: Mapping[str, Any] | None = None,
    weights: Any = None,
    case_ids: Sequence[str] | None = None,
) -> MemoryCases:
    """Return cases made of arrays in memory.

    Examples
    --------
    >>> points, u = np.random.rand(4, 50, 2), np.random.rand(4, 50)
    >>> data = from_arrays(points, {"u": u}, globals={"mu": np.arange(4.0)})
    >>> data.case_ids, data.names["globals"]
    (('case_0', 'case_1', 'case_2', 'case_3'), ['mu'])
    """
    if not fields:
        raise ValueError("fields is empty; give at least one array to predict")
    n_cases = len(next(iter(fields.values())))
    ids = _ids(case_ids, n_cases)
    columns = {**fields, **(features or {})}
    if weights is not None:
        columns["weights"] = weights
    for name, values in {**columns, **(globals or {})}.items():
        if len(values) != n_cases:
            raise ValueError(f"{name} has {len(values)} cases, but the first field has {n_cases}")
    shared = _is_shared(coordinates, columns, n_cases)

    def item(index: int) -> dict[str, Any]:
        points = coordinates if shared else coordinates[index]
        return {"coordinates": points} | {n: values[index] for n, values in columns.items()}

    groups = {"fields": fields, "features": features or (), "globals": globals or ()}
    names = {"coordinates": "coordinates"} | {key: list(group) for key, group in groups.items()}
    return MemoryCases(ids, item, names, _per_case(globals, n_cases))


def _is_shared(coordinates: Any, columns: Mapping[str, Any], n_cases: int) -> bool:
    """Return whether all cases have the same coordinates; raise if the shapes do not tell."""
    if isinstance(coordinates, list | tuple):
        return False
    shape = tuple(np.shape(coordinates))
    if len(shape) == 2 or shape[:1] != (n_cases,):
        return True

    def fits(points: tuple[int, ...], shape: tuple[int, ...]) -> bool:
        """Return whether an array of a case has a value, or a row of values, at each point."""
        in_rows = shape[: len(points)] == points and len(shape) <= len(points) + 1
        return in_rows or (shape[:1] == (math.prod(points),) and len(shape) <= 2)

    of_case = {name: tuple(np.shape(values[0])) for name, values in columns.items()}
    shared, each = (
        all(fits(points, other) for other in of_case.values())
        for points in (shape[:-1], shape[1:-1])
    )
    if shared and each:
        name, other = next(iter(of_case.items()))
        raise ValueError(
            f"coordinates of shape {shape} may be one grid or one array per case: {name} of shape "
            f"{(n_cases, *other)} fits both. Give a list: [coordinates] * {n_cases} if all cases "
            "share them, list(coordinates) if not"
        )
    return shared


def from_dataset(
    dataset: Any,
    *,
    case_ids: Sequence[str] | None = None,
    coordinates: Any = None,
    features: Any = None,
    fields: Any = None,
    globals: Any = None,
    association: str | None = None,
) -> MemoryCases:
    """Return the cases of any data set: a sequence of dicts, TensorDicts, graphs or meshes.

    Examples
    --------
    >>> cases = [{"pos": np.random.rand(9, 3), "p": np.random.rand(9)} for _ in range(3)]
    >>> len(from_dataset(cases, fields=["p"]))
    3
    """
    given = _given(coordinates, features, fields, globals, association)
    cases = MemoryCases(_ids(case_ids, len(dataset)), dataset.__getitem__, given)
    present = cases.open(0, Wanted()).names()
    # A data set may have the entries of a sample of this package already.
    names = {key: [key] for key in GROUPS if key in present}
    if "fields" in names:
        names = {"features": [], "globals": []} | names
    return replace(cases, names=names | given)


class MemoryReader(NamedReader):
    """Reader of one split of :class:`MemoryCases`; given names replace those of `memory`."""

    def __init__(
        self,
        memory: MemoryCases,
        split: str = "train",
        *,
        root: str | Path | None = None,
        cases: Any = None,
        manifest: str | Path | None = None,
        n_train: int | None = None,
        n_val: int | None = None,
        n_test: int | None = None,
        options: ReaderOptions | Mapping[str, Any] | None = None,
        **names: Any,
    ) -> None:
        self._memory = memory
        super().__init__(
            {case: Path("memory") for case in memory.case_ids},
            Path("memory" if root is None else root),
            split,
            names={**memory.names, **{key: n for key, n in names.items() if n is not None}},
            options=options,
            by_share=True,
            cases=cases,
            manifest=manifest,
            n_train=n_train,
            n_val=n_val,
            n_test=n_test,
        )

    def open_contents(self, index: int, wanted: Wanted) -> Contents:
        """Return the contents of case `index`."""
        return self._memory.open(self._positions[self.case_ids[index]], wanted)

    def describe_case(self, index: int) -> dict[str, Any]:
        """Return the name of the case and its mesh, if it has one."""
        case = self.case_ids[index]
        mesh = None if self._memory.mesh is None else self._memory.mesh(self._positions[case])
        return {"source": f"case {case}", "layout": "memory", "mesh": mesh}

    def source_hashes(self) -> dict[str, str]:
        """Return a hash of what is read of each case, which detects a changed set."""
        hashes = {}
        for index, case in enumerate(self.case_ids):
            table, digest = self.open_case(index), hashlib.sha256()
            for group in COLUMN_GROUPS:
                if getattr(table, group):
                    values = table.read(group, slice(0, table.n_tokens))
                    digest.update(np.ascontiguousarray(values))
            if table.global_values:
                digest.update(table.read_globals())
            hashes[f"memory/{case}"] = f"{table.n_tokens}:{digest.hexdigest()[:32]}"
        return hashes


def tokens_from_graph(
    graph: Any,
    *,
    coordinates: str = "pos",
    fields: Sequence[str] = ("y",),
    features: Sequence[str] = (),
) -> TensorDict:
    """Return the nodes of one graph as a sample of :class:`CaseReader`; edges are not used.

    Parameters
    ----------
    graph : Any
        PyG ``Data`` or DGL-style graph with node tensors (N,) or (N, k); neither is imported.
    coordinates : str, optional
        Name of the node positions.
    fields, features : Sequence[str], optional
        Names of targets and of further inputs.

    Examples
    --------
    >>> import torch
    >>> from types import SimpleNamespace
    >>> graph = SimpleNamespace(ndata={"pos": torch.rand(5, 3), "p": torch.rand(5)})
    >>> tokens_from_graph(graph, fields=["p"])["fields"].shape
    torch.Size([5, 1])
    """
    return GraphReader([graph], coordinates=coordinates, fields=fields, features=features)[0][0]


@register()
class GraphReader(MemoryReader):
    """Cases from a sequence of graphs in memory.

    Parameters
    ----------
    graphs : Sequence[Any]
        PyG ``Data`` or DGL-style graphs.
    case_ids : Sequence[str], optional
        Ids; ``graph_0000`` and so on by default.
    coordinates, fields, features
        See :func:`tokens_from_graph`.
    options : ReaderOptions or Mapping, optional
        Which tokens of a case are read; see :class:`ReaderOptions`.
    """

    def __init__(
        self,
        graphs: Sequence[Any],
        *,
        case_ids: Sequence[str] | None = None,
        coordinates: str = "pos",
        fields: Sequence[str] = ("y",),
        features: Sequence[str] = (),
        options: ReaderOptions | Mapping[str, Any] | None = None,
    ) -> None:
        ids = [f"graph_{i:04d}" for i in range(len(graphs))] if case_ids is None else case_ids
        names = {"coordinates": coordinates, "fields": fields, "features": features, "globals": ()}
        memory = MemoryCases(_ids(ids, len(graphs)), graphs.__getitem__, names)
        super().__init__(memory, cases=ids, options=options)
