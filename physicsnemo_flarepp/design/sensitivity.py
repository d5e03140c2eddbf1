"""How a quantity changes with the shape: by vertex, per area, along lattices and parameters."""

from dataclasses import dataclass, fields, replace

import numpy as np
import pyvista as pv
import torch
from jaxtyping import Float
from scipy.sparse import coo_matrix, diags
from scipy.sparse.linalg import cg
from scipy.spatial import KDTree

from ..builtin.sets.car_body import RANGES, CarShape, half_surface, whole_surface
from ..datapipes.readers.case_files import reference_values_beside
from ..meshes import PolygonMesh, to_pyvista
from ..meshes.export import add_arrays
from ..meshes.polygons import fan_triangles, unit_vectors
from .lattice import Lattice, make_lattice
from .shape_model import ShapeModel, check_quantity

# In lengths of the body: a few cells of a coarse mesh.
_SMOOTHING = 0.02
# Steps of finite differences in double precision, in lengths of the body.
_STEP = 1e-4
# Vertices of a file in single precision are this far from those of the car of its parameters.
_SAME_VERTEX = 1e-4


@dataclass(frozen=True)
class Sensitivity:
    """The derivative of a quantity by the shape.

    `per_area` is the change per outward displacement and area at each vertex: integrated with a
    normal displacement over the surface it gives the change.
    """

    quantity: str
    value: float  #: of the given shape
    vectors: Float[np.ndarray, "P 3"]  #: derivative by each vertex
    per_area: Float[np.ndarray, " P"]
    smoothing: float  #: length over which that is averaged


def shape_sensitivity(
    shape: ShapeModel, quantity: str, *, smoothing: float | None = None
) -> Sensitivity:
    """Return the derivative of a quantity by every vertex, of one reverse pass.

    `smoothing` is the length over which :attr:`Sensitivity.per_area` is averaged, by default 2 % of
    the largest extent. What moves a single vertex does to normals depends on its cells: without
    smoothing the map is exact, and different on every mesh.
    """
    check_quantity(quantity, shape.run, shape.settings)
    values, gradient = shape.gradient(shape.points, {quantity: 1.0})
    vectors = gradient.numpy()
    if smoothing is None:
        smoothing = _SMOOTHING * float(np.ptp(shape.mesh.points, axis=0).max())
    per_area = normal_part(shape, vectors, smoothing)
    return Sensitivity(quantity, values[quantity], vectors, per_area, smoothing)


def normal_part(
    shape: ShapeModel, vectors: Float[np.ndarray, "P 3"], smoothing: float = 0.0
) -> Float[np.ndarray, " P"]:
    """Return the normal part of derivatives by vertices per area, (P,)."""
    # With a length l it solves (M + l^2 K) g = G: M has the areas of the vertices, K is the
    # stiffness of linear elements, G the normal part. That leaves integrals as they are.
    area_vectors, areas = shape.mesh.vertex_areas
    along = np.einsum("ij,ij->i", vectors, shape.outward * unit_vectors(area_vectors))
    known = areas > 0  # a vertex of no cell has none
    if smoothing <= 0:
        return np.divide(along, areas, out=np.zeros_like(along), where=known)
    mass = diags(np.where(known, areas, 1.0))
    system = (mass + smoothing**2 * stiffness(shape.mesh)).tocsr()
    found, failed = cg(system, along, rtol=1e-8, M=diags(1 / system.diagonal()), maxiter=5000)
    if failed:
        raise ValueError(f"smoothing over {smoothing:g} did not converge; repair thin cells")
    return found


