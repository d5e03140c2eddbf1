"""Trained runs: their errors, predictions on any mesh, and forces."""

from .cases import CasePrediction, predict_case
from .errors import CaseErrors, case_errors
from .forces import ForceSettings, surface_areas, surface_forces
from .runs import Run, load_run
from .surfaces import predict_surface, read_surface, save_surface

__all__ = [
    "CaseErrors",
    "CasePrediction",
    "ForceSettings",
    "Run",
    "case_errors",
    "load_run",
    "predict_case",
    "predict_surface",
    "read_surface",
    "save_surface",
    "surface_areas",
    "surface_forces",
]
