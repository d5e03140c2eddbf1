import importlib.util

import numpy as np
import pytest
import pyvista as pv

from physicsnemo_flarepp.visualization import MissingExtra, export_html


def test_interactive_page_names_the_missing_extra(grid, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install 'physicsnemo-flarepp\[html\]'"):
        export_html(tmp_path / "page.html", grid, np.ones(77))


def test_interactive_page_shows_the_field(grid, tmp_path, monkeypatch):
    """With a stand-in for trame-pyvista, which writes what the scene holds."""
    shown = {}

    class Component:
        def __init__(self, plotter):
            self.plotter = plotter

        def export_html(self, path):
            mesh = self.plotter.mesh
            shown.update(range=self.plotter.mapper.scalar_range, n=mesh.n_cells)
            path.write_text("<html></html>")

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(pv.Plotter, "trame", property(Component), raising=False)
    path = export_html(tmp_path / "a" / "page.html", grid, np.linspace(0, 1, 77), limits=(0, 2))
    assert path.read_text() == "<html></html>"
    assert shown == {"range": (0.0, 2.0), "n": 60}