def stiffness(mesh: PolygonMesh) -> coo_matrix:
    """Return the stiffness matrix of linear elements on a surface, (P, P)."""
    triangles = fan_triangles(mesh.connectivity, mesh.offsets)
    corners = np.asarray(mesh.points, dtype=float)[triangles]
    opposite = corners[:, [2, 0, 1]] - corners[:, [1, 2, 0]]  # the edge across from each corner
    doubled = np.linalg.norm(np.cross(opposite[:, 0], opposite[:, 1]), axis=1)
    local = np.einsum("tix,tjx->tij", opposite, opposite)
    local /= 2 * np.maximum(doubled, 1e-300)[:, None, None]
    rows, columns = np.broadcast_arrays(triangles[:, :, None], triangles[:, None, :])
    n = len(mesh.points)
    return coo_matrix((local.ravel(), (rows.ravel(), columns.ravel())), shape=(n, n)).tocsr()


def car_directions(shape: ShapeModel) -> dict[str, Float[np.ndarray, "P 3"]]:
    """Return how vertices move with each shape parameter of a built-in car; else nothing.

    The parameters are those of ``geo_ref_*.csv`` beside the file.
    """
    stored = reference_values_beside(shape.mesh.source)
    names = [field.name for field in fields(CarShape)]
    if not set(names) <= stored.keys():
        return {}
    car = CarShape(**{name: stored[name] for name in names})
    points = np.asarray(shape.mesh.points, dtype=float)
    distance, nearest = KDTree(_vertices(car)).query(points)
    if distance.max() > _SAME_VERTEX:
        return {}  # remeshed or changed
    directions = {}
    for name in names:
        step = 1e-4 * (RANGES[name][1] - RANGES[name][0])
        ends = [_vertices(replace(car, **{name: stored[name] + s * step})) for s in (1, -1)]
        directions[name] = ((ends[0] - ends[1]) / (2 * step))[nearest]
    return directions


def _vertices(car: CarShape) -> Float[np.ndarray, "P 3"]:
    return whole_surface(*half_surface(car))[0]


def lattice_rows(shape: ShapeModel, found: Sensitivity, lattice: Lattice) -> list[list[object]]:
    """Return a table of control points: numbers, positions, derivatives by displacement."""
    slopes = lattice.pull_back(shape.points, torch.as_tensor(found.vectors))
    places = lattice.positions
    header = ["i", "j", "k", "x", "y", "z", "by_dx", "by_dy", "by_dz"]
    indices = np.ndindex(*lattice.free.shape[:3])
    return [header, *([*i, *places[i].tolist(), *slopes[i].tolist()] for i in indices)]


def sensitivity_mesh(shape: ShapeModel, found: Sensitivity) -> pv.PolyData:
    """Return the surface with the derivative by each vertex and its normal part per area."""
    name = f"d_{found.quantity}"
    arrays = {name: found.vectors, f"{name}_per_area": found.per_area}
    return add_arrays(to_pyvista(shape.mesh), arrays, "point")


def check_gradient(
    shape: ShapeModel, found: Sensitivity, *, directions: int = 3, seed: int = 0
) -> list[tuple[float, float]]:
    """Return derivatives along smooth random directions: as found, and by central differences.

    The differences are those of the run in double precision.
    """
    precise, points = shape.in_double(), shape.points
    lattice = make_lattice(points.numpy(), (4, 4, 4), symmetric=False)
    draw = np.random.default_rng(seed)
    pairs = []
    for _ in range(directions):
        control = torch.as_tensor(draw.normal(size=tuple(lattice.free.shape)))
        direction = lattice.deform(points, control) - points
        step = _STEP * float(lattice.extent.max() / direction.abs().max())
        ends = [precise.values(points + s * step * direction)[found.quantity] for s in (1, -1)]
        along = float((torch.as_tensor(found.vectors) * direction).sum())
        pairs.append((along, (ends[0] - ends[1]) / (2 * step)))
    return pairs


def largest_difference(pairs: list[tuple[float, float]]) -> float:
    """Return the largest difference of derivatives over the largest derivative."""
    return max(abs(a - b) for a, b in pairs) / max(max(abs(b) for _, b in pairs), 1e-300)
