"""Trained runs: their predictions on test cases, surfaces and points, errors, forces, figures."""

from ..runs.trained_run import Run, load_run
from .figures import (
    chosen_case,
    draw_comparison,
    draw_gallery,
    draw_parity,
    draw_run,
    draw_training,
    export_case,
)
from .file_predictions import FilePrediction, describe_prediction, predict_file
from .force_conventions import ForceSettings, force_settings, target_settings
from .forces import load_sums, surface_areas, surface_forces
from .predictions import (
    Case,
    CaseErrors,
    CasePrediction,
    case_mesh,
    predict_case,
    predict_with_all,
    read_case,
    relative_l2,
    stored_errors,
)
from .reports import Report, evaluate_run, format_report, report_runs, write_report
from .routing_figures import draw_queries, draw_routing, draw_spectrum

__all__ = [
    "Case",
    "CaseErrors",
    "CasePrediction",
    "FilePrediction",
    "ForceSettings",
    "Report",
    "Run",
    "case_mesh",
    "chosen_case",
    "describe_prediction",
    "draw_comparison",
    "draw_gallery",
    "draw_parity",
    "draw_queries",
    "draw_routing",
    "draw_run",
    "draw_spectrum",
    "draw_training",
    "evaluate_run",
    "export_case",
    "force_settings",
    "format_report",
    "load_run",
    "load_sums",
    "predict_case",
    "predict_file",
    "predict_with_all",
    "read_case",
    "relative_l2",
    "report_runs",
    "stored_errors",
    "surface_areas",
    "surface_forces",
    "target_settings",
    "write_report",
]
