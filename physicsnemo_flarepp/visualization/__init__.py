"""Figures of fields, errors and routing; arrays and pyvista meshes in, images and numbers out."""

from .cameras import CAMERAS, Camera
from .cases import choose_case
from .clouds import triangulate_cloud
from .comparison import Comparison, plot_comparison
from .export import MissingExtra, export_fields, export_html, fields_of_comparison
from .presets import Preset, preset_for
from .rendering import RenderingUnavailable, require_rendering
from .theme import DARK, LIGHT, Theme

__all__ = [
    "CAMERAS",
    "DARK",
    "LIGHT",
    "Camera",
    "Comparison",
    "MissingExtra",
    "Preset",
    "RenderingUnavailable",
    "Theme",
    "choose_case",
    "export_fields",
    "export_html",
    "fields_of_comparison",
    "plot_comparison",
    "preset_for",
    "require_rendering",
    "triangulate_cloud",
]
