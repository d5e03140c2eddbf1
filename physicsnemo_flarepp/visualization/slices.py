"""Slices of volumes, which then are drawn like any planar mesh."""

from collections.abc import Mapping

import numpy as np
import pyvista as pv
from jaxtyping import Float

from .canvases import is_flat

_AXES = ("x", "y", "z")
# A plane between two layers of cells would belong to neither.
_ASIDE = 1e-4


def is_volume(mesh: pv.DataSet) -> bool:
    """Return whether a mesh fills space, so that its surface shows little of it.

    Examples
    --------
    >>> is_volume(pv.ImageData(dimensions=(3, 3, 3))), is_volume(pv.Sphere())
    (True, False)
    """
    if isinstance(mesh, pv.PolyData) or is_flat(mesh):
        return False
    kinds = np.unique(mesh.cast_to_unstructured_grid().celltypes)
    return any(pv.CellType(kind).name in _SOLIDS for kind in kinds)


_SOLIDS = {"TETRA", "HEXAHEDRON", "VOXEL", "WEDGE", "PYRAMID", "POLYHEDRON"}


def slice_volume(
    mesh: pv.DataSet,
    values: Mapping[str, Float[np.ndarray, " N"]],
    association: str,
    *,
    normal: str = "y",
    origin: float | None = None,
) -> tuple[pv.PolyData, dict[str, np.ndarray]]:
    """Cut a volume by a plane and lay the cut into the plane of the page.

    Parameters
    ----------
    mesh : pyvista.DataSet
        The volume.
    values : Mapping[str, numpy.ndarray]
        Of its cells or points, each (N,). Those of points are interpolated to the plane.
    association : str
        ``cell`` or ``point``.
    normal : str, optional
        Axis across the plane: ``x``, ``y`` or ``z``.
    origin : float, optional
        Where the plane meets that axis; the middle of the volume by default.

    Returns
    -------
    tuple[pyvista.PolyData, dict[str, numpy.ndarray]]
        The cut, in the plane z = 0, and the values at its cells or points.

    Examples
    --------
    >>> box = pv.ImageData(dimensions=(3, 4, 5))
    >>> cut, found = slice_volume(box, {"x": box.cell_centers().points[:, 0]}, "cell")
    >>> cut.n_cells, sorted(set(found["x"].tolist())), cut.bounds[:4]
    (8, [0.5, 1.5], (0.0, 2.0, 0.0, 4.0))
    """
    if normal not in _AXES:
        raise ValueError(f"normal is {normal!r}, expected one of {', '.join(_AXES)}")
    across = _AXES.index(normal)
    low, high = np.reshape(mesh.bounds, (3, 2))[across]
    place = (low + high) / 2 if origin is None else origin
    centre = np.array(mesh.center)
    centre[across] = place + _ASIDE * (high - low)
    bare = mesh.cast_to_unstructured_grid()
    bare.clear_data()
    target = bare.cell_data if association == "cell" else bare.point_data
    for name, array in values.items():
        target[name] = np.asarray(array)
    cut = bare.slice(normal=normal, origin=centre)
    if cut.n_cells == 0:
        raise ValueError(
            f"the plane {normal} = {place:g} does not meet the volume, from {low:g} to {high:g}"
        )
    data = cut.cell_data if association == "cell" else cut.point_data
    found = {name: np.asarray(data[name]) for name in values}
    page = np.zeros_like(cut.points)
    page[:, :2] = np.delete(cut.points, across, axis=1)
    return pv.PolyData(page, faces=cut.faces), found
