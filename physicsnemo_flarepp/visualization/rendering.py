"""Pictures of a mesh from VTK, off screen, at exact pixel sizes; pages to turn in a browser."""

import functools
import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyvista as pv
from jaxtyping import Float
from matplotlib.colors import Colormap

from ..files import whole_file
from .canvases import Canvas, Limits, data_of, field_limits, make_canvas
from .pages import LIGHT, Pixels, Theme
from .views import View

_PROBE = """
import pyvista
plotter = pyvista.Plotter(off_screen=True, window_size=(32, 32))
plotter.add_mesh(pyvista.Plane(), color="red", lighting=False)
assert plotter.screenshot(return_img=True)[16, 16, 0] > 200, "the picture is empty"
"""
_PROBE_SECONDS = 120
_SAMPLES = 8  # per pixel
_LARGEST = 16384  # pixels of a side that most drivers draw


class RenderingUnavailable(RuntimeError):
    """OpenGL is unavailable, so meshes cannot be drawn."""


@functools.cache
def _probe_failure() -> str | None:
    """Return why a child process could not render, None if it could."""
    try:
        # -P: modules in the working directory, maybe that of somebody's run, are not imported.
        command = [sys.executable, "-P", "-c", _PROBE]
        told = {"capture_output": True, "text": True, "errors": "replace"}
        done = subprocess.run(command, **told, timeout=_PROBE_SECONDS)
    except subprocess.TimeoutExpired:
        return f"the test picture took more than {_PROBE_SECONDS} s"
    except OSError as error:
        return f"the test process did not start: {error}"
    if done.returncode == 0:
        # Triton and Mesa each bring an LLVM. Triton's crashes the process if it is loaded second,
        # for example by an import of PhysicsNeMo after the first picture; load it first.
        if importlib.util.find_spec("triton") is not None:
            importlib.import_module("triton")
        return None
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    ending = f"signal {-done.returncode}" if done.returncode < 0 else f"code {done.returncode}"
    return f"a test picture ended with {ending}" + (f": {lines[-1].strip()}" if lines else "")


def require_rendering() -> None:
    """Raise unless VTK can render here.

    VTK aborts the process if it finds no OpenGL, so the first call tries in a child process
    (about 2 s); the answer is kept for the life of this process. The error names the packages to
    install.
    """
    reason = _probe_failure()
    if reason is not None:
        raise RenderingUnavailable(
            f"OpenGL is unavailable, and figures of meshes need it: {reason}. On Debian or Ubuntu "
            "install a software renderer: apt-get install libegl1 libgl1 libxrender1"
        )


def lookup_table(colors: Colormap, limits: Limits, no_data: str) -> pv.LookupTable:
    """Return VTK's table of a colour map over `limits`; NaN gets the colour `no_data`."""
    table = pv.LookupTable()
    table.values = (colors(np.arange(colors.N)) * 255).round().astype(np.uint8)
    table.scalar_range = limits
    table.nan_color = no_data
    return table


