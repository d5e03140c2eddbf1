"""Trained runs: their errors, predictions on any mesh, and forces."""

from ..meshes import read_surface
from ..meshes.writing import save_mesh
from .cases import CasePrediction, predict_case
from .conventions import force_settings
from .curve_figures import draw_parity, draw_training
from .errors import CaseErrors, case_errors
from .figures import draw_comparison, draw_gallery, draw_run, export_case
from .forces import ForceSettings, surface_areas, surface_forces
from .points import case_mesh, predict_points
from .reports import Report, evaluate_run, format_report, report_runs, write_report
from .routing_figures import draw_routing, draw_spectrum
from .shown_cases import stored_errors
from .summaries import describe_prediction
from .surfaces import predict_surface
from .trained_run import Run, load_run

__all__ = [
    "CaseErrors",
    "CasePrediction",
    "ForceSettings",
    "Report",
    "Run",
    "case_errors",
    "case_mesh",
    "describe_prediction",
    "draw_comparison",
    "draw_gallery",
    "draw_parity",
    "draw_routing",
    "draw_run",
    "draw_spectrum",
    "draw_training",
    "evaluate_run",
    "export_case",
    "force_settings",
    "format_report",
    "load_run",
    "predict_case",
    "predict_points",
    "predict_surface",
    "read_surface",
    "report_runs",
    "save_mesh",
    "stored_errors",
    "surface_areas",
    "surface_forces",
    "write_report",
]
