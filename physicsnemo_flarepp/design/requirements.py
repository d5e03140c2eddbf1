"""What runs and surfaces must have, so that a derivative by the shape means something."""

import numpy as np

from ..datapipes.readers.base import NO_WEIGHTS
from ..datapipes.readers.names import TO_BODY, Pick
from ..evaluation import Run
from ..inference.prediction import unwrap
from ..meshes import PolygonMesh
from ..meshes.measures import clashing_edges, open_edges

# Cells below this share of the mean area have no normal to speak of.
_NO_AREA = 1e-9


def check_run(run: Run) -> None:
    """Raise unless a run sees a shape through what is differentiated."""
    picks = {} if run.names is None else run.names.features or {}
    arrays = [picks.get(name, Pick(name)).array for name in run.channels.features]
    missing = [
        hint
        for hint, there in (
            ("normals (data.features=[normals])", "normals" in arrays),
            ("weights of its tokens (data.weights=measure)", run.channels.weights != NO_WEIGHTS),
        )
        if not there
    ]
    if missing:
        raise ValueError(
            f"run {run.name} has no {' and no '.join(missing)}: what it predicts depends on the "
            "mesh more than on the shape. Train a run with them"
        )
    if found := [name for name in arrays if name in TO_BODY]:
        raise ValueError(f"run {run.name} takes {found[0]}, which is not differentiated")
    if any(affine.shift.ndim != 1 for affine in run.normalizer.affine.values()):
        raise ValueError(
            f"run {run.name} has statistics or a baseline for each row of one mesh; train with "
            "data.baseline=none and another normalisation for shapes that change"
        )
    unwrap(run.model)  # raises if it does not stream


def check_surface(mesh: PolygonMesh, allow_open: bool) -> list[str]:
    """Return warnings about a surface, or raise where it has no derivative or no inside."""
    areas = np.linalg.norm(mesh.cell_geometry()[1], axis=1)
    if flat := int(np.count_nonzero(areas <= _NO_AREA * areas.mean())):
        raise ValueError(
            f"{mesh.source}: {flat} of {len(areas)} cells have no area, so their normals have no "
            "derivative; remove them, for example with pyvista's clean()"
        )
    if clashes := clashing_edges(mesh):
        raise ValueError(
            f"{mesh.source}: {clashes} edges have neighbours that face opposite sides, or more "
            "than two cells; orient them, for example with pyvista's "
            "compute_normals(consistent_normals=True)"
        )
    if not (rims := open_edges(mesh)):
        return []
    text = (
        f"{mesh.source} is open: {rims} edges have a cell on one side only. Vertices that are "
        "stored once per cell are merged by pyvista's clean(), holes are closed by fill_holes()"
    )
    if not allow_open:
        raise ValueError(f"{text}; give --allow-open to take it as it is")
    return [text]
