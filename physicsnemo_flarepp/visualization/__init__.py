"""Figures of fields, errors and routing; arrays and pyvista meshes in, images and numbers out."""

from .cameras import CAMERAS, Camera
from .clouds import triangulate_cloud
from .comparison import Comparison, plot_comparison
from .curves import Parity, TrainingCurves, plot_parity, plot_training
from .gallery import Exhibit, Gallery, plot_gallery
from .interactive import MissingExtra, export_html
from .pages import with_units
from .presets import Preset, preset_for
from .rendering import RenderingUnavailable, require_rendering
from .routing import QueryChange, RoutingMaps, plot_query_change, plot_routing
from .spectrum import Spectrum, plot_spectrum
from .surfaces import SurfaceFigure, plot_surfaces
from .theme import DARK, LIGHT, Theme

__all__ = [
    "CAMERAS",
    "DARK",
    "LIGHT",
    "Camera",
    "Comparison",
    "Exhibit",
    "Gallery",
    "MissingExtra",
    "Parity",
    "Preset",
    "QueryChange",
    "RenderingUnavailable",
    "RoutingMaps",
    "Spectrum",
    "SurfaceFigure",
    "Theme",
    "TrainingCurves",
    "export_html",
    "plot_comparison",
    "plot_gallery",
    "plot_parity",
    "plot_query_change",
    "plot_routing",
    "plot_spectrum",
    "plot_surfaces",
    "plot_training",
    "preset_for",
    "require_rendering",
    "triangulate_cloud",
    "with_units",
]
