"""Meshes drawn by PhysicsNeMo's own transforms carry what their cells stand for."""

import numpy as np
import pytest
import torch
from physicsnemo.datapipes.transforms.mesh import SubsampleMesh
from physicsnemo.mesh import Mesh
from physicsnemo.mesh.calculus.measure import cell_measures
from physicsnemo.mesh.io import from_pyvista, to_pyvista

from physicsnemo_flarepp.datapipes import OwnReader, from_meshes
from physicsnemo_flarepp.datapipes.inspection import inspect_data
from physicsnemo_flarepp.datapipes.readers.memory import MemoryReader
from physicsnemo_flarepp.evaluation.forces import surface_areas
from physicsnemo_flarepp.meshes import read_mesh, read_polygons
from physicsnemo_flarepp.meshes.measures import stored_measure

WEIGHTS = {"weights": "measure"}


def drawn(box_surface, n_cells=(30, 20), effective=False):
    """A surface drawn twice, so that factors compose; as 2.2 notes them, or as 2.3 does."""
    mesh = from_pyvista(box_surface(4).triangulate())
    mesh.cell_data["p"] = torch.arange(mesh.n_cells, dtype=torch.float32)
    for n in n_cells:
        mesh = SubsampleMesh(n_cells=n)(mesh)
    expected = cell_measures(mesh).double().numpy()
    if effective:
        mesh.cell_data["_effective_measure"] = cell_measures(mesh)
        del mesh.cell_data["_measure_weights"]
    return mesh, expected


def write(mesh, root, suffix):
    for i in range(2):
        if suffix == ".pmsh":
            mesh.save(root / f"case_{i}.pmsh")
        else:
            to_pyvista(mesh).save(root / f"case_{i}{suffix}")


@pytest.mark.parametrize("effective", [False, True], ids=["2.2", "2.3"])
@pytest.mark.parametrize("suffix", [".pmsh", ".vtp", None])
def test_drawn_cells_weigh_what_they_stand_for(effective, suffix, tmp_path, box_surface):
    mesh, expected = drawn(box_surface, effective=effective)
    if suffix is None:
        reader = MemoryReader(from_meshes([mesh] * 2), "train", options=WEIGHTS)
    else:
        write(mesh, tmp_path, suffix)
        reader = OwnReader(tmp_path, options=WEIGHTS)
        roles = {found.name: found.role for found in inspect_data(tmp_path).found}
        assert {roles.pop(name) for name in list(roles) if name.startswith("_")} == {"weights"}
    np.testing.assert_allclose(reader[0][0]["weights"], expected, rtol=1e-6)
    assert "p" in reader.names.fields and not any("measure" in name for name in reader.names.fields)
    assert not any("_measure" in line for line in reader.describe_names())
    few = MemoryReader(from_meshes([mesh] * 2), "train", options={**WEIGHTS, "n_points": 5})
    chosen = few[0][0]
    np.testing.assert_allclose(chosen["weights"], expected[chosen["tokens"]], rtol=1e-6)


@pytest.mark.parametrize("effective", [False, True], ids=["2.2", "2.3"])
def test_points_share_what_drawn_cells_stand_for(effective, box_surface):
    mesh, expected = drawn(box_surface, effective=effective)
    mesh.point_data["u"] = torch.rand(mesh.n_points)
    data = from_meshes([mesh] * 2, fields=["u"], association="points")
    weights = MemoryReader(data, "train", options=WEIGHTS)[0][0]["weights"]
    shares = torch.zeros(mesh.n_points, dtype=torch.float64)
    for cell, area in zip(mesh.cells, expected, strict=True):
        shares[cell] += area / 3
    used = shares > 0
    np.testing.assert_allclose(weights[used], shares[used], rtol=1e-6)


def test_clouds_and_volumes_carry_theirs(tmp_path):
    points, areas = torch.rand(9, 3), torch.rand(9) + 0.1
    cloud = Mesh(points, point_data={"u": torch.rand(9), "_effective_measure": areas})
    reader = MemoryReader(from_meshes([cloud] * 2), "train", options=WEIGHTS)
    np.testing.assert_allclose(reader[0][0]["weights"], areas)
    assert list(reader.names.fields) == ["u"]
    tets = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5]])
    volume = Mesh(points, tets, cell_data={"u": torch.rand(3)})
    volume = SubsampleMesh(n_cells=2)(volume)
    reader = MemoryReader(from_meshes([volume] * 2), "train", options=WEIGHTS)
    np.testing.assert_allclose(reader[0][0]["weights"], cell_measures(volume), rtol=1e-5)


def test_forces_integrate_over_what_drawn_cells_stand_for(tmp_path, box_surface):
    mesh, expected = drawn(box_surface)
    to_pyvista(mesh).save(tmp_path / "drawn.vtp")
    surface = surface_areas(read_polygons(tmp_path / "drawn.vtp"), "cell", "outward")
    np.testing.assert_allclose(surface.areas, expected, rtol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(surface.vectors, axis=1), expected, rtol=1e-6)
    whole = read_mesh(tmp_path / "drawn.vtp", arrays=())
    assert stored_measure(whole, "cell") is None
