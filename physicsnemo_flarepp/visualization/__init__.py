"""Figures of fields, errors and routing; arrays and pyvista meshes in, images and numbers out."""

from .canvases import triangulate_cloud
from .comparison import (
    Comparison,
    Exhibit,
    Gallery,
    SurfaceFigure,
    plot_comparison,
    plot_gallery,
    plot_surfaces,
)
from .curves import Parity, TrainingCurves, plot_parity, plot_training
from .pages import DARK, LIGHT, Theme, with_units
from .rendering import MissingExtra, RenderingUnavailable, export_html, require_rendering
from .routing import (
    QueryChange,
    RoutingMaps,
    Spectrum,
    plot_query_change,
    plot_routing,
    plot_spectrum,
)
from .views import CAMERAS, Camera, Preset, preset_for

__all__ = [
    "CAMERAS", "DARK", "LIGHT", "Camera", "Comparison", "Exhibit", "Gallery", "MissingExtra",
    "Parity", "Preset", "QueryChange", "RenderingUnavailable", "RoutingMaps", "Spectrum",
    "SurfaceFigure", "Theme", "TrainingCurves", "export_html", "plot_comparison",
    "plot_gallery", "plot_parity", "plot_query_change", "plot_routing", "plot_spectrum",
    "plot_surfaces", "plot_training", "preset_for", "require_rendering", "triangulate_cloud",
    "with_units",
]  # fmt: skip
