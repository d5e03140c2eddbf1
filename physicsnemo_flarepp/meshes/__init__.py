"""Polygon meshes as arrays, and their files: read by a process of its own, written whole."""

from .cells import CellMesh
from .files import (
    SUFFIXES,
    mesh_suffix,
    polygon_mesh,
    read_mesh,
    read_polygons,
    read_surface,
    save_mesh,
    to_pyvista,
)
from .polygons import ASSOCIATIONS, PolygonMesh

__all__ = [
    "ASSOCIATIONS",
    "SUFFIXES",
    "CellMesh",
    "PolygonMesh",
    "mesh_suffix",
    "polygon_mesh",
    "read_mesh",
    "read_polygons",
    "read_surface",
    "save_mesh",
    "to_pyvista",
]
