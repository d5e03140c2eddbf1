"""From the mesh or cloud of a case and its token values to faces to paint, and their limits."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyvista as pv
from jaxtyping import Bool, Float, Int

from ..meshes.measures import cloud_triangles

Crop = tuple[float, float, float, float]
Limits = tuple[float, float]
# Fields show the range between these percentiles of the reference, errors up to the last of the
# larger |error| (paper, "Rendering conventions").
FIELD_PERCENTILES = (0.5, 99.5)
TOP_PERCENTILE = 99.5
_SOLIDS = {"TETRA", "HEXAHEDRON", "VOXEL", "WEDGE", "PYRAMID", "POLYHEDRON"}
_ASIDE = 1e-4  # of the extent: a plane between two layers of cells would belong to neither


def triangulate_cloud(
    points: Float[np.ndarray, "N d"], *, alpha: float | None = None
) -> pv.PolyData:
    r"""Triangulate a planar point cloud and leave its voids open (an alpha shape).

    Parameters
    ----------
    points : numpy.ndarray
        Shape :math:`(N, 2)`, or :math:`(N, 3)` in a plane of constant z.
    alpha : float, optional
        Faces with a circumradius beyond it are dropped. By default circumradii are compared with
        the spacing of the points around each face, so that clouds may be graded.

    Returns
    -------
    pyvista.PolyData
        Triangles on the points, in their order.

    Examples
    --------
    A ring of two circles keeps its hole:

    >>> angle = np.linspace(0, 2 * np.pi, 60, endpoint=False)
    >>> circle = np.stack([np.cos(angle), np.sin(angle)], -1)
    >>> ring = triangulate_cloud(np.concatenate([circle, 1.1 * circle]))
    >>> bool(abs(ring.area - np.pi * (1.1**2 - 1)) < 0.01)
    True
    """
    points = np.asarray(points, float)
    if points.ndim != 2 or points.shape[1] not in (2, 3) or len(points) < 3:
        raise ValueError(f"points has shape {points.shape}, expected (N >= 3, 2 or 3)")
    if points.shape[1] == 3 and np.ptp(points[:, 2]) > 1e-6 * np.ptp(points[:, :2]):
        raise ValueError("points do not lie in a plane of constant z, so they have no triangles")
    plane = points[:, :2]
    faces = cloud_triangles(plane, alpha)
    if not len(faces):
        raise ValueError(f"alpha = {alpha} drops every face; choose a larger one")
    return pv.PolyData.from_regular_faces(np.pad(plane, ((0, 0), (0, 1))), faces)


def association_of(
    mesh: pv.DataSet, n_values: int, association: str = "auto", what: str = "values"
) -> str:
    """Return whether `n_values` values belong to the ``point`` or the ``cell`` of a mesh."""
    counts = {"point": mesh.n_points, "cell": mesh.n_cells}
    if association == "auto" and is_cloud(mesh):
        association = "point"  # it stores a vertex cell for each point
    fits = [kind for kind, n in counts.items() if n == n_values and association in ("auto", kind)]
    if len(fits) != 1:
        raise ValueError(
            f"{n_values} {what} for a mesh of {mesh.n_points} points and {mesh.n_cells} cells, "
            f"association {association!r}; give one value for each 'point' or 'cell', and say which"
        )
    return fits[0]


def is_cloud(mesh: pv.DataSet) -> bool:
    """Return whether a mesh has points but no lines, faces or volumes."""
    return isinstance(mesh, pv.PolyData) and mesh.n_faces + mesh.n_strips + mesh.n_lines == 0


def is_flat(mesh: pv.DataSet) -> bool:
    """Return whether a mesh lies in a plane of constant z."""
    x, y, z = np.ptp(np.reshape(mesh.bounds, (3, 2)), axis=1)
    return bool(z <= 1e-6 * max(x, y))


def is_volume(mesh: pv.DataSet) -> bool:
    """Return whether a mesh fills space, so that its surface shows little of it."""
    if isinstance(mesh, pv.PolyData) or is_flat(mesh):
        return False
    kinds = np.unique(mesh.cast_to_unstructured_grid().celltypes)
    return any(pv.CellType(kind).name in _SOLIDS for kind in kinds)


def data_of(mesh: pv.DataSet, association: str) -> pv.DataSetAttributes:
    """Return the arrays at the points or at the cells of a mesh."""
    return mesh.point_data if association == "point" else mesh.cell_data


def slice_volume(
    mesh: pv.DataSet, values: Float[np.ndarray, "N Q"], association: str, axis: int = 1
) -> tuple[pv.PolyData, np.ndarray]:
    """Cut a volume in the middle of an axis, and lay the cut into the plane z = 0.

    Returns the cut with the values at its cells or, interpolated, at its points.
    """
    (place, cut, found) = next(cut_volume(mesh, values, association, axis, [0.5 + _ASIDE]))
    if cut.n_cells == 0:
        low, high = np.reshape(mesh.bounds, (3, 2))[axis]
        raise ValueError(
            f"the plane {'xyz'[axis]} = {place:g} meets no cell of the volume, which spans "
            f"{low:g} to {high:g}"
        )
    page = np.zeros_like(cut.points)
    page[:, :2] = np.delete(cut.points, axis, axis=1)
    return pv.PolyData(page, faces=cut.faces), found


def cut_volume(
    mesh: pv.DataSet,
    values: Float[np.ndarray, "N Q"],
    association: str,
    axis: int,
    shares: Iterable[float],
) -> Iterator[tuple[float, pv.PolyData, np.ndarray]]:
    """Yield place, cut and its values, across an axis at shares of the extent."""
    low, high = np.reshape(mesh.bounds, (3, 2))[axis]
    bare = mesh.cast_to_unstructured_grid()
    bare.clear_data()
    data_of(bare, association)["values"] = np.asarray(values)
    for share in shares:
        centre = np.array(mesh.center)
        centre[axis] = low + share * (high - low)
        cut = bare.slice(normal="xyz"[axis], origin=centre)
        found = np.asarray(data_of(cut, association)["values"]) if cut.n_cells else np.empty(0)
        yield centre[axis], cut, found.reshape(-1, np.shape(values)[1])


@dataclass(frozen=True)
class Canvas:
    """What is drawn of a case: faces (or bare points) with values, and `hidden` ones in grey."""

    faces: pv.PolyData
    hidden: pv.PolyData | None
    association: str
    rows: Int[np.ndarray, " n"] | None  # token of each point or cell; None in token order
    flat: bool
    shown: Bool[np.ndarray, " N"]  # tokens that can be seen

    def values(self, tokens: Float[np.ndarray, " N"]) -> Float[np.ndarray, " n"]:
        """Return the value of each point or cell of `faces` from one value per token."""
        return tokens if self.rows is None else tokens[self.rows]


def make_canvas(
    mesh: pv.DataSet,
    n_tokens: int,
    *,
    association: str = "auto",
    mask: Bool[np.ndarray, " N"] | None = None,
    crop: Crop | None = None,
) -> Canvas:
    """Prepare a mesh of any kind for painting, with arguments as in ``plot_comparison``.

    Grids and volumes give their outer faces, planar point clouds are triangulated without
    bridging voids, other clouds stay points. A face with a masked corner has no data.
    """
    association = association_of(mesh, n_tokens, association)
    if is_cloud(mesh):
        association = "point"  # files of cell centres say "cell", but here they are points
    mask = np.ones(n_tokens, bool) if mask is None else np.asarray(mask)
    if mask.dtype != bool or mask.shape != (n_tokens,):
        found = f"{mask.dtype} of shape {mask.shape}"
        raise ValueError(f"mask must be boolean of shape ({n_tokens},), got {found}")
    flat = is_flat(mesh)
    shown = mask & _inside(mesh, association, crop, flat)
    if not shown.any():
        raise ValueError(f"mask and crop {crop} leave no token with data")
    rows, faces = None, mesh
    if is_cloud(mesh):
        faces = triangulate_cloud(mesh.points) if flat else mesh
    elif not isinstance(mesh, pv.PolyData):
        ids = {"pass_pointid": True, "pass_cellid": True}
        faces = mesh.extract_surface(**ids, algorithm="dataset_surface")
        kind = "vtkOriginalPointIds" if association == "point" else "vtkOriginalCellIds"
        rows = np.asarray(data_of(faces, association)[kind])
    canvas = Canvas(faces, None, association, rows, flat, shown)
    return canvas if mask.all() else _without_masked(canvas, canvas.values(mask))


def _without_masked(whole: Canvas, known: Bool[np.ndarray, " n"]) -> Canvas:
    """Split the faces into those with data at every corner and the others."""
    marked = pv.PolyData()
    marked.copy_structure(whole.faces)
    marked.point_data["row"] = np.arange(marked.n_points)
    marked.cell_data["row"] = np.arange(marked.n_cells)
    if is_cloud(marked):
        parts = [pv.PolyData(marked.points[chosen]) for chosen in (known, ~known)]
        rows = np.flatnonzero(known)
    else:
        kept = known
        if whole.association == "point":
            touched = marked.extract_points(np.flatnonzero(~known), adjacent_cells=True)
            kept = ~np.isin(np.arange(marked.n_cells), touched.cell_data["row"])
        if not kept.any():
            raise ValueError("mask leaves no face with data at all its corners to draw")
        cells = [marked.extract_cells(np.flatnonzero(chosen)) for chosen in (kept, ~kept)]
        parts = [part.extract_surface(algorithm="dataset_surface") for part in cells]
        rows = np.asarray(data_of(parts[0], whole.association)["row"])
    rows = rows if whole.rows is None else whole.rows[rows]
    return Canvas(*parts, whole.association, rows, whole.flat, whole.shown)


def _inside(
    mesh: pv.DataSet, association: str, crop: Crop | None, flat: bool
) -> Bool[np.ndarray, " N"] | bool:
    if crop is None:
        return True
    if not flat:
        raise ValueError(f"crop is {crop}, but the mesh is not planar; choose cameras instead")
    x_min, x_max, y_min, y_max = crop
    if not (x_min < x_max and y_min < y_max):
        raise ValueError(f"crop is {crop}, expected (x_min, x_max, y_min, y_max), minima first")
    x, y = (mesh.points if association == "point" else mesh.cell_centers().points)[:, :2].T
    inside = (x >= x_min) & (x <= x_max) & (y >= y_min) & (y <= y_max)
    if not inside.any():
        raise ValueError(f"crop {crop} holds no token; the mesh spans {tuple(mesh.bounds)[:4]}")
    return inside


def check_values(
    name: str,
    values: np.ndarray,
    n: int,
    mask: Bool[np.ndarray, " N"] | None = None,
    what: str = "token",
) -> Float[np.ndarray, " N"]:
    """Return a finite float for each token or case with data, (N,), or raise with the name."""
    values = np.asarray(values)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.shape != (n,) or n == 0:
        raise ValueError(f"{name} has shape {values.shape}, expected ({n},): one value per {what}")
    if values.dtype.kind not in "fiu":
        raise TypeError(f"{name} holds {values.dtype}, expected real numbers")
    bad = np.flatnonzero(~np.isfinite(values) & (True if mask is None else mask))
    if len(bad):
        raise ValueError(
            f"{name} holds {values[bad[0]]} at {what} {bad[0]} ({len(bad)} of {n} are not finite)"
        )
    return values.astype(np.float64)


def field_limits(values: Float[np.ndarray, " N"]) -> Limits:
    """Return percentiles 0.5 and 99.5, or a wider range where these are equal."""
    for low, high in (np.percentile(values, FIELD_PERCENTILES), (np.min(values), np.max(values))):
        if high > low:
            return float(low), float(high)
    spread = max(abs(float(low)), 1.0) * 1e-3  # a constant field still needs a scale
    return float(low) - spread, float(low) + spread


def error_limits(errors: Mapping[str, Float[np.ndarray, " N"]]) -> Limits:
    """Return limits about 0 at the 99.5th percentile of the larger |error|."""
    largest = max(float(np.percentile(np.abs(e), TOP_PERCENTILE)) for e in errors.values())
    largest = largest or max(float(np.abs(e).max()) for e in errors.values()) or 1.0
    return -largest, largest
