"""Mesh files: read by a process of its own, handed over as checked arrays."""

from .reading import SUFFIXES, RawSurface, check_vertices, read_polygons, read_surface

__all__ = ["SUFFIXES", "RawSurface", "check_vertices", "read_polygons", "read_surface"]
