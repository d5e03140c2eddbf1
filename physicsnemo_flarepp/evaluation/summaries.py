"""What a prediction on a surface tells in a few lines: forces, and errors if the truth is there."""

import numpy as np

from .cases import field_relative_l2
from .conventions import describe_settings, field_forces, force_surface
from .forces import Forces, ForceSettings
from .surfaces import SurfacePrediction
from .trained_run import Run


def describe_prediction(
    run: Run, prediction: SurfacePrediction, settings: ForceSettings | None
) -> list[str]:
    """Return lines about a predicted surface: warnings, forces, conventions, errors.

    Parameters
    ----------
    run : Run
        What predicted it.
    prediction : SurfacePrediction
        From :func:`~physicsnemo_flarepp.evaluation.predict_surface`.
    settings : ForceSettings or None
        Conventions of the forces; None integrates none.
    """
    lines = [f"warning: {text}" for text in prediction.warnings]
    truth = _stored_fields(run, prediction)
    if truth is not None:
        errors = field_relative_l2(prediction.values, truth, run.channels)
        text = ", ".join(f"{name} {100 * error:.3g} %" for name, error in errors.items())
        lines.append(f"relative L2 error against the fields in the file: {text}")
    if settings is None:
        return lines
    surface = force_surface(prediction.polygons, prediction.association, settings)
    lines += [f"warning: {text}" for text in surface.areas.warnings]
    doubt = f" (doubtful: {prediction.doubt})" if prediction.doubt else ""
    for label, values in ((f"predicted{doubt}", prediction.values), ("in the file", truth)):
        if values is not None:
            forces = field_forces(surface, values, run.channels, settings)
            lines.append(f"forces {label}: {_format(forces)}")
    lines.append(
        f"{describe_settings(settings)}; reference area {surface.reference_area:.6g} "
        f"({surface.area_source})"
    )
    return lines


def _stored_fields(run: Run, prediction: SurfacePrediction) -> np.ndarray | None:
    """Return the run's fields if the surface brought all of them, (N, O)."""
    stored = prediction.polygons.data[prediction.association]
    columns = []
    for name, width in run.channels.fields.items():
        values = stored.get(name)
        if values is None or values.size != width * len(prediction.values):
            return None
        columns.append(values.reshape(-1, width))
    truth = np.concatenate(columns, axis=1)
    return truth if np.isfinite(truth).all() else None


def _format(forces: Forces) -> str:
    parts = []
    for i, (name, value) in enumerate(forces.coefficients.items()):
        part = f"{name} {value:.5f}"
        if forces.shear is not None:
            part += f" (pressure {forces.pressure[i]:.5f}, shear {forces.shear[i]:.5f})"
        parts.append(part)
    return ", ".join(parts)
