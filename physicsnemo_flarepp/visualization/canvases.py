"""From the mesh of a case and its token values to faces that can be painted."""

from dataclasses import dataclass

import numpy as np
import pyvista as pv
from jaxtyping import Bool, Float, Int
from vtkmodules.vtkCommonDataModel import vtkCellArray

from .clouds import triangulate_cloud

ASSOCIATIONS = ("auto", "point", "cell")
Crop = tuple[float, float, float, float]


def association_of(
    mesh: pv.DataSet, n_values: int, association: str = "auto", what: str = "values"
) -> str:
    """Say whether `n_values` values belong to the points or the cells of a mesh.

    Parameters
    ----------
    mesh : pyvista.DataSet
        The mesh.
    n_values : int
        Number of values.
    association : str
        ``point`` or ``cell`` to insist on one, ``auto`` to tell by the number.
    what : str
        What the values are, for errors.

    Examples
    --------
    >>> association_of(pv.Plane(i_resolution=2, j_resolution=2), 4)
    'cell'
    """
    if association not in ASSOCIATIONS:
        raise ValueError(f"association is {association!r}, expected one of {ASSOCIATIONS}")
    counts = {"point": mesh.n_points, "cell": mesh.n_cells}
    if association == "auto":
        # A bare cloud stores one vertex cell per point: its values are those of the points.
        fits = ["point"] if is_cloud(mesh) else [k for k, n in counts.items() if n == n_values]
        if len(fits) == 2:
            raise ValueError(
                f"the mesh has {n_values} points and {n_values} cells; say which of them the "
                "values belong to with association='point' or 'cell'"
            )
        association = fits[0] if fits else "auto"
    if counts.get(association) != n_values:
        raise ValueError(
            f"{n_values} {what} for a mesh of {mesh.n_points} points and {mesh.n_cells} cells"
            + ("" if association == "auto" else f" (association {association!r})")
            + "; give one value per point or per cell of the whole case"
        )
    return association


def is_cloud(mesh: pv.DataSet) -> bool:
    """Whether a mesh has points but no lines, faces or volumes."""
    return isinstance(mesh, pv.PolyData) and mesh.n_faces + mesh.n_strips + mesh.n_lines == 0


def is_flat(mesh: pv.DataSet) -> bool:
    """Whether a mesh lies in a plane of constant z.

    Examples
    --------
    >>> is_flat(pv.Plane()), is_flat(pv.Sphere())
    (True, False)
    """
    bounds = np.reshape(mesh.bounds, (3, 2))
    spans = bounds[:, 1] - bounds[:, 0]
    return bool(spans[2] <= 1e-6 * max(spans[:2]))


@dataclass(frozen=True)
class Canvas:
    """What is drawn of a case.

    Parameters
    ----------
    faces : pyvista.PolyData
        The faces (or bare points) that carry values.
    hidden : pyvista.PolyData or None
        Faces without data, to be drawn grey; None if there are none.
    association : str
        ``point`` or ``cell``.
    rows : numpy.ndarray or None
        Row of the token behind each point or cell of `faces`; None if they are in token order.
    flat : bool
        Whether everything lies in a plane of constant z.
    shown : numpy.ndarray
        Which tokens can be seen, (N,).
    bare : bool
        Whether `faces` are points only.
    """

    faces: pv.PolyData
    hidden: pv.PolyData | None
    association: str
    rows: Int[np.ndarray, " n"] | None
    flat: bool
    shown: Bool[np.ndarray, " N"]
    bare: bool

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
    alpha: float | None = None,
) -> Canvas:
    """Prepare a mesh of any kind for painting.

    Grids and volumes give their outer faces, planar point clouds are triangulated without
    bridging voids, other clouds stay points.

    Parameters
    ----------
    mesh : pyvista.DataSet
        Mesh of the whole case.
    n_tokens : int
        Tokens of the case.
    association : str
        ``point``, ``cell`` or ``auto``.
    mask : numpy.ndarray, optional
        True where a token has data. A face with a masked corner has none.
    crop : tuple of float, optional
        (x_min, x_max, y_min, y_max) of the part that is looked at; flat meshes only.
    alpha : float, optional
        See :func:`triangulate_cloud`.

    Examples
    --------
    >>> grid = pv.ImageData(dimensions=(4, 3, 1))
    >>> mask = np.arange(12) != 5
    >>> canvas = make_canvas(grid, 12, mask=mask)
    >>> canvas.flat, canvas.association, canvas.faces.n_cells, int(canvas.shown.sum())
    (True, 'point', 2, 11)
    """
    association = association_of(mesh, n_tokens, association)
    if is_cloud(mesh):
        association = "point"  # files of cell centres say "cell", but here they are points
    mask = _checked_mask(mask, n_tokens)
    flat = is_flat(mesh)
    shown = mask & _inside(mesh, association, crop, flat)
    if not shown.any():
        raise ValueError(f"mask leaves no token with data inside the crop {crop}")
    rows = None
    if is_cloud(mesh):
        faces = triangulate_cloud(mesh.points, alpha=alpha) if flat else mesh
    elif isinstance(mesh, pv.PolyData):
        faces = mesh
    else:
        faces = mesh.extract_surface(
            pass_pointid=True, pass_cellid=True, algorithm="dataset_surface"
        )
        data = faces.point_data if association == "point" else faces.cell_data
        kind = "vtkOriginalPointIds" if association == "point" else "vtkOriginalCellIds"
        rows = np.asarray(data[kind])
    bare = is_cloud(faces)
    if mask.all():
        return Canvas(faces, None, association, rows, flat, shown, bare)
    return _without_masked(faces, association, rows, mask, flat, shown, bare)


