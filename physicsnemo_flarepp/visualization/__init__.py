"""Figures of fields, errors and routing; arrays and pyvista meshes in, images and numbers out."""

from .. import lazy_names

_NAMES = {
    ".canvases": "triangulate_cloud",
    ".comparison": "Comparison Exhibit Gallery SurfaceFigure plot_comparison plot_gallery "
    "plot_surfaces",
    ".curves": "Parity TrainingCurves plot_parity plot_training",
    ".pages": "DARK LIGHT Theme with_units",
    ".rendering": "MissingExtra RenderingUnavailable export_html require_rendering",
    ".routing": "QueryChange RoutingMaps Spectrum plot_query_change plot_routing plot_spectrum",
    ".views": "CAMERAS Camera Preset preset_for",
}
__getattr__, __dir__, __all__ = lazy_names(__name__, _NAMES)
