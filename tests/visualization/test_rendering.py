import subprocess
import sys

import numpy as np
import pytest
import pyvista as pv

from physicsnemo_flarepp.visualization import RenderingUnavailable, rendering, require_rendering
from physicsnemo_flarepp.visualization.canvases import Canvas, make_canvas
from physicsnemo_flarepp.visualization.views import PLAN, View


@pytest.fixture
def fresh_probe():
    rendering._probe_failure.cache_clear()
    yield
    rendering._probe_failure.cache_clear()


@pytest.mark.parametrize(
    ("probe", "reason"),
    [
        ("import os; os.abort()", "ended with signal 6"),
        ("raise SystemExit('no display at all')", "ended with code 1: no display at all"),
        ("import time; time.sleep(30)", "took more than 0.5 s"),
    ],
)
def test_missing_opengl_names_the_packages(probe, reason, fresh_probe, monkeypatch):
    monkeypatch.setattr(rendering, "_PROBE", probe)
    if "sleep" in probe:
        monkeypatch.setattr(rendering, "_PROBE_SECONDS", 0.5)
    with pytest.raises(RenderingUnavailable) as caught:
        require_rendering()
    assert reason in str(caught.value)
    assert "apt-get install libegl1 libgl1 libxrender1" in str(caught.value)


def test_probe_runs_once(fresh_probe, monkeypatch):
    calls = []

    def run(command, **_):
        calls.append(command)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    require_rendering()
    require_rendering()
    assert len(calls) == 1 and calls[0][0] == sys.executable


PICTURE_BEFORE_TRITON = """
import numpy, pyvista
from physicsnemo_flarepp.visualization import Theme, plot_comparison
ones = numpy.ones(121)
small = Theme(dpi=40, panel_width=1.0)
plot_comparison(pyvista.Plane(), ones, {"a": ones}, field="u", theme=small)
import tensordict, physicsnemo
"""


@pytest.mark.slow
def test_physicsnemo_can_be_imported_after_the_first_picture():
    command = [sys.executable, "-c", PICTURE_BEFORE_TRITON]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_user_theme_of_pyvista_does_not_matter(car, small, monkeypatch):
    from physicsnemo_flarepp.visualization import plot_comparison

    values = np.arange(car.n_cells, dtype=float)
    pictures = []
    for edges in (False, True):
        monkeypatch.setattr(pv.global_theme, "show_edges", edges)
        drawn = plot_comparison(car, values, {"a": values}, field="p", theme=small)
        pictures.append(drawn.image)
    np.testing.assert_array_equal(*pictures)


@pytest.mark.slow
def test_probe_itself_renders():
    done = subprocess.run([sys.executable, "-c", rendering._PROBE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_pictures_beyond_opengl_are_refused(small):
    view = View(PLAN, np.array([(-0.5, 0.5), (-50, 50), (0, 0)]), (480, 48000))
    with rendering.MeshRenderer(make_canvas(pv.Plane(), 121), [view], small) as renderer:
        renderer.paint_plain("#ff0000")
        with pytest.raises(ValueError, match="480 x 48000 pixels is more than OpenGL draws"):
            renderer.picture(view)


@pytest.mark.slow
def test_faces_without_data_are_not_cut_off_in_depth(small):
    """Far behind and in front of what carries values, they are still seen."""
    plane = pv.Plane(i_size=1, j_size=1)
    for height in (-9.0, 9.0):
        beside = plane.translate((1.0, 0.0, height))
        canvas = Canvas(plane, beside, "point", None, True, np.ones(plane.n_points, bool))
        view = View(PLAN, PLAN.extent(canvas), (40, 20))
        with rendering.MeshRenderer(canvas, [view], small) as renderer:
            renderer.paint_plain("#ff0000")
            picture = renderer.picture(view)
        assert picture[10, 10].tolist() == [255, 0, 0]
        np.testing.assert_allclose(picture[10, 30], 0xB4, atol=1)
