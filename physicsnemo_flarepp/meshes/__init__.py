"""Meshes as arrays, and their files: parsed in a separate process, written whole."""

from .export import mesh_suffix, save_mesh
from .polygons import ASSOCIATIONS, CellMesh, PolygonMesh, polygon_mesh, to_pyvista
from .reading import SUFFIXES, read_mesh, read_polygons, read_surface

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
