"""Readers registered in PhysicsNeMo's data pipe registry; importing this module registers them."""

from .base import CaseReader
from .darcy import DarcyReader
from .drivaerml import DrivAerMLReader
from .geofno import GeoFNOReader
from .graphs import GraphReader, tokens_from_graph

__all__ = [
    "CaseReader",
    "DarcyReader",
    "DrivAerMLReader",
    "GeoFNOReader",
    "GraphReader",
    "tokens_from_graph",
]
