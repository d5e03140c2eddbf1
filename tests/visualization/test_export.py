import importlib.util

import numpy as np
import pytest
import pyvista as pv

from physicsnemo_flarepp.visualization import (
    MissingExtra,
    export_fields,
    export_html,
    fields_of_comparison,
)


def test_surface_comes_back_with_all_fields(car, tmp_path):
    car.cell_data["kept out"] = np.zeros(car.n_cells)
    truth = np.arange(car.n_cells, dtype=np.float32)
    shear = np.random.default_rng(0).random((car.n_cells, 3))
    fields = fields_of_comparison("p", truth, {"a": truth + 1}) | {"shear": shear}
    path = export_fields(tmp_path / "new" / "case_1", car, fields)
    assert path == tmp_path / "new" / "case_1.vtp"
    back = pv.read(path)
    assert sorted(back.cell_data) == ["p", "p (a)", "p error (a)", "shear"]
    np.testing.assert_array_equal(back.cell_data["p"], truth)
    np.testing.assert_array_equal(back.cell_data["p error (a)"], np.ones(car.n_cells))
    np.testing.assert_array_equal(back.cell_data["shear"], shear)
    np.testing.assert_array_equal(back.regular_faces, car.regular_faces)
    assert "kept out" in car.cell_data
    assert [p.name for p in path.parent.iterdir()] == ["case_1.vtp"]


def test_grid_becomes_unstructured(grid, tmp_path):
    values = np.linspace(0, 1, 77)
    path = export_fields(tmp_path / "case.vtu", grid, {"u": values})
    back = pv.read(path)
    assert isinstance(back, pv.UnstructuredGrid) and back.n_cells == 60
    np.testing.assert_array_equal(back.point_data["u"], values)
    np.testing.assert_allclose(back.points, grid.points)


def test_cloud_keeps_its_points(tmp_path):
    points = np.random.default_rng(0).random((20, 3))
    back = pv.read(export_fields(tmp_path / "c", pv.PolyData(points), {"u": points[:, 0]}))
    np.testing.assert_allclose(back.points, points, rtol=1e-6)
    np.testing.assert_array_equal(back.point_data["u"], points[:, 0])


def test_bad_exports_are_named(car, grid, tmp_path):
    with pytest.raises(ValueError, match="field 'b': 3 values for a mesh of"):
        export_fields(tmp_path / "x", car, {"a": np.ones(car.n_cells), "b": np.ones(3)})
    with pytest.raises(ValueError, match="a StructuredGrid is written as .vtu"):
        export_fields(tmp_path / "x.vtp", grid, {"u": np.ones(77)})
    with pytest.raises(ValueError, match="fields is empty"):
        export_fields(tmp_path / "x", grid, {})
    assert not list(tmp_path.iterdir())


def test_fields_of_points_and_of_cells_do_not_mix(grid, tmp_path):
    with pytest.raises(ValueError, match="field 'b' has 60 values, but 'a' has 77"):
        export_fields(tmp_path / "x", grid, {"a": np.ones(77), "b": np.ones(60)})


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


def test_dots_in_a_name_are_no_suffix(car, tmp_path):
    values = np.ones(car.n_cells)
    for name in ("case_Re_1.5", "case_Re_1.6"):
        assert export_fields(tmp_path / name, car, {"p": values}).name == f"{name}.vtp"
    assert len(list(tmp_path.iterdir())) == 2
