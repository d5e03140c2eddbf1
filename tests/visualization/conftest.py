import numpy as np
import pytest
import pyvista as pv

from physicsnemo_flarepp.visualization import Theme
from physicsnemo_flarepp.visualization.pages import Page


@pytest.fixture
def small():
    """Small pictures: rendering is in software."""
    return Theme(dpi=60, panel_width=1.5)


@pytest.fixture
def grid():
    """A bent structured grid of 11 x 7 points."""
    x, y = np.meshgrid(np.linspace(0, 2, 11), np.linspace(0, 1, 7))
    mesh = pv.StructuredGrid()
    mesh.points = np.stack([x, y + 0.1 * x**2, 0 * x], -1).reshape(-1, 3)
    mesh.dimensions = (11, 7, 1)
    return mesh


@pytest.fixture
def car():
    """A box on which six sides can be told apart, 4 x 2 x 1, flow along x."""
    return pv.Box((0, 4, -1, 1, 0, 1), level=3, quads=False)


@pytest.fixture
def pages(monkeypatch):
    """The pages of the figures drawn so far, to look at what is on them."""
    found, leave = [], Page.__exit__
    monkeypatch.setattr(Page, "__exit__", lambda page, *_: (found.append(page), leave(page, *_))[1])
    return found
