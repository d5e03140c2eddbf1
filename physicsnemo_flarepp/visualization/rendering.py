"""Pictures of a mesh from VTK, off screen, at exact pixel sizes."""

import functools
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pyvista as pv
from jaxtyping import Float, UInt8
from matplotlib.colors import Colormap
from vtkmodules.vtkCommonCore import vtkLogger

from .cameras import Camera
from .theme import Theme

Limits = tuple[float, float]

_PROBE = """
import pyvista
plotter = pyvista.Plotter(off_screen=True, window_size=(32, 32))
plotter.add_mesh(pyvista.Plane(), color="red", lighting=False)
assert plotter.screenshot(return_img=True)[16, 16, 0] > 200, "the picture is empty"
"""
_PROBE_SECONDS = 120
_SAMPLES = 8  # per pixel
_LARGEST = 16384  # pixels of a side, as most drivers have it


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Keep VTK's line about a missing X server out of the terminal; errors are still printed."""
    kept = vtkLogger.GetCurrentVerbosityCutoff()
    vtkLogger.SetStderrVerbosity(vtkLogger.VERBOSITY_ERROR)
    try:
        yield
    finally:
        vtkLogger.SetStderrVerbosity(kept)


class RenderingUnavailable(RuntimeError):
    """No OpenGL can be had, so that no picture of a mesh can be made."""


