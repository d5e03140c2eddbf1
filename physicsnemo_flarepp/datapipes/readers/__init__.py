"""Readers registered in PhysicsNeMo's data pipe registry; importing this module registers them."""

from .base import CaseReader, ReaderOptions
from .benchmarks import DarcyReader, DrivAerMLReader, GeoFNOReader
from .memory import GraphReader, MemoryCases, tokens_from_graph
from .own import NamedReader, OwnReader
from .prepared import PreparedReader

__all__ = [
    "CaseReader",
    "DarcyReader",
    "DrivAerMLReader",
    "GeoFNOReader",
    "GraphReader",
    "MemoryCases",
    "NamedReader",
    "OwnReader",
    "PreparedReader",
    "ReaderOptions",
    "tokens_from_graph",
]
