"""A mesh and its values as the data of the 3D view: triangles, cuts or points, packed into text."""

import base64
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyvista as pv
import vtk
from jaxtyping import Float
from scipy.spatial import KDTree

from ..evaluation.predictions import CasePrediction
from ..visualization import LIGHT, Preset, with_units
from ..visualization.canvases import (
    cut_volume,
    error_limits,
    field_limits,
    is_cloud,
    is_volume,
    make_canvas,
)

# Packed into text this is about 8 MB, which leaves room for figures in a page of 15 MB.
_BYTES = 7_000_000
_CUTS = 9  # across each axis of a volume
_AXES = ("x", "y", "z")


@dataclass(frozen=True)
class Layer:
    """One quantity of a field: its values at all tokens (N,), its colours and their limits."""

    name: str
    values: Float[np.ndarray, " N"]
    limits: tuple[float, float]
    map: str = "fields"  # or "errors"


def case_layers(found: Mapping[str, CasePrediction], preset: Preset) -> dict[str, list[Layer]]:
    """Return reference, predictions and errors of each field of a test case.

    Reference and predictions of a field share one scale, and so do the errors of all runs. Vectors
    are shown by their length.
    """
    one, layers = next(iter(found.values())), {}
    for field, width in one.channels.fields.items():
        truth = one.scalars(field, one.target)
        predicted = {name: case.scalars(field, case.prediction) for name, case in found.items()}
        errors = {name: values - truth for name, values in predicted.items()}
        label = with_units(preset.labels.get(field, field), preset.units.get(field))
        label = f"|{label}|".replace("$", "") if width > 1 else label.replace("$", "")
        scale = field_limits(truth)
        of = {name: f" of {name}" if len(found) > 1 else "" for name in found}
        layers[label] = [
            Layer("reference", truth, scale),
            *(Layer(f"prediction{of[n]}", v, scale) for n, v in predicted.items()),
            *(Layer(f"error{of[n]}", v, error_limits(errors), "errors") for n, v in errors.items()),
        ]
    return layers


def band_layer(band: Float[np.ndarray, " N"], level: float) -> Layer:
    """Return the half-width of a band that holds at a level."""
    return Layer(f"band, {100 * level:g} %", band, (0.0, error_limits({"": np.asarray(band)})[1]))