def _without_masked(
    faces: pv.PolyData,
    association: str,
    rows: np.ndarray | None,
    mask: np.ndarray,
    flat: bool,
    shown: np.ndarray,
    bare: bool,
) -> Canvas:
    """Split the faces into those with data at every corner and the others."""
    known = mask if rows is None else mask[rows]
    if bare:
        return Canvas(
            pv.PolyData(faces.points[known]),
            pv.PolyData(faces.points[~known]),
            "point",
            np.flatnonzero(known) if rows is None else rows[known],
            flat,
            shown,
            bare,
        )
    if association == "point":
        # In the order in which VTK numbers the cells of a surface.
        kinds = (faces.GetVerts(), faces.GetLines(), faces.GetPolys(), faces.GetStrips())
        whole = np.concatenate([_all_corners(known, cells) for cells in kinds])
    else:
        whole = known
    if not whole.any():
        raise ValueError("mask leaves no face with data at all its corners; nothing can be drawn")
    bookkeeping = pv.PolyData()
    bookkeeping.copy_structure(faces)
    bookkeeping.point_data["row"] = np.arange(faces.n_points)
    bookkeeping.cell_data["row"] = np.arange(faces.n_cells)
    kept, dropped = (_faces_of(bookkeeping, chosen) for chosen in (whole, ~whole))
    data = kept.point_data if association == "point" else kept.cell_data
    local = np.asarray(data["row"])
    rows = local if rows is None else rows[local]
    return Canvas(kept, dropped, association, rows, flat, shown, bare)


def _all_corners(known: np.ndarray, cells: vtkCellArray) -> np.ndarray:
    """Whether all corners of each cell are known."""
    if not cells.GetNumberOfCells():
        return np.zeros(0, bool)
    offsets = pv.convert_array(cells.GetOffsetsArray())[:-1]
    return np.logical_and.reduceat(known[pv.convert_array(cells.GetConnectivityArray())], offsets)


def _faces_of(faces: pv.PolyData, chosen: np.ndarray) -> pv.PolyData:
    part = faces.extract_cells(np.flatnonzero(chosen))
    return part.extract_surface(algorithm="dataset_surface")


def _checked_mask(mask: np.ndarray | None, n_tokens: int) -> np.ndarray:
    if mask is None:
        return np.ones(n_tokens, bool)
    mask = np.asarray(mask)
    if mask.dtype != bool or mask.shape != (n_tokens,):
        raise ValueError(
            f"mask must be boolean of shape ({n_tokens},), True where there is data, got "
            f"{mask.dtype} of shape {mask.shape}"
        )
    if not mask.any():
        raise ValueError("mask is False everywhere: there is nothing to draw")
    return mask


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
