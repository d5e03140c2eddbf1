"""From prediction to design: exact shape sensitivities, and shapes that are optimised by them."""

from .. import lazy_names

_NAMES = {
    ".lattice": "Lattice make_lattice",
    ".optimization": "Outcome Problem optimize outcome_rows predicted_change write_outcome",
    ".sensitivity": "Sensitivity car_directions check_gradient largest_difference lattice_rows "
    "sensitivity_mesh shape_sensitivity",
    ".shape_model": "ShapeModel open_shape",
}
__getattr__, __dir__, __all__ = lazy_names(__name__, _NAMES)
