import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from physicsnemo_flarepp.datapipes import GraphReader, ReaderOptions, tokens_from_graph


class PyGStyle:
    """The part of torch_geometric.data.Data that a reader may rely on."""

    def __init__(self, **tensors):
        self._store = tensors

    def keys(self):
        return list(self._store)

    def __getitem__(self, name):
        return self._store[name]


POS, PRESSURE = torch.rand(7, 3), torch.rand(7)
EDGES = torch.zeros(2, 4, dtype=torch.long)


@pytest.mark.parametrize(
    "graph",
    [
        PyGStyle(pos=POS, y=PRESSURE, edge_index=EDGES),
        SimpleNamespace(ndata={"pos": POS, "y": PRESSURE}),
    ],
    ids=["pyg", "dgl"],
)
def test_nodes_become_tokens(graph):
    sample = tokens_from_graph(graph, features=["pos"])
    assert torch.equal(sample["coordinates"], POS)
    assert torch.equal(sample["features"], POS)
    assert torch.equal(sample["fields"], PRESSURE[:, None])


def test_graphs_are_sampled_and_sharded_like_files():
    graphs = [PyGStyle(pos=POS, y=PRESSURE)] * 2
    whole = GraphReader(graphs, options=ReaderOptions(n_points=5))[1][0]
    parts = [
        GraphReader(graphs, options=ReaderOptions(n_points=5, shard=(rank, 3)))[1][0]
        for rank in range(3)
    ]
    assert torch.equal(torch.cat([part["fields"] for part in parts]), whole["fields"])


def test_wrong_graphs_are_refused():
    with pytest.raises(TypeError, match="list; expected a PyG Data"):
        tokens_from_graph([1, 2])
    with pytest.raises(KeyError, match="no array 'p'; present: pos.*, y"):
        tokens_from_graph(PyGStyle(pos=POS, y=PRESSURE), fields=["p"])
    with pytest.raises(ValueError, match=r"graph_0000: y has shape \(4,\), expected \(7,\)"):
        tokens_from_graph(SimpleNamespace(ndata={"pos": POS, "y": np.zeros(4)}))
    with pytest.raises(ValueError, match="more than once: a"):
        GraphReader([PyGStyle(pos=POS, y=PRESSURE)] * 2, case_ids=["a", "a"])
    with pytest.raises(ValueError, match=r"y has shape \(7, 2, 2\), expected"):
        tokens_from_graph(PyGStyle(pos=POS, y=np.zeros((7, 2, 2))))
    with pytest.raises(ValueError, match=r"pos \(of the coordinates\) has shape \(\), expected"):
        tokens_from_graph(PyGStyle(pos=np.zeros(()), y=PRESSURE))
    with pytest.raises(ValueError, match=r"fields is \['y', 'y'\]; name every array once"):
        tokens_from_graph(PyGStyle(pos=POS, y=PRESSURE), fields=["y", "y"])


def test_every_channel_of_a_graph_has_a_name():
    graph = PyGStyle(pos=POS, y=torch.rand(7, 4), n=torch.rand(7, 3), p=PRESSURE)
    metadata = GraphReader([graph], fields=["y", "p"], features=["n"])[0][1]
    assert metadata["field_names"] == ["y_0", "y_1", "y_2", "y_3", "p"]
    assert metadata["feature_names"] == ["n_x", "n_y", "n_z"]
    assert metadata["global_names"] == []


def test_cases_with_other_channels_are_refused_whichever_thread_comes_first():
    together = threading.Barrier(2)

    class Slow(PyGStyle):
        def __getitem__(self, name):
            if name == "y":
                together.wait()
            return super().__getitem__(name)

    reader = GraphReader([Slow(pos=POS, y=PRESSURE), Slow(pos=POS, y=torch.rand(7, 2))])
    with ThreadPoolExecutor(2) as pool:
        errors = [
            future.exception() for future in [pool.submit(reader.__getitem__, i) for i in (0, 1)]
        ]
    (error,) = [error for error in errors if error is not None]
    assert "fields is " in str(error) and "all cases of a set need the same" in str(error)
