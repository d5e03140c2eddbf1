"""Trained runs: their predictions on test cases, surfaces and points, errors, forces, figures.

Names are imported when they are used: predictions need neither matplotlib nor VTK's renderer.
"""

from importlib import import_module
from typing import Any

_NAMES = {
    "..runs.trained_run": ("Run", "load_run", "pretrained_run"),
    ".bounds": ("Bounds", "conformal_quantile"),
    ".calibration": ("calibrate", "store_bounds", "stored_bounds"),
    ".differences": ("Difference", "describe_difference", "predict_difference"),
    ".export": ("Exported", "export_run"),
    ".figures": ("chosen_case", "draw_comparison", "draw_gallery", "draw_parity", "draw_run",
                 "draw_training", "export_case"),
    ".file_predictions": ("FilePrediction", "describe_prediction", "predict_file"),
    ".force_conventions": ("ForceSettings", "force_settings", "target_settings"),
    ".forces": ("load_sums", "surface_areas", "surface_forces"),
    ".predictions": ("Case", "CaseErrors", "CasePrediction", "case_mesh", "predict_case",
                     "predict_with_all", "read_case", "relative_l2", "stored_errors"),
    ".reports": ("Report", "evaluate_run", "format_report", "report_runs", "write_report"),
    ".routing_figures": ("draw_queries", "draw_routing", "draw_spectrum"),
}  # fmt: skip
_HOMES = {name: home for home, names in _NAMES.items() for name in names}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
