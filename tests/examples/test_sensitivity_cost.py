import numpy as np
import sensitivity_cost

from physicsnemo_flarepp.meshes.measures import clashing_edges, facing, open_edges


def test_the_ball_is_closed_and_faces_outward():
    mesh = sensitivity_cost.lumpy_ball(2000)
    assert 0.9 < mesh.n_cells / 2000 < 1.1
    assert open_edges(mesh) == clashing_edges(mesh) == 0
    assert facing(*mesh.cell_geometry()) == "outward"
    assert np.linalg.norm(mesh.cell_geometry()[1].sum(0)) < 1e-9


def test_a_row_is_measured():
    settings = {"n_hidden": 8, "n_layers": 1, "scratch": None}
    row = sensitivity_cost.measure(2000, settings)
    assert row["cells"] == sensitivity_cost.lumpy_ball(2000).n_cells
    assert row["cpu_ratio"] > 0 and row["gradient_mb"] >= 0
