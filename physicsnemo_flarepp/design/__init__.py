"""From prediction to design: exact shape sensitivities, and shapes that are optimised by them."""

from .lattice import Lattice, make_lattice
from .optimization import (
    Outcome,
    Problem,
    optimize,
    outcome_rows,
    predicted_change,
    write_outcome,
)
from .sensitivity import (
    Sensitivity,
    car_directions,
    check_gradient,
    largest_difference,
    lattice_rows,
    sensitivity_mesh,
    shape_sensitivity,
)
from .shape_model import ShapeModel, open_shape

__all__ = [
    "Lattice",
    "Outcome",
    "Problem",
    "Sensitivity",
    "ShapeModel",
    "car_directions",
    "check_gradient",
    "largest_difference",
    "lattice_rows",
    "make_lattice",
    "open_shape",
    "optimize",
    "outcome_rows",
    "predicted_change",
    "sensitivity_mesh",
    "shape_sensitivity",
    "write_outcome",
]