class MeshRenderer:
    """Paints one canvas again and again, with other values, from other sides."""

    def __init__(self, canvas: Canvas, views: Sequence[View], theme: Theme) -> None:
        require_rendering()
        self._canvas, self._theme = canvas, theme
        # Only geometry: what else the caller's mesh carries is neither copied nor uploaded.
        self._mesh = pv.PolyData()
        self._mesh.copy_structure(canvas.faces)
        # Bare points are about as large as closes the surface; half of them face the viewer.
        area = max(width * height for width, height in (view.size for view in views))
        spacing = np.sqrt(area / max(1, self._mesh.n_points / 2))
        self._point_size = float(np.clip(2.3 * spacing, 2.0, 16.0))
        defaults = pv.themes.Theme()  # pyvista's own, whatever the user has set
        defaults.multi_samples = _SAMPLES
        look = {"lighting": "none", "window_size": (64, 64), "theme": defaults}
        with pv.vtk_verbosity("error"):  # it warns of a missing X server
            self._plotter = pv.Plotter(off_screen=True, **look)
        # What a flat mesh does not cover is no data.
        self._plotter.set_background(theme.no_data if canvas.flat else theme.background)
        self._plotter.enable_parallel_projection()
        if not canvas.flat:
            self._plotter.add_light(pv.Light(light_type="headlight", intensity=1.0))
        if canvas.hidden is not None:
            self._add(canvas.hidden, "hidden", color=theme.no_data)

    def __enter__(self) -> "MeshRenderer":
        return self

    def __exit__(self, *_) -> None:
        self._plotter.close()

    def paint(
        self,
        tokens: Float[np.ndarray, " N"],
        colors: Colormap,
        limits: Limits,
        *,
        shading: float | None = None,
    ) -> None:
        """Colour the mesh by one value per token; `shading` takes the place of the theme's."""
        self._mesh.clear_data()
        data_of(self._mesh, self._canvas.association)["shown"] = self._canvas.values(tokens)
        table = lookup_table(colors, limits, self._theme.no_data)
        # Values, not colours, are interpolated across a face: blue to red passes white.
        look = {"scalars": "shown", "cmap": table, "interpolate_before_map": True}
        self._add(self._mesh, "mesh", shading, **look)

    def paint_plain(self, color: str, edges: str | None = None) -> None:
        """Show the geometry in one colour, with its edges if they get one."""
        self._mesh.clear_data()
        lines = {} if edges is None else {"show_edges": True, "edge_color": edges}
        self._add(self._mesh, "mesh", color=color, line_width=0.5, **lines)

    def _add(self, mesh: pv.PolyData, name: str, shading: float | None = None, **look) -> None:
        flat = self._canvas.flat
        shading = 0.0 if flat else self._theme.shading if shading is None else shading
        self._plotter.add_mesh(  # replaces what has this name
            mesh,
            name=name,
            copy_mesh=False,
            show_scalar_bar=False,
            reset_camera=False,
            render=False,
            lighting=not flat,
            ambient=1.0 - shading,
            diffuse=shading,
            specular=0.0,
            point_size=self._point_size,
            **look,
        )

    def picture(self, view: View) -> Pixels:
        """Return what a view shows, in its size."""
        width, height = view.size
        if max(view.size) > _LARGEST:
            raise ValueError(
                f"a picture of {width} x {height} pixels is more than OpenGL draws ({_LARGEST} a "
                "side); lower dpi or panel_width of the theme"
            )
        axes, spans = view.camera.axes(), np.ptp(view.window, axis=1)
        room, focus = spans.max(), axes.T @ view.window.mean(axis=1)
        eye = self._plotter.camera
        eye.position, eye.focal_point, eye.up = focus + axes[2] * 2 * room, focus, axes[1]
        eye.parallel_scale = spans[1] / 2
        eye.clipping_range = (room, 3 * room)
        with pv.vtk_verbosity("error"):
            self._plotter.window_size = view.size
            image = self._plotter.screenshot(return_img=True)
        return np.ascontiguousarray(image[..., :3])


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

    `path` ends in ``.html``; colour `limits` are percentiles 0.5 and 99.5 by default. The other
    arguments are as in :func:`plot_comparison`. Raises :class:`MissingExtra` without the extra
    ``html``.
    """
    require_html()
    require_rendering()
    path = Path(path)
    canvas = make_canvas(mesh, len(values), association=association)
    table = lookup_table(theme.fields(), limits or field_limits(values), theme.no_data)
    with pv.vtk_verbosity("error"):
        plotter = pv.Plotter(off_screen=True)
    plotter.set_background(theme.background)
    shown, place = canvas.values(np.asarray(values)), canvas.association
    plotter.add_mesh(
        canvas.faces, scalars=shown, preference=place, cmap=table, show_scalar_bar=False
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as draft:
        plotter.trame.export_html(draft)
    plotter.close()
    return path
