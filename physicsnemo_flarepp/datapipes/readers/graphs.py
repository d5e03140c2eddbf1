"""Tokens from graphs by duck type: PyG ``Data`` and DGL-style graphs, neither imported."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from physicsnemo.datapipes import register
from tensordict import TensorDict

from ..checks import missing_name
from .base import (
    MEASURE,
    NO_WEIGHTS,
    CaseReader,
    ReaderOptions,
    TokenTable,
    distinct_names,
    point_areas,
)


def node_data(graph: Any) -> Mapping[str, Any]:
    """Return the node tensors of a graph by name.

    A DGL-style graph has a mapping ``ndata``; a PyG ``Data`` is a mapping over its ``keys()``.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> list(node_data(SimpleNamespace(ndata={"pos": [[0.0, 0.0]]})))
    ['pos']
    """
    if hasattr(graph, "ndata"):
        return graph.ndata
    keys = getattr(graph, "keys", None)
    if keys is not None and hasattr(graph, "__getitem__"):
        return {name: graph[name] for name in (keys() if callable(keys) else keys)}
    raise TypeError(
        f"graph is a {type(graph).__name__}; expected a PyG Data (keys() and indexing by name) or "
        "a DGL-style graph (ndata)"
    )


def _column(graph_name: str, nodes: Mapping[str, Any], name: str) -> np.ndarray:
    if name not in nodes:
        raise missing_name(graph_name, "node tensor", name, nodes.keys())
    values = nodes[name]
    return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)


def tokens_from_graph(
    graph: Any,
    *,
    coordinates: str = "pos",
    fields: Sequence[str] = ("y",),
    features: Sequence[str] = (),
) -> TensorDict:
    """Return the nodes of one graph as a sample; edges are not used.

    Parameters
    ----------
    graph : Any
        PyG ``Data`` or DGL-style graph with node tensors (N,) or (N, k).
    coordinates : str, optional
        Name of the node positions.
    fields, features : Sequence[str], optional
        Names of targets and of further inputs.

    Returns
    -------
    TensorDict
        As :class:`CaseReader` gives it.

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
class GraphReader(CaseReader):
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
        ids = case_ids if case_ids is not None else [f"graph_{i:04d}" for i in range(len(graphs))]
        if len(ids) != len(graphs):
            raise ValueError(f"{len(ids)} case_ids for {len(graphs)} graphs; expected one each")
        super().__init__(
            case_ids=ids,
            options=options,
        )
        self._graphs = graphs
        self._coordinates = coordinates
        self._fields = distinct_names("fields", fields)
        self._features = distinct_names("features", features)

    def open_case(self, index: int) -> TokenTable:
        """Return the nodes of graph `index`."""
        name = f"graph {self.case_ids[index]}"
        nodes = node_data(self._graphs[index])
        positions = _column(name, nodes, self._coordinates)
        weights = {}
        if positions.shape[1:] == (2,):
            weights[MEASURE] = point_areas({"": positions}, len(positions))
        if self.options.weights not in (NO_WEIGHTS, MEASURE):
            weights[self.options.weights] = _column(name, nodes, self.options.weights)
        return TokenTable(
            name,
            math.prod(positions.shape[:1]),
            {self._coordinates: positions},
            {field: _column(name, nodes, field) for field in self._fields},
            features={feature: _column(name, nodes, feature) for feature in self._features},
            weights=weights,
        )

    def describe_case(self, index: int) -> dict[str, Any]:
        """Return the graph's name."""
        return {"source": f"graph {self.case_ids[index]}"}