def make_scene(
    title: str,
    mesh: pv.DataSet,
    association: str,
    layers: Mapping[str, Sequence[Layer]],
    *,
    up: str = "z",
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """Return what the view of a page draws, ready for JSON.

    Surfaces are whole, volumes are cut across each axis, clouds are points. A surface with more
    triangles than fit into a page is decimated, and a note below the view says so. `layers` has the
    quantities of each field, at the points or cells of the mesh.
    """
    flat = [layer.values for several in layers.values() for layer in several]
    columns = np.stack([np.asarray(values, np.float32) for values in flat], axis=1)
    notes = list(notes)
    canvas = None if is_volume(mesh) else make_canvas(mesh, len(columns), association=association)
    if canvas is None:
        parts = _cuts(mesh, columns, association)
    elif is_cloud(canvas.faces):
        parts, association = _slabs(canvas.faces, columns), "point"
    else:
        parts = {"surface": _triangles(canvas.faces, canvas.values(columns), canvas.association)}
        association = canvas.association
    count = sum(len(corners) for _, corners, _ in parts.values())
    largest = _BYTES // (22 + 4 * columns.shape[1])
    if canvas is not None and not is_cloud(canvas.faces) and count > largest:
        parts = {"surface": _decimated(*parts["surface"], association, largest)}
        association, kept = "cell", len(parts["surface"][1])
        notes.append(
            f"Shown with {kept:,} of {count:,} triangles, each with the value of the nearest one "
            "of the original; all numbers on this page are of the original mesh."
        )
    return {
        "title": title,
        "notes": notes,
        "up": up,
        "flat": canvas is not None and canvas.flat,
        "per": association,
        "first": len(parts) // 2 if canvas is None else 0,
        **_joined(parts),
        "fields": _packed_fields(layers, np.concatenate([v for _, _, v in parts.values()])),
        "maps": {
            name: _pack((getattr(LIGHT, name)()(np.arange(257)) * 255).round().astype(np.uint8))
            for name in ("fields", "errors")
        },
    }


Part = tuple[np.ndarray, np.ndarray, np.ndarray]  # points (P, 3), corners (T, 3 or 1), values


def _triangles(faces: pv.PolyData, values: np.ndarray, association: str) -> Part:
    """Return a surface as triangles, with values (P, Q) or (T, Q)."""
    bare = pv.PolyData()
    bare.copy_structure(faces)
    bare.cell_data["row"] = np.arange(bare.n_cells)
    bare = bare.triangulate()
    if association == "cell":  # lines and vertices come before faces
        values = values[bare.cell_data["row"][bare.n_verts + bare.n_lines :]]
    return bare.points, bare.regular_faces, values


def _cuts(mesh: pv.DataSet, columns: np.ndarray, association: str) -> dict[str, Part]:
    shares = (np.arange(_CUTS) + 0.5003) / _CUTS  # not between two layers of cells
    return {
        f"{name} = {place:.3g}": _triangles(cut, values, association)
        for axis, name in enumerate(_AXES)
        for place, cut, values in cut_volume(mesh, columns, association, axis, shares)
        if cut.n_cells  # not through a hole
    }


def _slabs(cloud: pv.PolyData, columns: np.ndarray) -> dict[str, Part]:
    """Return a cloud whole, then the points near planes across each axis."""
    points, none = np.asarray(cloud.points), np.zeros((0, 3))
    parts = {"all points": (points, np.arange(len(points))[:, None], columns)}
    for axis, x in zip(_AXES, points.T, strict=True):
        numbers = (_CUTS * (x - x.min()) / (np.ptp(x) or 1)).astype(int).clip(0, _CUTS - 1)
        for number in range(_CUTS):
            rows = np.flatnonzero(numbers == number)[:, None]
            low = x.min() + np.ptp(x) * number / _CUTS
            name = f"{low:.3g} < {axis} < {low + np.ptp(x) / _CUTS:.3g}"
            parts[name] = (none, rows, columns[:0])
    return parts


def _decimated(
    points: np.ndarray, corners: np.ndarray, values: np.ndarray, association: str, largest: int
) -> Part:
    """Return at most `largest` triangles, each with the values of the nearest original one."""
    mesh, divisions = pv.PolyData.from_regular_faces(points, corners), 1024
    if association == "point":
        values = values[corners].mean(axis=1)
    while True:
        filtered = vtk.vtkBinnedDecimation()
        filtered.SetInputData(mesh)
        filtered.AutoAdjustNumberOfDivisionsOff()
        filtered.SetNumberOfDivisions(divisions, divisions, divisions)
        filtered.Update()
        small = pv.wrap(filtered.GetOutput())
        if small.n_cells <= largest:
            break
        divisions = int(0.95 * divisions * (largest / small.n_cells) ** 0.5)
    fewer = small.regular_faces
    places = np.asarray(small.points)[fewer].mean(axis=1)
    nearest = KDTree(points[corners].mean(axis=1)).query(places)[1]
    return np.asarray(small.points), fewer, values[nearest]


def _joined(parts: Mapping[str, Part]) -> dict[str, Any]:
    """Return all parts in one list of corners; a part is a range of it."""
    ranges, start, shift, corners = [], 0, 0, []
    for name, (points, faces, _) in parts.items():
        ranges.append({"name": name, "start": start, "count": int(faces.size)})
        corners.append((faces + shift).astype(np.uint32).ravel())
        start += faces.size
        shift += len(points) if faces.shape[1] == 3 else 0
    points = np.concatenate([points for points, _, _ in parts.values()])
    return {
        "parts": ranges,
        "points": _pack(points.astype(np.float32)),
        "corners": _pack(np.concatenate(corners)),
        "corners_each": next(iter(parts.values()))[1].shape[1],
    }


def _packed_fields(
    layers: Mapping[str, Sequence[Layer]], values: np.ndarray
) -> list[dict[str, Any]]:
    columns, fields = iter(np.ascontiguousarray(values.T, np.float32)), []
    for field, several in layers.items():
        quantities = [
            {"name": q.name, "limits": q.limits, "map": q.map, "values": _pack(next(columns))}
            for q in several
        ]
        fields.append({"name": field, "quantities": quantities})
    return fields


def _pack(array: np.ndarray) -> str:
    """Return the bytes of an array, little-endian, compressed, as text."""
    plain = array.astype(array.dtype.newbyteorder("<"))
    return base64.b64encode(zlib.compress(plain.tobytes(), 6)).decode()
