"""A field as a page to turn around in a browser."""

import importlib.util
import os
from pathlib import Path

import numpy as np
import pyvista as pv
from jaxtyping import Float

from ..files import whole_file
from .canvases import Limits, field_limits, make_canvas
from .rendering import lookup_table, quiet_vtk, require_rendering
from .theme import LIGHT, Theme


class MissingExtra(ImportError):
    """A package of an optional extra is not installed."""


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
    with quiet_vtk():
        plotter = pv.Plotter(off_screen=True)
    plotter.set_background(theme.background)
    plotter.add_mesh(
        canvas.faces,
        scalars=canvas.values(np.asarray(values)),
        preference=canvas.association,
        cmap=table,
        show_scalar_bar=False,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as draft:
        plotter.trame.export_html(draft)
    plotter.close()
    return path