@functools.cache
def _probe_failure() -> str | None:
    """Return why a child process could not render, None if it could."""
    try:
        done = subprocess.run(
            # Modules in the working directory, maybe that of somebody's run, are not imported.
            [sys.executable, "-P", "-c", _PROBE],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"the test picture took more than {_PROBE_SECONDS} s"
    except OSError as error:
        return f"the test process did not start: {error}"
    if done.returncode == 0:
        return None
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    ending = f"signal {-done.returncode}" if done.returncode < 0 else f"code {done.returncode}"
    return f"a test picture ended with {ending}" + (f": {lines[-1].strip()}" if lines else "")


def require_rendering() -> None:
    """Raise unless VTK can render here.

    VTK aborts the process where it finds no OpenGL, so the first call tries in a child process
    (about 2 s); the answer is kept for the life of this process.

    Raises
    ------
    RenderingUnavailable
        With the Debian packages to install.
    """
    reason = _probe_failure()
    if reason is not None:
        raise RenderingUnavailable(
            f"figures of meshes need OpenGL, and {reason}. On Debian or Ubuntu install a software "
            "renderer: apt-get install libegl1 libgl1 libxrender1. Everything but figures works "
            "without"
        )
    _load_triton_first()


def _default_theme() -> pv.themes.Theme:
    """Return pyvista's own defaults, whatever the user has set."""
    theme = pv.themes.Theme()
    theme.multi_samples = _SAMPLES
    return theme


@functools.cache
def _load_triton_first() -> None:
    """Load Triton, where it is installed, before Mesa.

    Both bring an LLVM of their own. Triton's crashes the process if it is loaded second, for
    example by an import of PhysicsNeMo after the first picture; the other order works.
    """
    if importlib.util.find_spec("triton") is not None:
        importlib.import_module("triton")


def lookup_table(colors: Colormap, limits: Limits, no_data: str) -> pv.LookupTable:
    """Return VTK's table of a colour map over `limits`; NaN gets the colour `no_data`.

    Examples
    --------
    >>> import matplotlib
    >>> table = lookup_table(matplotlib.colormaps["viridis"], (0.0, 2.0), "grey")
    >>> table.scalar_range, table.n_values
    ((0.0, 2.0), 256)
    """
    table = pv.LookupTable()
    table.values = (colors(np.arange(colors.N)) * 255).round().astype(np.uint8)
    table.scalar_range = limits
    table.nan_color = no_data
    return table


class MeshRenderer:
    """Paints one mesh again and again, with other values, from other sides.

    Parameters
    ----------
    mesh : pyvista.PolyData
        The surface or flat mesh; only its geometry is used.
    theme : Theme
        Colours and shading.
    flat : bool
        Whether the mesh lies in a plane: no shading, and what it does not cover is no data.
    hidden : pyvista.PolyData, optional
        Faces without data, drawn in the colour of no data.
    point_size : float
        Pixels of a point, for meshes that have no faces.

    Examples
    --------
    >>> from .cameras import PLAN
    >>> from .theme import LIGHT
    >>> with MeshRenderer(pv.Plane(), LIGHT, flat=True) as renderer:
    ...     renderer.paint_plain("#ff0000")
    ...     image = renderer.picture(PLAN, (-0.5, 0.5, -0.5, 0.5), (20, 10))
    >>> image.shape, image[5, 10].tolist()
    ((10, 20, 3), [255, 0, 0])
    """

    def __init__(
        self,
        mesh: pv.PolyData,
        theme: Theme,
        *,
        flat: bool,
        hidden: pv.PolyData | None = None,
        point_size: float = 4.0,
    ) -> None:
        require_rendering()
        # Only geometry: what else the caller's mesh carries is neither copied nor uploaded.
        self._mesh = pv.PolyData()
        self._mesh.copy_structure(mesh)
        self._theme = theme
        self._flat = flat
        self._point_size = point_size
        self._depth: dict[str, tuple[float, float]] = {}
        self._points = [
            part.points for part in (mesh, hidden) if part is not None and part.n_points
        ]
        with _without_warnings():
            self._plotter = pv.Plotter(
                off_screen=True, lighting="none", window_size=(64, 64), theme=_default_theme()
            )
        self._plotter.set_background(theme.no_data if flat else theme.background)
        self._plotter.enable_parallel_projection()
        if not flat:
            self._plotter.add_light(pv.Light(light_type="headlight", intensity=1.0))
        if hidden is not None:
            self._add(hidden, "hidden", color=theme.no_data)

    def __enter__(self) -> "MeshRenderer":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """Free the render window."""
        self._plotter.close()

    def paint(
        self,
        values: Float[np.ndarray, " n"],
        association: str,
        colors: Colormap,
        limits: Limits,
        *,
        shading: float | None = None,
    ) -> None:
        """Colour the mesh by one value per point or cell; NaN is no data.

        `shading` takes the place of the theme's.
        """
        self._mesh.clear_data()
        data = self._mesh.point_data if association == "point" else self._mesh.cell_data
        data["shown"] = values
        table = lookup_table(colors, limits, self._theme.no_data)
        # Values, not colours, are interpolated across a face: blue to red passes through white.
        self._add(
            self._mesh,
            "mesh",
            shading,
            scalars="shown",
            cmap=table,
            interpolate_before_map=True,
        )

    def paint_plain(self, color: str, edges: str | None = None) -> None:
        """Show the geometry in one colour, with its edges if they get one."""
        self._mesh.clear_data()
        lines = {} if edges is None else {"show_edges": True, "edge_color": edges}
        self._add(self._mesh, "mesh", color=color, line_width=0.5, **lines)

    def _add(self, mesh: pv.PolyData, name: str, shading: float | None = None, **look) -> None:
        shading = 0.0 if self._flat else self._theme.shading if shading is None else shading
        self._plotter.add_mesh(  # replaces what has this name
            mesh,
            name=name,
            copy_mesh=False,
            show_scalar_bar=False,
            reset_camera=False,
            render=False,
            lighting=not self._flat,
            ambient=1.0 - shading,
            diffuse=shading,
            specular=0.0,
            point_size=self._point_size,
            **look,
        )

    def picture(
        self, camera: Camera, window: tuple[float, float, float, float], size: tuple[int, int]
    ) -> UInt8[np.ndarray, "height width 3"]:
        """Return what `camera` sees in a window of its picture plane.

        Parameters
        ----------
        camera : Camera
            Where to look from.
        window : tuple of float
            (left, right, bottom, top) along the camera's right and up axes.
        size : tuple of int
            Width and height in pixels, of the aspect ratio of the window.
        """
        if max(size) > _LARGEST:
            raise ValueError(
                f"a picture of {size[0]} x {size[1]} pixels is more than OpenGL draws "
                f"({_LARGEST} a side); lower dpi or panel_width of the theme"
            )
        left, right, bottom, top = window
        axes = camera.axes()
        if camera.name not in self._depth:
            ends = [camera.extent(points)[2] for points in self._points]
            self._depth[camera.name] = (min(e[0] for e in ends), max(e[1] for e in ends))
        near, far = self._depth[camera.name]
        room = max(far - near, right - left, top - bottom)
        focus = axes.T @ [(left + right) / 2, (bottom + top) / 2, (near + far) / 2]
        view = self._plotter.camera
        view.focal_point = focus
        view.position = focus + axes[2] * 2 * room
        view.up = axes[1]
        view.parallel_scale = (top - bottom) / 2
        view.clipping_range = (room, 3 * room)
        with _without_warnings():
            self._plotter.window_size = size
            image = self._plotter.screenshot(return_img=True)
        return np.ascontiguousarray(image[..., :3])
