"""Trained runs: their errors, predictions on any mesh, and forces."""

from .cases import CasePrediction, predict_case
from .conventions import force_settings
from .errors import CaseErrors, case_errors
from .forces import ForceSettings, surface_areas, surface_forces
from .mesh_files import read_surface, save_mesh
from .points import case_mesh, predict_points
from .reports import Report, evaluate_run, format_report, report_runs, write_report
from .runs import Run, load_run
from .summaries import describe_prediction
from .surfaces import predict_surface

__all__ = [
    "CaseErrors",
    "CasePrediction",
    "ForceSettings",
    "Report",
    "Run",
    "case_errors",
    "case_mesh",
    "describe_prediction",
    "evaluate_run",
    "force_settings",
    "format_report",
    "load_run",
    "predict_case",
    "predict_points",
    "predict_surface",
    "read_surface",
    "report_runs",
    "save_mesh",
    "surface_areas",
    "surface_forces",
    "write_report",
]
