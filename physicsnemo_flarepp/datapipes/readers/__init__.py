"""Readers registered in PhysicsNeMo's data pipe registry; importing this module registers them."""

from .base import CaseReader, ReaderOptions
from .darcy import DarcyReader
from .geofno import GeoFNOReader
from .layouts import DrivAerMLReader, GraphReader, tokens_from_graph
from .own import NamedReader, OwnReader
from .prepared import PreparedReader

__all__ = [
    "CaseReader",
    "DarcyReader",
    "DrivAerMLReader",
    "GeoFNOReader",
    "GraphReader",
    "NamedReader",
    "OwnReader",
    "PreparedReader",
    "ReaderOptions",
    "tokens_from_graph",
]
