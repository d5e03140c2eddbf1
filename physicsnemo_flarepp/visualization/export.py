"""Fields of a case for ParaView, and as a page to turn around in a browser."""

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyvista as pv
from jaxtyping import Float

from .canvases import association_of, make_canvas
from .files import whole_file
from .rendering import lookup_table, require_rendering
from .scales import Limits, field_limits
from .theme import LIGHT, Theme

_OTHER_FORMATS = (".vtp", ".vtu", ".vtk", ".vts", ".vti", ".ply", ".stl", ".obj")


class MissingExtra(ImportError):
    """A package of an optional extra is not installed."""


def fields_of_comparison(
    field: str,
    reference: Float[np.ndarray, "N *channels"],
    predictions: Mapping[str, Float[np.ndarray, "N *channels"]],
) -> dict[str, np.ndarray]:
    """Name reference, predictions and errors as the exported file does.

    Examples
    --------
    >>> fields = fields_of_comparison("p", np.zeros(2), {"FLARE++": np.ones(2)})
    >>> {name: values.tolist() for name, values in fields.items()}
    {'p': [0.0, 0.0], 'p (FLARE++)': [1.0, 1.0], 'p error (FLARE++)': [1.0, 1.0]}
    """
    reference = np.asarray(reference)
    named = {field: reference}
    for name, values in predictions.items():
        named[f"{field} ({name})"] = np.asarray(values)
        named[f"{field} error ({name})"] = np.asarray(values) - reference
    return named


def export_fields(
    path: str | os.PathLike,
    mesh: pv.DataSet,
    fields: Mapping[str, Float[np.ndarray, "N *channels"]],
    *,
    association: str = "auto",
) -> Path:
    """Write a mesh with these fields for ParaView.

    Surfaces and clouds become ``.vtp``, grids and volumes ``.vtu``. Fields the mesh brings along
    are left out. The file appears whole or not at all.

    Parameters
    ----------
    path : path-like
        The file, with that suffix or none.
    mesh : pyvista.DataSet
        Mesh of the whole case.
    fields : Mapping[str, numpy.ndarray]
        Arrays (N,) or (N, channels), in the order of the mesh's points or cells.
    association : str
        ``point``, ``cell`` or ``auto``.

    Returns
    -------
    Path
        The file written.
    """
    surface = isinstance(mesh, pv.PolyData)
    suffix = ".vtp" if surface else ".vtu"
    path = Path(path)
    if path.suffix in _OTHER_FORMATS and path.suffix != suffix:
        raise ValueError(
            f"path {str(path)!r} ends in {path.suffix!r}, but a {type(mesh).__name__} is written "
            f"as {suffix}"
        )
    if not fields:
        raise ValueError("fields is empty; give at least one array by its name")
    for name, values in fields.items():
        try:
            association_of(mesh, len(values), association)
        except ValueError as error:
            raise ValueError(f"field {name!r}: {error}") from None
        first, known = next(iter(fields.items()))
        if len(values) != len(known):
            raise ValueError(
                f"field {name!r} has {len(values)} values, but {first!r} has {len(known)}"
            )
    where = association_of(mesh, len(known), association)
    if surface:
        bare = pv.PolyData()
        bare.copy_structure(mesh)
    else:
        bare = mesh.copy(deep=False)
        bare.clear_data()
        bare = bare.cast_to_unstructured_grid()
    data = bare.point_data if where == "point" else bare.cell_data
    for name, values in fields.items():
        data[name] = np.ascontiguousarray(values)
    # Ids of cases may hold dots: "Re_1.5" is a name, not a file of type ".5".
    path = path if path.suffix == suffix else path.with_name(path.name + suffix)
    with whole_file(path) as draft:
        bare.save(draft)
    return path


def require_html() -> None:
    """Raise :class:`MissingExtra` unless interactive pages can be written."""
    needed = ("trame_pyvista", "nest_asyncio2")
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingExtra(
            f"interactive pages need {' and '.join(missing).replace('_', '-')}, not installed; "
            "pip install 'physicsnemo-flarepp[html]'"
        )


def export_html(
    path: str | os.PathLike,
    mesh: pv.DataSet,
    values: Float[np.ndarray, " N"],
    *,
    association: str = "auto",
    limits: Limits | None = None,
    theme: Theme = LIGHT,
) -> Path:
    """Write a page that shows one field on the mesh, to turn and zoom in a browser.

    Parameters
    ----------
    path : path-like
        The file, ending in ``.html``.
    mesh, values, association
        As in :func:`plot_comparison`.
    limits : tuple of float, optional
        Colour limits; percentiles 0.5 and 99.5 by default.
    theme : Theme
        Colours.

    Raises
    ------
    MissingExtra
        If the extra ``html`` is not installed.
    """
    require_html()
    require_rendering()
    path = Path(path)
    canvas = make_canvas(mesh, len(values), association=association)
    table = lookup_table(theme.fields(), limits or field_limits(values), theme.no_data)
    plotter = pv.Plotter(off_screen=True)
    plotter.set_background(theme.background)
    plotter.add_mesh(
        canvas.faces,
        scalars=canvas.values(np.asarray(values)),
        preference=canvas.association,
        cmap=table,
        show_scalar_bar=False,
    )
    with whole_file(path) as draft:
        plotter.trame.export_html(draft)
    plotter.close()
    return path
