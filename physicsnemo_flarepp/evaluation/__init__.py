"""Trained runs: their predictions on test cases, surfaces and points, errors, forces, figures.

Predictions need neither matplotlib nor VTK's renderer.
"""

from .. import lazy_names

_NAMES = {
    "..runs.trained_run": "Run load_run pretrained_run",
    ".bounds": "Bounds conformal_quantile store_bounds stored_bounds",
    ".calibration": "calibrate",
    ".export": "Exported export_run",
    ".figures": "chosen_case draw_comparison draw_gallery draw_parity draw_queries "
    "draw_routing draw_run draw_spectrum draw_training export_case",
    ".differences": "Difference describe_difference predict_difference",
    ".file_predictions": "FilePrediction describe_prediction predict_file",
    ".forces": "ForceSettings force_settings load_sums surface_areas surface_forces "
    "target_settings",
    ".predictions": "Case CaseErrors CasePrediction case_mesh predict_case predict_with_all "
    "read_case relative_l2 stored_errors",
    ".reports": "Report evaluate_run format_report report_runs write_report",
}
__getattr__, __dir__, __all__ = lazy_names(__name__, _NAMES)
