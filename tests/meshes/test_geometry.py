"""Geometry in torch: the numbers of the NumPy side, and the derivatives of finite differences."""

import numpy as np
import pytest
import pyvista as pv
import torch
from physicsnemo.mesh import Mesh

from physicsnemo_flarepp.meshes import measures, polygon_mesh
from physicsnemo_flarepp.meshes.geometry import frontal_area, surface_tensors
from physicsnemo_flarepp.meshes.polygons import unit_vectors

AXIS = np.array([1.0, 0.2, -0.3])


def body():
    """A closed surface of triangles and quadrilaterals, away from symmetry."""
    box = pv.Box((0, 1, 0, 2, 0, 3), level=1)
    mixed = box.merge(pv.Icosphere(nsub=1, center=(4.0, 1.0, 1.0))).extract_surface(
        algorithm="dataset_surface"
    )
    points = np.asarray(mixed.points, dtype=np.float64)
    moved = points + 0.05 * np.random.default_rng(0).normal(size=points.shape)
    mesh = polygon_mesh(mixed, "body")
    return type(mesh)("body", moved, mesh.connectivity, mesh.offsets)


def differentiate(function, mesh):
    """Directional derivatives by autograd and by central differences of a sum of the results."""
    torch.manual_seed(0)
    points = torch.tensor(mesh.points, requires_grad=True)
    results = function(points)
    cotangents = [torch.randn_like(result) for result in results]
    (gradient,) = torch.autograd.grad(results, points, cotangents)
    direction = torch.randn_like(points)

    def value(step):
        moved = function((points + step * direction).detach())
        return sum((a * b).sum() for a, b in zip(moved, cotangents, strict=True))

    return (gradient * direction).sum(), (value(1e-6) - value(-1e-6)) / 2e-6


@pytest.mark.parametrize("association", ["cell", "point"])
def test_numbers_are_those_of_the_readers_and_derivatives_of_finite_differences(association):
    mesh = body()
    assert len(set(np.diff(mesh.offsets))) == 2

    def quantities(points):
        found = surface_tensors(points, mesh.connectivity, mesh.offsets, association)
        return found.positions, found.vectors, found.areas, found.normals

    centres, vectors = mesh.cell_geometry()
    expected = [centres, vectors, np.linalg.norm(vectors, axis=1)]
    if association == "point":
        expected = [mesh.points, *mesh.vertex_areas]
    found = quantities(torch.tensor(mesh.points))
    for a, b in zip(found, [*expected, unit_vectors(expected[1])], strict=True):
        np.testing.assert_allclose(a.numpy(), b, rtol=0, atol=1e-14)
    torch.testing.assert_close(*differentiate(quantities, mesh), rtol=1e-6, atol=1e-8)


def test_meshes_of_physicsnemo_have_the_same_geometry():
    sphere = pv.Icosphere(nsub=2)
    mesh = Mesh(
        points=torch.tensor(sphere.points, dtype=torch.float64),
        cells=torch.tensor(sphere.regular_faces, dtype=torch.long),
    )
    found = surface_tensors(mesh.points, mesh.cells)
    torch.testing.assert_close(found.positions, mesh.cell_centroids)
    torch.testing.assert_close(found.areas, mesh.cell_areas)
    torch.testing.assert_close(found.normals, mesh.cell_normals)


def test_degenerate_cells_have_finite_derivatives():
    points = torch.tensor([[0.0, 0, 0], [1, 0, 0], [2, 0, 0], [0, 1, 0]], requires_grad=True)
    found = surface_tensors(points, torch.tensor([[0, 1, 2], [0, 1, 3]]))
    assert (found.normals[0] == 0).all() and found.areas[0] == 0
    (found.normals.sum() + found.areas.sum()).backward()
    assert points.grad.isfinite().all()


def test_frontal_area_has_the_derivatives_of_finite_differences():
    mesh = body()
    area = frontal_area(torch.tensor(mesh.points), mesh, AXIS)
    assert area.item() == pytest.approx(measures.frontal_area(mesh, AXIS), rel=1e-12)
    slopes = differentiate(lambda points: [frontal_area(points, mesh, AXIS, lines=300)], mesh)
    torch.testing.assert_close(*slopes, rtol=1e-6, atol=1e-8)


def test_a_larger_silhouette_grows_by_its_outline():
    """Scaled about any point, an area grows with the square: x . dA/dx = 2 A."""
    mesh = body()
    points = torch.tensor(mesh.points, requires_grad=True)
    area = frontal_area(points, mesh, AXIS)
    area.backward()
    assert (points.grad * points.detach()).sum().item() == pytest.approx(2 * area.item())
    assert (points.grad == 0).all(-1).sum() > 0.3 * len(points)  # what does not bound the shadow


@pytest.mark.parametrize(
    "arguments, message",
    [
        (([[0, 1, 4]],), "vertex numbers go from 0 to 4, but the mesh has 4"),
        (([0, 1, 2, 3], [0, 2, 4]), "2 polygons have fewer than 3 vertices"),
        (([[0, 1, 2]], None, "cells"), "association is 'cells'"),
    ],
)
def test_cells_that_are_none_are_named(arguments, message):
    cells, *rest = arguments
    rest = [np.array(r) if isinstance(r, list) else r for r in rest]
    with pytest.raises(ValueError, match=message):
        surface_tensors(torch.rand(4, 3), np.array(cells), *rest)
