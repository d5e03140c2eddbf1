"""Trained runs: their predictions on test cases, surfaces and points, errors, forces, figures.

Names are imported when they are used: predictions need neither matplotlib nor VTK's renderer.
"""

from importlib import import_module
from typing import Any

_NAMES = {
    "..runs.trained_run": ("Run", "load_run", "pretrained_run"),
    ".bounds": ("Bounds", "calibrate", "conformal_quantile", "store_bounds", "stored_bounds"),
    ".export": ("Exported", "export_run"),
    ".figures": ("chosen_case", "draw_comparison", "draw_gallery", "draw_parity", "draw_queries",
                 "draw_routing", "draw_run", "draw_spectrum", "draw_training", "export_case"),
    ".file_predictions": ("Difference", "FilePrediction", "describe_difference",
                          "describe_prediction", "predict_difference", "predict_file"),
    ".forces": ("ForceSettings", "force_settings", "load_sums", "surface_areas", "surface_forces",
                "target_settings"),
    ".predictions": ("Case", "CaseErrors", "CasePrediction", "case_mesh", "predict_case",
                     "predict_with_all", "read_case", "relative_l2", "stored_errors"),
    ".reports": ("Report", "evaluate_run", "format_report", "report_runs", "write_report"),
}  # fmt: skip
_HOMES = {name: home for home, names in _NAMES.items() for name in names}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
